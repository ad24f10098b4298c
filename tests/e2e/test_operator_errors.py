"""What an operator gets wrong is said in a line: what, where, and what to do next."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.rig import Done, Rig, final, snapshot


def _refused(done: Done, code: int, *said: str) -> None:
    """It ended with ``code``, says all of ``said``, and shows nobody a traceback."""
    assert done.code == code, done.err
    assert "Traceback" not in done.err
    assert all(line.startswith("orch: ") for line in done.err.splitlines()), done.err
    assert not [text for text in said if text not in done.err], done.err
    assert len(done.err.splitlines()) >= 2, "no next step"


@dataclass(frozen=True)
class Bench:
    """A bench that the refused commands leave as it is, with one submitted attempt."""

    rig: Rig
    pack: Path
    attempt: Path


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    rig = Rig(tmp_path_factory.mktemp("operator"))
    pack = rig.pack()
    return Bench(rig, pack, rig.enter(pack))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("explore", "digits_clas0"), ("no task at digits_clas0", "did you mean digits_class0?")),
        (("explore", "nothing/like/it"), ("no task at nothing/like/it", "orch task")),
        (("explore", "PACK", "--agent", "scriptd"), ("no agent 'scriptd'", "scripted")),
        (("explore", "PACK", "--model", "gpt-5"), ("works without a model", "--model none")),
        (("explore", "PACK", "--effort", "high"), ("works without a model", "--effort none")),
        (("show", "deadbeef"), ("no run answers to 'deadbeef'",)),
        (("replay", "deadbeef"), ("no run answers to 'deadbeef'",)),
        (("replay", "ATTEMPT/replay-009"), ("no run answers",)),
        (("score", "ATTEMPT"), ("not a replay", "orch show")),
        (("score", "PACK", "--checkpoint", "7"), ("is not N=DIR", "--checkpoint 7800=")),
        (("score", "PACK", "--checkpoint", "x=/tmp"), ("not checkpoint-<number>", "7800=")),
        (("score", "PACK", "--checkpoint", "7=/nope"), ("/nope is not a folder", "7800=")),
        (("replay", "ATTEMPT", "--repeats", "0"), ("--repeats", "--help")),
        (("replay", "ATTEMPT", "--through", "moon"), ("--through", "--help")),
        (("explore", "PACK", "--gpu", "9"), ("--gpu: tiny asks for no GPU", "leave --gpu out")),
        (("submit-patch", "PACK", "/nope"), ("/nope cannot be read: No such file", "FILE")),
        (("explroe", "PACK"), ("explroe", "--help")),
    ],
)
def test_what_cannot_be_done_is_refused(
    bench: Bench, words: tuple[str, ...], said: tuple[str, ...]
) -> None:
    before = snapshot(bench.rig.runs)
    filled = [w.replace("PACK", str(bench.pack)) for w in words]
    filled = [w.replace("ATTEMPT", str(bench.attempt)) for w in filled]
    _refused(bench.rig.orch(*filled), 64, *said)
    assert snapshot(bench.rig.runs) == before


def test_a_patch_of_another_solution_is_refused_in_one_line(bench: Bench, tmp_path: Path) -> None:
    patch = tmp_path / "other.patch"
    patch.write_text(
        "diff --git a/run.sh b/run.sh\nindex 1111111..2222222 100755\n--- a/run.sh\n+++ b/run.sh\n"
        "@@ -1 +1 @@\n-nothing like it\n+something else\n"
    )
    done = bench.rig.orch("submit-patch", bench.pack, patch)
    _refused(done, 65, "git refuses it: error: patch failed: run.sh:1; error: run.sh: patch does")
    assert len(done.err.splitlines()) == 2


def test_a_shell_may_name_a_gpu_for_the_tasks_that_ask_for_one(bench: Bench) -> None:
    shell = Rig(bench.rig.root, {**bench.rig.variables, "ORCH_GPU": "9"})
    assert shell.orch("explore", bench.pack, "--dry-run").code == 0


def test_an_ambiguous_id_names_what_it_may_mean(bench: Bench, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(bench.rig.runs, runs)
    config = next(runs.glob("patch__*"))
    shutil.copytree(config / "attempt-001", config / "attempt-002")
    copy = Rig(tmp_path, {**bench.rig.variables, "ORCH_RUNS": str(runs)})
    _refused(copy.orch("show", "attempt-00"), 64, "may mean 2 runs", "attempt-001", "attempt-002")


def test_an_image_that_is_not_built_names_the_command(rig: Rig) -> None:
    pack = rig.pack(defaults={"image": "cpu-none"})
    _refused(rig.orch("explore", pack), 64, "no image 'orch/cpu-none:1'", "orch images build")
    assert not list(rig.runs.glob("*/attempt-*"))


def test_every_fault_of_a_pack_is_told_at_once_with_its_line(rig: Rig) -> None:
    pack = rig.pack()
    path = pack / "task.yaml"
    lines = path.read_text().replace("cpus: 1", "cpus: lots").splitlines()
    lines += ["nme: x", "name: twice"]
    path.write_text("\n".join(lines) + "\n")
    (pack / "evaluator/score.sh").unlink()
    done = rig.orch("explore", pack)
    wrong = next(number for number, line in enumerate(lines, 1) if "lots" in line)
    _refused(
        done,
        65,
        f"task.yaml:{wrong}: defaults.cpus: must be a valid number",
        f"task.yaml:{len(lines) - 1}: nme: unknown key (did you mean name?)",
        f"task.yaml:{len(lines)}: name: duplicate key (first on line 2)",
        f"orch task check {pack}",
    )
    assert not list(rig.runs.glob("*/attempt-*"))


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("evaluator/score.sh", None, "score.command: evaluator/score.sh: no such file"),
        ("demo.yaml", "- rn: x\n", "demo.yaml is not a list of steps: 0.rn"),
        ("demo.yaml", "- {run: [\n", "demo.yaml is not YAML"),
        ("instruction.md", "{{ nope }}", "'nope' is undefined"),
        ("instruction.md", None, "instruction.md: no such file"),
        ("task.yaml", "", "task.yaml:1: empty"),
        ("task.yaml", "a: [", "task.yaml:1"),
    ],
)
def test_a_faulty_pack_registers_nothing(
    bench: Bench, tmp_path: Path, file: str, text: str | None, said: str
) -> None:
    pack = tmp_path / "pack"
    shutil.copytree(bench.pack, pack)
    (pack / file).unlink() if text is None else (pack / file).write_text(text)
    before = snapshot(bench.rig.runs)
    _refused(bench.rig.orch("explore", pack), 65, said)
    assert snapshot(bench.rig.runs) == before


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system that is mounted read-only."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "ro", "orch-test", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.parametrize("variable", ["ORCH_RUNS", "ORCH_HOME", "ORCH_HOST"])
def test_a_folder_that_cannot_be_written_is_named_with_its_variable(
    bench: Bench, read_only: Path, variable: str
) -> None:
    before = snapshot(bench.rig.runs)
    for place in (read_only, read_only / "below"):
        other = Rig(bench.rig.root, {**bench.rig.variables, variable: str(place)})
        _refused(other.orch("explore", bench.pack), 64, str(place), variable)
    assert snapshot(bench.rig.runs) == before


def test_a_read_only_copy_can_be_read_and_nothing_else(
    bench: Bench, tmp_path: Path, read_only: Path
) -> None:
    del read_only  # mounting is allowed
    runs = tmp_path / "runs"
    shutil.copytree(bench.rig.runs, runs)
    other = Rig(tmp_path, {**bench.rig.variables, "ORCH_RUNS": str(runs)})
    attempt = runs / bench.attempt.relative_to(bench.rig.runs)
    subprocess.run(["mount", "--bind", runs, runs], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", runs], check=True)
        for words in (("status",), ("show", attempt), ("lifecycle", attempt), ("logs", attempt)):
            assert other.orch(*words).code == 0
        _refused(other.orch("report", attempt), 64, str(attempt), "copy the runs folder")
        _refused(other.orch("replay", attempt), 64, "cannot be written", "ORCH_RUNS")
    finally:
        subprocess.run(["umount", "--lazy", runs], check=True)


@pytest.mark.parametrize("command", [("explore", "PACK"), ("status",), ("show", "x")])
def test_a_runs_folder_that_is_none_is_refused(
    bench: Bench, tmp_path: Path, command: tuple[str, ...]
) -> None:
    file = tmp_path / "file"
    file.write_text("text")
    words = [word.replace("PACK", str(bench.pack)) for word in command]
    for place in (file, file / "below"):
        other = Rig(tmp_path, {**bench.rig.variables, "ORCH_RUNS": str(place)})
        _refused(other.orch(*words), 64, f"the runs folder {place} cannot be used", "ORCH_RUNS")
    assert file.read_text() == "text"


@pytest.mark.parametrize("command", [("explore", "PACK"), ("status",), ("show", "x")])
def test_a_runs_folder_that_may_not_be_read_is_refused(
    bench: Bench, tmp_path: Path, command: tuple[str, ...]
) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    runs.chmod(0o000)
    other = Rig(tmp_path, {**bench.rig.variables, "ORCH_RUNS": str(runs)})
    words = [word.replace("PACK", str(bench.pack)) for word in command]
    drop = () if os.geteuid() else ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
    done = subprocess.run(
        [*drop, *other._argv(words)], env=other._env(), capture_output=True, check=False, text=True
    )
    said = Done(done.returncode, done.stdout, done.stderr)
    _refused(said, 64, str(runs), "not readable", "--runs")


@pytest.mark.parametrize("name", ["ORCH_RUNS", "ORCH_HOME", "ORCH_ASSETS", "ORCH_HOST"])
def test_a_folder_under_a_name_that_no_file_system_takes(
    bench: Bench, tmp_path: Path, name: str
) -> None:
    impossible = str(tmp_path / ("x" * 300))
    other = Rig(tmp_path, {**bench.rig.variables, name: impossible})
    _refused(other.call("explore", bench.pack), 64, impossible, "too long", name)


def _key(rig: Rig) -> Path:
    return Path(rig.variables["ORCH_HOME"]) / "keys/signing-key.pem"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda key: key.chmod(0o644), "open to other users"),
        (lambda key: key.write_bytes(b"junk"), "no readable Ed25519 private key"),
        (lambda key: (key.unlink(), key.mkdir()), "signing-key.pem"),
        (lambda key: os.chown(key, 1234, 1234), "belongs to user 1234"),
    ],
)
def test_a_signing_key_that_cannot_be_trusted_is_not_replaced(
    bench: Bench, tmp_path: Path, spoil: Any, said: str
) -> None:
    if "belongs" in said and os.geteuid():
        pytest.skip("only root can give a key away")
    home = tmp_path / "home"
    shutil.copytree(bench.rig.variables["ORCH_HOME"], home)
    other = Rig(tmp_path, {**bench.rig.variables, "ORCH_HOME": str(home)})
    spoil(_key(other))
    before = snapshot(home)
    _refused(other.orch("explore", bench.pack), 64, said, "README")
    assert snapshot(home) == before


def _garbage(attempt: Path) -> None:
    (attempt / "lifecycle.jsonl").write_bytes(b"garbage\n")


def _cut_plan(attempt: Path) -> None:
    (attempt / "plan.json").write_text("{")


def _newer_format(attempt: Path) -> None:
    plan = json.loads((attempt / "plan.json").read_text())
    (attempt / "plan.json").write_text(json.dumps({**plan, "format": 2}))


def _folder_for_a_journal(attempt: Path) -> None:
    (attempt / "lifecycle.jsonl").unlink()
    (attempt / "lifecycle.jsonl").mkdir()


@pytest.mark.parametrize("spoil", [_garbage, _cut_plan, _newer_format, _folder_for_a_journal])
def test_a_run_that_cannot_be_read_stops_no_other_and_is_left_as_it_is(
    bench: Bench, tmp_path: Path, spoil: Any
) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(bench.rig.runs, runs)
    other = Rig(tmp_path, {**bench.rig.variables, "ORCH_RUNS": str(runs)})
    attempt = runs / bench.attempt.relative_to(bench.rig.runs)
    (attempt / ".complete").unlink()
    spoil(attempt)
    before = snapshot(attempt)
    done = other.orch("submit-patch", bench.pack, bench.rig.root / "note.patch")
    assert done.code == 0, done.err
    assert str(attempt) in done.err
    for words in (("status",), ("show", attempt), ("lifecycle", attempt)):
        shown = other.orch(*words)
        assert shown.code == 0, shown.err
        assert "fault" in shown.out
    assert other.orch("status", "--json").json()[0]["faults"]
    assert snapshot(attempt) == before


def test_a_plan_of_another_format_is_left_to_the_orch_that_wrote_it(
    bench: Bench, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(bench.rig.runs, runs)
    other = Rig(tmp_path, {**bench.rig.variables, "ORCH_RUNS": str(runs)})
    attempt = runs / bench.attempt.relative_to(bench.rig.runs)
    _newer_format(attempt)
    before = snapshot(attempt)
    _refused(other.orch("replay", attempt), 65, "format 2", "nothing was touched")
    assert snapshot(attempt) == before


def test_two_commands_may_write_the_same_runs_folder_at_once(rig: Rig) -> None:
    pack = rig.pack(defaults={"disk": "8m", "cpus": 0.5, "memory": "64m"})
    rig.enter(pack)
    started = [rig.start("explore", pack, "--json") for _ in range(2)]
    printed = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0, 0], printed
    attempts = {Path(json.loads(out)[-1]["path"]) for out, _ in printed}
    assert {attempt.name for attempt in attempts} == {"attempt-001", "attempt-002"}
    assert {final(attempt) for attempt in attempts} == {"submitted"}
    log = (rig.runs / "campaign.jsonl").read_text().splitlines()
    assert [json.loads(line)["seq"] for line in log] == list(range(1, len(log) + 1))
    assert not re.search("fault", rig.orch("status").out)
