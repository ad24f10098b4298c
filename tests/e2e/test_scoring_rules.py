"""Scoring is a job of its own: its failures are its own, and nothing that is finished is redone."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.domain.outcome import HostFact
from orchestrator.errors import StorageFullError
from orchestrator.pipeline import jobs
from receipts.verify import verify
from tests.e2e.rig import PUBLISH, SCORER, THREE, Rig, events, final, last, snapshot

ONE = PUBLISH + "publish 10 0.5\n"
CRASH = "exit 3\n"
CRASH_ON_CANDIDATE = (
    'if [ -z "$ORCH_REFERENCE_RUN" ]; then exit 3; fi\n'
    'echo \'{"status": "scored", "metrics": {"score": 0.1}}\' > /out/summary.json\n'
)


def without_scorings(replay: Path) -> dict[str, bytes]:
    """Read all files of a replay but those of its scorings."""
    return {name: data for name, data in snapshot(replay).items() if not name.startswith("score-")}


def aggregate(scoring: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((scoring / "summary.json").read_text())
    return found


def test_a_crash_is_the_scorings_own_failure_and_the_replay_is_untouched(rig: Rig) -> None:
    pack = rig.pack(ONE, scorer=CRASH)
    attempt = rig.enter(pack)
    done = rig.call("replay", attempt)
    assert done.code == 75
    assert "score_crashed: the evaluator crashed on checkpoint-10" in done.err
    assert str(attempt / "replay-001/score-001/logs/checkpoint-10") in done.err
    assert "orch score" in done.err
    replay = attempt / "replay-001"
    assert final(replay) == "validated"
    assert final(replay / "score-001") == "infrastructure"
    assert not (replay / "score-001/summary.json").exists()
    assert (replay / "score-001/.complete").exists()
    before = without_scorings(replay)
    (pack / "evaluator/score.sh").write_text(SCORER)
    again = rig.call("score", replay)
    assert again.code == 0, again.err
    assert final(replay / "score-002") == "scored"
    assert aggregate(replay / "score-002")["best"]["value"] == 0.5
    assert without_scorings(replay) == before
    assert [event["event"] for event in events(replay)].count("run_started") == 1
    rig.nothing_left()


def test_two_crashes_beside_a_control_that_passes_are_unscorable(rig: Rig) -> None:
    attempt = rig.enter(rig.pack(ONE, scorer=CRASH_ON_CANDIDATE))
    assert rig.call("replay", attempt).code == 75
    replay = attempt / "replay-001"
    second = rig.call("score", replay)
    assert second.code == 0, second.err
    assert final(replay / "score-002") == "unscorable"
    assert "2 numbered tries" in last(replay / "score-002", "unscorable")["reason"]
    assert aggregate(replay / "score-002")["status"] == "unscorable"
    assert aggregate(replay / "score-002")["best"] is None
    third = rig.call("score", replay)
    assert third.code == 64
    rig.nothing_left()


def test_a_control_that_fails_too_stays_the_machines(rig: Rig) -> None:
    attempt = rig.enter(rig.pack(ONE, scorer=CRASH))
    assert rig.call("replay", attempt).code == 75
    replay = attempt / "replay-001"
    assert rig.call("score", replay).code == 75
    assert final(replay / "score-002") == "infrastructure"


def test_a_corrected_evaluator_supersedes_by_reference(rig: Rig) -> None:
    pack = rig.pack(THREE)
    attempt = rig.enter(pack)
    replay = rig.replay(attempt)
    first = snapshot(replay / "score-001")
    refused = rig.call("score", replay)
    assert refused.code == 64
    corrected = SCORER.replace("value=$(cat", "value=0.9$(cut -c3-")
    (pack / "evaluator/score.sh").write_text(corrected)
    done = rig.call("score", replay)
    assert done.code == 0, done.err
    plan = json.loads((replay / "score-002/plan.json").read_text())
    assert plan["supersedes"] == 1
    assert aggregate(replay / "score-002")["best"]["value"] == 0.93
    assert snapshot(replay / "score-001") == first
    assert plan["relaxations"][-1].startswith("scored with another version of the task: pack:v1:")
    shown = rig.call("show", replay)
    assert "score-001" in shown.out
    assert "score-002" in shown.out
    assert "scored with another version of the task" in shown.out
    assert any("scored with another version" in note for note in verify(attempt).notes)
    rig.nothing_left()


def test_a_changed_task_scores_nothing(rig: Rig) -> None:
    pack = rig.pack(ONE)
    attempt = rig.enter(pack)
    with rig.context() as ctx:
        replay = rig.replay_in(ctx, attempt)
    task = pack / "task.yaml"
    task.write_text(task.read_text().replace("metric: score", "metric: another"))
    refused = rig.call("score", replay)
    assert refused.code == 65
    assert not list(replay.glob("score-*"))


def test_existing_checkpoints_are_scored_without_a_run(rig: Rig) -> None:
    pack = rig.pack(ONE)
    for progress, value in (("7", "0.25"), ("12", "0.75"), ("9", "")):
        folder = rig.root / f"made-{progress}"
        folder.mkdir()
        (folder / ("weights.txt" if value else "notes.txt")).write_text(value + "\n")
    (rig.root / "made-12").rename(rig.root / "elsewhere")
    (rig.root / "made-12").symlink_to("elsewhere")
    named = [f"--checkpoint={n}={rig.root / f'made-{n}'}" for n in ("7", "12", "9")]
    done = rig.call("score", pack, *named, "--json")
    assert done.code == 0, done.err
    replay = Path(done.json()[0]["path"])
    assert last(replay.parent, "captured")["origin"] == "operator_checkpoint"
    assert "run_started" not in [event["event"] for event in events(replay)]
    status = {
        row["name"]: row["status"]
        for row in json.loads((replay / "artifacts.json").read_text())["artifacts"]
    }
    assert status == {
        "checkpoint-12": "accepted",
        "checkpoint-9": "rejected",
        "checkpoint-7": "accepted",
    }
    assert aggregate(replay / "score-001")["best"]["checkpoint"] == "checkpoint-12"
    for run in (replay.parent, replay, replay / "score-001"):
        assert (run / ".complete").exists()
    rig.nothing_left()


def test_a_checkpoint_that_is_not_there_registers_nothing(rig: Rig) -> None:
    pack = rig.pack(ONE)
    for named in ("7=/nowhere", "x=/tmp", "7"):
        assert rig.call("score", pack, "--checkpoint", named).code == 64
    assert not list(rig.runs.glob("*/attempt-*"))


def test_a_disk_without_room_for_a_checkpoint_ends_the_replay_as_what_it_was(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack, made = rig.pack(ONE), rig.root / "entered"
    made.mkdir()

    def no_room(*_: object, **__: object) -> None:
        raise StorageFullError("no room for it")

    monkeypatch.setattr(jobs, "collect_one", no_room)
    assert rig.call("score", pack, f"--checkpoint=7={made}").code == 75
    (replay,) = rig.runs.glob("*/attempt-001/replay-001")
    assert last(replay, "infrastructure")["fact"] == HostFact.HOST_DISK_FULL
    rig.nothing_left()


def test_a_validator_may_have_an_image_of_its_own(rig: Rig) -> None:
    attempt = rig.explore(rig.pack(validate={"image": "debian"}))
    replay = rig.replay(attempt)
    receipts = {
        path.name[4:-5]: json.loads(base64.b64decode(json.loads(path.read_text())["payload"]))[
            "predicate"
        ]["image"]["reference"]
        for path in (replay / "receipts").iterdir()
    }
    assert receipts == {
        "gate": "orch/cpu-numpy:1",
        "replay": "orch/cpu-numpy:1",
        "validate": "orch/debian:1",
    }
    assert not verify(attempt).faults
