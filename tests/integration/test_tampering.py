"""Every tampering with a real, finished campaign is found, by the step that is there for it."""

import json
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from receipts.__main__ import main
from receipts.keys import load_or_create
from receipts.tree import tree_identity
from receipts.verify import verify
from receipts.verify_model import Report, Verdict
from tests.e2e.rig import PUBLISH, Rig
from tests.integration.tampered_scene import (
    Scene,
    Tampering,
    head_of,
    known,
    published,
    tell_otherwise,
    whole,
)
from tests.integration.tampering import (
    TAMPERINGS,
    everything_made_anew,
    failed_replay_removed_from_the_log_too,
    scoring_cut_back,
)
from tests.integration.tampering_in_detail import DETAILED

pytestmark = pytest.mark.docker

ALL = (*TAMPERINGS, *DETAILED)

RUN = PUBLISH + '[ -z "${SEED:-}" ] || exit 3\npublish 10 0.1\npublish 20 0.3\npublish 30 0.2\n'


@pytest.fixture(scope="session")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    """Two attempts, the first with a scored replay and one that came to nothing."""
    rig = Rig(tmp_path_factory.mktemp("campaign"))
    steps = ({"run": 'echo "# $RANDOM" >> run.sh'}, {"run": "/opt/harness/submit.sh"})
    pack = rig.pack(RUN, steps=steps, replay={"seed_variable": "SEED"})
    attempt = rig.explore(pack)
    rig.replay(attempt)
    rig.replay(attempt, "--repeats", "1")
    rig.explore(pack)
    return rig


@pytest.fixture
def scene(campaign: Rig, tmp_path: Path) -> Iterator[Scene]:
    runs = tmp_path / "runs"
    shutil.copytree(campaign.runs, runs, symlinks=True)
    (config,) = (path.parent.name for path in runs.glob("*/config.json"))
    plan = json.loads((runs / config / "attempt-001" / "plan.json").read_text())
    yield Scene(
        runs=runs,
        config=config,
        key=load_or_create(Path(campaign.variables["ORCH_HOME"])),
        stranger=load_or_create(tmp_path / "stranger"),
        task=plan["task_digest"],
        head=head_of(runs / "campaign.jsonl"),
    )
    shutil.rmtree(runs)


def _steps(report: Report) -> set[str]:
    return {fault.step.value for fault in report.faults}


def test_nothing_is_found_where_nothing_was_done(scene: Scene) -> None:
    report = verify(scene.runs, published(scene))
    assert report.faults == []
    assert (report.verdict, report.runs, report.receipts) == (Verdict.AUTHENTIC, 5, 11)
    assert report.selection.startswith("selection excluded up to line")
    assert verify(scene.attempt, known(scene)).verdict is Verdict.AUTHENTIC
    for folder in (scene.attempt, scene.replay, scene.scoring, scene.scoring / "receipts"):
        report = verify(folder)
        assert report.faults == []
        assert report.verdict is Verdict.UNAUTHENTICATED


@pytest.mark.parametrize("tampering", ALL, ids=lambda t: f"{t.name}-{t.step}-{len(t.says)}")
def test_a_tampering_is_found(scene: Scene, tampering: Tampering) -> None:
    tampering.do(scene)
    report = verify(scene.runs, tampering.wanted(scene))
    assert report.verdict is Verdict.FINDING
    told = [fault.what for fault in report.faults if fault.step is tampering.step]
    assert any(tampering.says in what for what in told), report.faults


def test_the_count_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{len({t.do for t in ALL})} tamperings, each found by its step")
    assert len({(t.name, t.step, t.says) for t in ALL}) == len(ALL)


def test_a_torn_last_line_is_no_tampering(scene: Scene) -> None:
    for path in (scene.scoring / "lifecycle.jsonl", scene.campaign):
        with path.open("ab") as file:
            file.write(b'{"seq": 99, "ts"')
    report = verify(scene.runs, published(scene))
    assert report.faults == []
    assert sum("cut off while being written" in note for note in report.notes) == 2


@pytest.mark.parametrize("do", [everything_made_anew, failed_replay_removed_from_the_log_too])
def test_only_a_published_head_finds_what_was_made_anew_whole(
    scene: Scene, do: Callable[[Scene], None]
) -> None:
    do(scene)
    report = verify(scene.runs, whole(scene))
    assert report.faults == []
    assert report.selection == ""


def test_what_is_left_out_by_policy_is_said(scene: Scene) -> None:
    shutil.rmtree(scene.replay / "checkpoints")
    report = verify(scene.attempt, known(scene))
    assert report.verdict is Verdict.AUTHENTIC
    assert sum("absent by policy, digest receipted" in note for note in report.notes) == 3


def test_deep_hashes_the_assets_again(scene: Scene, campaign: Rig) -> None:
    assert verify(scene.runs, known(scene, deep=True)).faults == []
    plan = scene.replay / "plan.json"
    source = Path(json.loads(plan.read_text())["materials"]["data/train"]["source"])
    (asset,) = source.iterdir()
    kept = asset.read_bytes()
    source.chmod(0o755)
    asset.chmod(0o644)
    asset.write_bytes(b"more rows")
    try:
        assert _steps(verify(scene.runs, known(scene, deep=True))) == {"files"}
        assert verify(scene.runs, known(scene)).faults == []
    finally:
        asset.write_bytes(kept)


def test_a_bundle_of_one_run_verifies_away_from_its_runs_folder(
    scene: Scene, tmp_path: Path
) -> None:
    away = tmp_path / "away" / scene.config
    shutil.copytree(scene.attempt, away / "attempt-001", symlinks=True)
    report = verify(away, known(scene))
    assert report.verdict is Verdict.AUTHENTIC
    assert any("no campaign log here" in note for note in report.notes)
    assert "signatures" in _steps(verify(away))
    replay = tmp_path / "alone" / "replay-001"
    shutil.copytree(scene.replay, replay, symlinks=True)
    report = verify(replay, known(scene))
    assert report.faults == []
    assert any("the receipt it follows is not here" in note for note in report.notes)


def test_a_run_in_progress_is_said_to_be_one(scene: Scene) -> None:
    """The journal as it stood at its start, pinned as it was then, with no ending in the log."""
    lines = scene.campaign.read_text().splitlines(keepends=True)
    scored = next(n for n, line in enumerate(lines) if '"event":"scored"' in line)
    scene.campaign.write_text("".join(lines[:scored]))
    for path in (scene.failed, scene.other):
        shutil.rmtree(path)
    scoring_cut_back(scene)
    report = verify(scene.runs, known(scene))
    assert report.faults == []
    assert report.going_on == 1
    assert any("in progress" in note for note in report.notes)


def test_the_command_says_each_step_and_its_verdict(
    scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trusted, foreign = tmp_path / "trusted.pem", tmp_path / "foreign.pem"
    trusted.write_bytes(scene.key.verifying.pem)
    foreign.write_bytes(scene.stranger.verifying.pem)
    command = ["verify", str(scene.runs)]
    assert main(command) == 3
    assert main([*command, "--key", str(trusted)]) == 3
    assert main([*command, "--task", scene.task]) == 3
    both = [*command, "--key", str(trusted), "--task", scene.task]
    capsys.readouterr()
    assert main(both) == 0
    told = capsys.readouterr().out
    assert [line[:15] for line in told.splitlines()[1:4]] == [
        " 1. parse      ",
        " 2. signatures ",
        " 3. phases     ",
    ]
    assert "selection not excluded" in told
    assert "the evaluator's own formula" in told
    assert main([*both, "--key", str(foreign)]) == 0
    assert main([*command, "--key", str(foreign), "--task", scene.task]) == 1
    assert main([*command, "--key", str(trusted), "--task", "pack:v1:sha256:" + "0" * 64]) == 1
    assert main([*command, "--key", str(scene.replay / "plan.json")]) == 64
    assert main(["verify", str(scene.runs / "missing")]) == 64
    capsys.readouterr()
    assert main([*both, "--json", "--campaign", "--campaign-head", scene.head]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "authentic"
    assert [step["number"] for step in document["steps"]] == list(range(1, 11))
    assert "selection excluded" in document["selection"]


def test_orch_verify_is_the_same_check(scene: Scene, campaign: Rig) -> None:
    done = campaign.orch("verify", scene.scoring, "--json")
    assert (done.code, done.json()["verdict"]) == (3, "unauthenticated")
    (scene.scoring / ".complete").unlink()
    done = campaign.orch("verify", scene.scoring)
    assert done.code == 1
    assert "FINDING" in done.out


def test_damage_of_any_kind_is_answered_and_never_a_traceback(scene: Scene) -> None:
    dice = random.Random(7)  # noqa: S311 - damage, not a secret
    files = sorted(p for p in scene.attempt.rglob("*") if _is_evidence(scene, p))
    damages: tuple[Callable[[bytes], bytes], ...] = (
        lambda data: data[: dice.randrange(len(data))],
        lambda data: dice.randbytes(200),
        lambda data: b"[" * 100_000,
        lambda data: b"{}",
        lambda data: b"null",
        lambda data: b"\xff" + data,
        lambda data: data.replace(b'":', b'":[', 3),
    )
    for path in files:
        kept = path.read_bytes()
        for damage in damages:
            damaged = damage(kept)
            if damaged == kept:
                continue
            path.write_bytes(damaged)
            assert verify(scene.attempt, known(scene)).verdict is Verdict.FINDING, path
        path.write_bytes(kept)
    assert len(files) > 20
    assert verify(scene.attempt, known(scene)).faults == []


def _is_evidence(scene: Scene, path: Path) -> bool:
    parts = path.relative_to(scene.attempt).parts
    if not path.is_file() or path.name == "transcript.jsonl":
        return False
    locks = {".supervisor.lock", ".beginning.lock"}
    beside = {"logs", "out", "workspace", "control", "validate", "checkpoints", *locks}
    inside = [part for part in parts if part in beside]
    return not inside or (inside == ["out"] and path.parents[1].name.startswith("checkpoint-"))


def test_verification_of_10_000_files_is_measured(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    """CPU beyond hashing: what hashing the same checkpoints alone takes is told apart."""

    def fill(folder: Path) -> None:
        for number in range(3_333):
            (folder / f"part-{number}").write_bytes(b"x" * 1000)

    names = ("checkpoint-10", "checkpoint-20", "checkpoint-30")
    tell_otherwise(scene, *(scene.change_checkpoint(name, fill) for name in names))
    started = time.process_time()
    report = verify(scene.attempt, known(scene))
    together = time.process_time() - started
    assert _steps(report) == {"campaign"}
    started = time.process_time()
    for name in names:
        tree_identity(scene.replay / "checkpoints" / name)
    hashing = time.process_time() - started
    with capsys.disabled():
        print(f"\n10,002 files: {together:.2f} s of CPU, {hashing:.2f} s of it to hash them")
