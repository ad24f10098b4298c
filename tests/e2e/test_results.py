"""What counts as a result, and what never does."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.storage.durable import parse_json
from receipts.complete import Completeness, check
from tests.e2e.rig import PUBLISH, SUBMIT, Rig, events, final, snapshot, until

ODD_NUMBERS = """\
case $(cat /ckpt/weights.txt) in
nan) m='"score": NaN' ;;
inf) m='"score": Infinity' ;;
*) m='"score": 0.3, "acc": NaN, "per_class": [NaN, 1.0, -Infinity], "up": Infinity' ;;
esac
echo '{"status": "scored", "metrics": {'"$m"'}, "baselines": {"start": {"score": NaN}}}' \
  > /out/summary.json
"""


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> tuple[Rig, Path]:
    """An attempt whose three checkpoints score NaN, 0.3 and infinity."""
    rig = Rig(tmp_path_factory.mktemp("odd"))
    run = PUBLISH + "publish 10 inf\npublish 20 0.3\npublish 30 nan\n"
    attempt = rig.explore(rig.pack(run, scorer=ODD_NUMBERS))
    rig.replay(attempt)
    return rig, attempt


def _summary(attempt: Path, checkpoint: str) -> dict[str, Any]:
    place = attempt / "replay-001/score-001" / checkpoint
    assert check(place / ".complete").completeness is Completeness.COMPLETE
    return dict(parse_json((place / "out/summary.json").read_bytes()))


def _verify(folder: Path) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-m", "receipts", "verify", str(folder)]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_SC_01_numbers_that_are_not_finite_are_kept_beside_the_score(
    odd: tuple[Rig, Path],
) -> None:
    summary = _summary(odd[1], "checkpoint-20")
    assert (summary["status"], summary["value"]) == ("scored", 0.3)
    assert summary["metrics"] == {
        "score": {"value": 0.3, "nonfinite": None},
        "acc": {"value": None, "nonfinite": "nan"},
        "per_class": [
            {"value": None, "nonfinite": "nan"},
            {"value": 1.0, "nonfinite": None},
            {"value": None, "nonfinite": "-inf"},
        ],
        "up": {"value": None, "nonfinite": "inf"},
    }
    assert summary["baselines"] == {"start": {"score": {"value": None, "nonfinite": "nan"}}}


@pytest.mark.parametrize(
    ("checkpoint", "kind"), [("checkpoint-30", "nan"), ("checkpoint-10", "inf")]
)
def test_SC_01_a_primary_metric_that_is_not_finite_is_invalid(
    odd: tuple[Rig, Path], checkpoint: str, kind: str
) -> None:
    summary = _summary(odd[1], checkpoint)
    assert (summary["status"], summary["value"]) == ("invalid", None)
    assert summary["reason"] == f"nonfinite_metric: score is {kind}"


def test_SC_01_the_best_is_the_finite_one_and_its_receipts_hold(odd: tuple[Rig, Path]) -> None:
    rig, attempt = odd
    aggregate = parse_json((attempt / "replay-001/score-001/summary.json").read_bytes())
    assert aggregate["best"]["checkpoint"] == "checkpoint-20"
    assert _verify(attempt).returncode == 3
    shown = rig.orch("show", attempt)
    assert "nonfinite_metric: score is nan" in shown.out


def _without(path: Path) -> None:
    path.unlink()


def _emptied(path: Path) -> None:
    path.write_bytes(b"")


def _better(path: Path) -> None:
    document = json.loads(path.read_text())
    document["best"]["value"] = 0.99
    path.write_text(json.dumps(document))


@pytest.mark.parametrize("spoil", [_without, _emptied, _better])
def test_SC_04_a_marker_whose_result_is_gone_or_changed_is_corrupt(
    odd: tuple[Rig, Path], tmp_path: Path, spoil: Any
) -> None:
    rig, attempt = odd
    runs = tmp_path / "runs"
    shutil.copytree(rig.runs, runs)
    copy = Rig(tmp_path, {**rig.variables, "ORCH_RUNS": str(runs)})
    place = runs / attempt.relative_to(rig.runs)
    spoil(place / "replay-001/score-001/summary.json")
    row = copy.orch("status", "--json").json()[0]
    assert (row["score"]["status"], row["score"]["value"]) == ("corrupt", None)
    assert any("summary.json" in fault for fault in row["faults"])
    for words in (("status",), ("show", place), ("show", place / "replay-001/score-001")):
        done = copy.orch(*words)
        assert done.code == 0, done.err
        assert "corrupt" in done.out
        assert "summary.json" in done.out
        assert "0.99" not in done.out
    verified = _verify(place)
    assert verified.returncode == 1
    assert "summary.json" in verified.stdout


def test_SC_08_a_finished_replay_is_not_run_again(odd: tuple[Rig, Path]) -> None:
    rig, attempt = odd
    before = snapshot(rig.runs)
    for words in (("replay", attempt), ("score", attempt / "replay-001")):
        done = rig.orch(*words)
        assert done.code == 64
        assert "finished" in done.err
        assert "orch show" in done.err
    assert snapshot(rig.runs) == before


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Rig]:
    """A bench whose runs folder is a small file system of its own."""
    runs = tmp_path / "runs"
    runs.mkdir()
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=96m", "orch-test", runs],
            check=True,
            capture_output=True,
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a small file system needs a mount, and mounting is not allowed here")
    try:
        yield Rig(tmp_path)
    finally:
        subprocess.run(["umount", "--lazy", runs], check=True)


def _fill(runs: Path, leave: int) -> Path:
    """Take all the space but ``leave`` bytes."""
    status = os.statvfs(runs)
    filler = runs / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, status.f_bavail * status.f_frsize - leave)
    return filler


def _no_part(runs: Path) -> None:
    """Nothing half-written lies anywhere, and what ends in .json is whole."""
    assert not list(runs.rglob(".*.tmp"))
    assert not list(runs.rglob(".*.part"))
    for path in runs.rglob("*.json"):
        parse_json(path.read_bytes())


WAIT = "touch /out/here; while [ ! -e /out/go ]; do sleep 0.05; done\n"
LONG_SCORER = (
    WAIT
    + """\
python3 - <<'PY'
import json
metrics = {"score": 0.5} | {f"metric_{n}": 0.125 for n in range(500)}
open("/out/summary.json", "w").write(json.dumps({"status": "scored", "metrics": metrics}))
PY
"""
)


def test_SC_06_no_space_for_a_summary(small: Rig) -> None:
    attempt = small.explore(small.pack(scorer=LONG_SCORER, defaults={"disk": "8m"}))
    before = snapshot(attempt / "receipts")
    process = small.start("replay", attempt)
    scoring = attempt / "replay-001/score-001"
    out = scoring / "scratch/checkpoint-30"
    until((out / "here").exists)
    earlier = snapshot(attempt / "replay-001/receipts")
    filler = _fill(small.runs, 4096)
    (out / "go").touch()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75, err.decode()
    assert b"No space left on device" in err
    assert b"Traceback" not in err
    assert not list(scoring.rglob("summary.json"))
    assert not (scoring / "checkpoint-30/.complete").exists()
    assert snapshot(attempt / "receipts") == before
    assert snapshot(attempt / "replay-001/receipts") == earlier
    _no_part(small.runs)
    assert final(scoring) == "infrastructure"
    assert events(scoring)[-1]["data"]["fact"] == "disk_full"
    filler.unlink()
    assert small.containers() == []
    assert small.images() == []
    assert small.mounts() == [str(small.runs)]


def test_SC_06_no_space_for_a_checkpoint(small: Rig) -> None:
    run = PUBLISH + WAIT + "head -c 2M /dev/zero > /out/w; publish 10 0.1\n"
    run += "mv /out/w $OUTPUT_DIR/checkpoints/checkpoint-10/more\n"
    attempt = small.explore(small.pack(run, defaults={"disk": "8m"}))
    process = small.start("replay", attempt)
    replay = attempt / "replay-001"
    until((replay / "out/here").exists)
    filler = _fill(small.runs, 4096)
    (replay / "out/go").touch()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75, err.decode()
    assert b"No space left on device" in err
    assert b"Traceback" not in err
    assert not (replay / "artifacts.json").exists()
    filler.unlink()
    small.settled(replay)  # what was run to its end is collected when there is room
    assert final(replay) == "validated"
    assert (replay / "checkpoints/checkpoint-10/more").stat().st_size == 2 * 1024**2
    _no_part(small.runs)
    assert small.containers() == []


def test_SC_06_no_space_for_a_transcript(small: Rig) -> None:
    loud = {"run": WAIT + "head -c 600000 /dev/urandom | base64"}
    process = small.start("explore", small.pack(steps=(loud, *SUBMIT), defaults={"disk": "8m"}))
    attempt = small.runs / "scripted__tiny__none__none__bc37b7/attempt-001"
    until((attempt / "out/here").exists)
    filler = _fill(small.runs, 4096)
    (attempt / "out/go").touch()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75, err.decode()
    assert b"No space left on device" in err
    assert b"Traceback" not in err
    assert not (attempt / "candidate/submission.json").exists()
    assert events(attempt)[-1]["data"]["fact"] == "disk_full"
    _no_part(small.runs)
    filler.unlink()
    assert small.containers() == []


def test_SC_06_no_space_to_begin_with(small: Rig) -> None:
    pack = small.pack(defaults={"disk": "8m"})
    attempt = small.explore(pack)
    before = snapshot(attempt)
    for leave in (0, 8192, 128 * 1024, 12 * 1024**2):
        filler = _fill(small.runs, leave)
        for words in (("explore", pack), ("replay", attempt)):
            done = small.orch(*words)
            assert done.code == 75, (leave, words, done.err)
            assert "Traceback" not in done.err
        filler.unlink()
        _no_part(small.runs)
    after = snapshot(attempt)
    assert {name: after[name] for name in before} == before
    assert small.orch("status").code == 0


CRASHES_ON_CANDIDATES = """\
if [ -z "$ORCH_REFERENCE_RUN" ]; then exit 3; fi
echo '{"status": "scored", "metrics": {"score": 0.1}}' > /out/summary.json
"""


def test_one_control_serves_every_checkpoint_that_crashes_the_evaluator(rig: Rig) -> None:
    pack = rig.pack(scorer=CRASHES_ON_CANDIDATES, defaults={"disk": "8m"})
    words: list[str] = []
    for number in (10, 20):
        made = rig.root / f"made-{number}"
        made.mkdir()
        (made / "weights.txt").write_text(str(number))
        words += ["--checkpoint", f"{number}={made}"]
    assert rig.orch("score", pack, *words).code == 75
    replay = next(rig.runs.glob("checkpoint__*/attempt-001/replay-001"))
    assert rig.orch("score", replay).code == 75  # checkpoint-10 has crashed only once by now
    assert rig.orch("score", replay).code == 0
    aggregate = parse_json((replay / "score-003/summary.json").read_bytes())
    assert aggregate["status"] == "unscorable"
    assert [c["status"] for c in aggregate["checkpoints"]] == ["unscorable", "unscorable"]
    mounts = [json.loads(line) for line in (rig.runs / "campaign.jsonl").read_text().splitlines()]
    last_run = json.loads((replay / "score-003/plan.json").read_text())["run_id"]
    told = [
        m["data"]["checkpoint"]
        for m in mounts
        if m["event"] == "final_mounted" and m["data"]["run_id"] == last_run
    ]
    assert told == ["checkpoint-20", "control", "checkpoint-10"]
