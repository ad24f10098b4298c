"""When a replay may start, what it is given, and what its ending is booked as."""

import json
import re
import shutil
import signal
import stat
from pathlib import Path
from typing import Any

import pytest

from orchestrator.storage.campaign import CampaignEvent, read_campaign
from tests.e2e.rig import (
    FINAL_TOKEN,
    NOTE,
    PUBLISH,
    THREE,
    Rig,
    events,
    final,
    has,
    kill_group,
    last,
    snapshot,
    until,
)

ONE = PUBLISH + "publish 10 0.5\n"
WAIT = PUBLISH + "publish 10 0.5\nsleep 300\n"
LOOK = """\
env | sort
echo "networks: $(ls /sys/class/net)"
(cd /assets && find . -type f | sort)
ls -a /tmp /out "$HOME" /run/orch /logs/agent 2>&1
cat /proc/1/cmdline | tr '\\0' ' '; echo
cat /proc/$PPID/cmdline | tr '\\0' ' '; echo
"""


def plan_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "plan.json").read_text())
    return found


def damage(folder: Path) -> None:
    """Change a sealed asset on disk."""
    weights = folder / "weights.txt"
    folder.chmod(stat.S_IRWXU)
    weights.chmod(stat.S_IRWXU)
    weights.write_text("changed\n")


def test_run_sh_sees_exactly_what_it_should(rig: Rig) -> None:
    marks = (
        {"run": "for d in /tmp /out $HOME /workspace/.cache; do mkdir -p $d; touch $d/mark; done"},
        {"run": "echo '# changed' >> run.sh"},
        {"run": "/opt/harness/submit.sh"},
    )
    rig.variables["ORCH_TEST_KEY"] = "sk-test-1234"
    rig.variables["OPENAI_API_KEY"] = "sk-test-1234"
    rig.replay(rig.explore(rig.pack(LOOK, steps=marks)), "--through", "validate")
    replay = next(rig.runs.glob("*/attempt-001/replay-001"))
    seen = (replay / "logs/stdout.log").read_text()
    names = {line.partition("=")[0] for line in seen.splitlines() if re.match(r"\w+=", line)}
    assert {"OUTPUT_DIR", "MAX_WALL_TIME_SECONDS", "DEADLINE_RESERVE_SECONDS"} <= names
    assert not [name for name in names if name.startswith("ORCH") or "KEY" in name]
    assert "sk-test" not in seen
    assert "MAX_WALL_TIME_SECONDS=57\n" in seen
    assert "DEADLINE_RESERVE_SECONDS=3\n" in seen
    assert "OUTPUT_DIR=/out\n" in seen
    assert "networks: lo\n" in seen
    assert "./models/start/weights.txt\n" in seen
    assert "./data/train/weights.txt\n" in seen
    assert "data/final" not in seen
    assert FINAL_TOKEN not in seen
    assert "mark" not in seen
    assert "bash /workspace/run.sh" in seen
    for line in ("/run/orch", "/logs/agent"):
        assert f"'{line}': No such file" in seen or f"{line}:\n." in seen


def test_SC_08_a_finished_replay_is_refused_and_nothing_changes(rig: Rig) -> None:
    attempt = rig.enter(rig.pack(THREE))
    rig.replay(attempt)
    before = snapshot(attempt)
    campaign = (rig.runs / "campaign.jsonl").read_bytes()
    refused = rig.call("replay", attempt)
    assert refused.code == 64
    assert "--repeats" in refused.err
    assert snapshot(attempt) == before
    assert (rig.runs / "campaign.jsonl").read_bytes() == campaign


def test_SC_08_after_the_machines_failure_there_is_a_new_number(rig: Rig) -> None:
    attempt = rig.enter(rig.pack(WAIT))
    process = rig.start("replay", attempt)
    first = attempt / "replay-001"
    until((first / "out/checkpoints/checkpoint-10/weights.txt").exists)
    for container in rig.containers():
        container.remove()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 75, said
    assert b"orch replay" in said
    assert final(first) == "infrastructure"
    assert (first / ".complete").exists()
    before = snapshot(first)
    again = rig.start("replay", attempt)
    second = attempt / "replay-002"
    until((second / "out/checkpoints/checkpoint-10/weights.txt").exists)
    kill_group(again, signal.SIGINT)
    again.communicate(timeout=60)
    assert again.returncode == 130
    assert snapshot(first) == before
    rig.nothing_left()


def test_after_a_persons_stop_a_reason_is_asked_for_and_kept(rig: Rig) -> None:
    attempt = rig.enter(rig.pack("sleep 0.5; touch /out/begun; sleep 300\n"))
    process = rig.start("replay", attempt)
    until((attempt / "replay-001/out/begun").exists)
    kill_group(process, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert b"terminal_operator" in said
    assert b"of replay" in said
    assert final(attempt / "replay-001") == "operator"
    assert last(attempt / "replay-001", "exited")["exit"]["stop_reason"] == "operator"
    rig.nothing_left()
    refused = rig.call("replay", attempt)
    assert refused.code == 64
    assert "--again" in refused.err
    again = rig.start("replay", attempt, "--again", "wrong machine")
    until((attempt / "replay-002/out/begun").exists)
    kill_group(again, signal.SIGINT)
    again.communicate(timeout=60)
    assert plan_of(attempt / "replay-002")["again"] == "wrong machine"
    records = read_campaign(rig.runs / "campaign.jsonl").records
    registered = [r for r in records if r.event is CampaignEvent.REPLAY_REGISTERED]
    assert [r.data["again"] for r in registered] == [None, "wrong machine"]


def test_repeats_declare_seeded_members_before_the_first_starts(rig: Rig) -> None:
    run = PUBLISH + 'publish 10 "0.$SEED"\n'
    attempt = rig.enter(rig.pack(run, replay={"seed_variable": "SEED"}))
    dry = ("replay", attempt, "--repeats", "2", "--dry-run", "--json")
    assert rig.call(*dry).json()["plan"]["series"] == "seed-1"
    done = rig.call("replay", attempt, "--repeats", "2")
    assert done.code == 0, done.err
    assert rig.call(*dry).code == 64
    first, second = sorted(attempt.glob("replay-*"))
    assert [plan_of(run)["series"] for run in (first, second)] == ["seed-1", "seed-2"]
    values = [json.loads((run / "score-001/summary.json").read_text()) for run in (first, second)]
    assert [found["best"]["value"] for found in values] == [0.1, 0.2]
    records = read_campaign(rig.runs / "campaign.jsonl").records
    kinds = [record.event for record in records]
    declared = kinds.index(CampaignEvent.SERIES_DECLARED)
    assert records[declared].data["count"] == 2
    assert declared < kinds.index(CampaignEvent.REPLAY_REGISTERED)
    other = rig.call("replay", attempt, "--repeats", "3")
    assert other.code == 64
    assert "2 seeded replays declared" in other.err
    same = rig.call("replay", attempt, "--repeats", "2")
    assert same.code == 64
    rig.nothing_left()


def test_through_validate_stops_before_the_score(rig: Rig) -> None:
    attempt = rig.enter(rig.pack(ONE))
    replay = rig.replay(attempt, "--through", "validate")
    assert final(replay) == "validated"
    assert not list(replay.glob("score-*"))
    scored = rig.call("score", replay)
    assert scored.code == 0, scored.err
    assert final(replay / "score-001") == "scored"


@pytest.mark.parametrize("command", ["explore", "replay"])
def test_a_dry_run_writes_nothing(rig: Rig, command: str) -> None:
    pack = rig.pack(ONE)
    attempt = rig.enter(pack)
    before = snapshot(rig.runs)
    done = rig.call(command, pack if command == "explore" else attempt, "--dry-run", "--json")
    assert done.code == 0, done.err
    container = done.json()["container"]
    assert container["network"] == "none"
    targets = {mount["target"] for mount in container["mounts"]}
    assert "/assets/models/start" in targets
    assert "/assets/data/final" not in targets
    assert snapshot(rig.runs) == before
    rig.nothing_left()


def test_no_checkpoint_is_behaviour(rig: Rig) -> None:
    replay = rig.run("exit 0\n")
    assert final(replay) == "no_checkpoint"
    assert (replay / ".complete").exists()
    rig.nothing_left()


def test_none_valid_is_behaviour(rig: Rig) -> None:
    attempt = rig.enter(
        rig.pack("cd /out; mkdir -p checkpoints/checkpoint-1; >checkpoints/checkpoint-1/x\n")
    )
    done = rig.call("replay", attempt, "--fail-on-behavior")
    assert done.code == 1, done.err
    replay = attempt / "replay-001"
    assert final(replay) == "none_valid"
    artifacts = json.loads((replay / "artifacts.json").read_text())["artifacts"]
    assert [row["reason"] for row in artifacts] == ["missing_weights"]
    assert not list(replay.glob("score-*"))


def test_a_patch_that_changed_on_disk_is_the_machines_doing(rig: Rig) -> None:
    attempt = rig.enter(rig.pack(ONE))
    patch = attempt / "candidate/candidate.patch"
    patch.write_text(patch.read_text().replace("+changed", "+forged!"))
    done = rig.call("replay", attempt)
    assert done.code == 75
    replay = attempt / "replay-001"
    assert final(replay) == "infrastructure"
    assert "run_started" not in [event["event"] for event in events(replay)]
    assert (replay / ".complete").exists()
    assert rig.containers() == []
    assert rig.mounts() == []


def test_a_changed_asset_stops_everything_before_the_start(rig: Rig) -> None:
    attempt = rig.enter(rig.pack(ONE))
    source = Path(plan_of(attempt)["materials"]["models/start"]["source"])
    damage(source)
    done = rig.call("replay", attempt)
    assert done.code == 75
    assert "models/start" in done.err
    assert "orch task prepare" in done.err
    replay = attempt / "replay-001"
    assert final(replay) == "infrastructure"
    assert last(replay, "infrastructure")["fact"] == "asset_mismatch"
    gate = json.loads((replay / "gate.json").read_text())
    assert gate["passed"] is False
    assert "run_started" not in [event["event"] for event in events(replay)]
    rig.nothing_left()


def test_a_missing_asset_starts_nothing(rig: Rig) -> None:
    pack = rig.pack(ONE)
    attempt = rig.enter(pack)
    shutil.rmtree(Path(plan_of(attempt)["materials"]["data/train"]["source"]))
    before = snapshot(rig.runs)
    for command, target in (("replay", attempt), ("explore", pack)):
        done = rig.call(command, target)
        assert done.code == 75
        assert "data/train" in done.err
    after = snapshot(rig.runs)
    assert {name for name in after if name not in before} <= {"orch.log"}
    assert rig.containers() == []


def test_without_an_engine_the_command_says_how_to_start_one(rig: Rig) -> None:
    attempt = rig.enter(rig.pack(ONE))
    before = snapshot(rig.runs)
    rig.variables["DOCKER_HOST"] = "unix:///nonexistent"
    done = rig.orch("replay", attempt)
    assert done.code == 69
    assert "dockerd" in done.err or "systemctl" in done.err
    assert snapshot(rig.runs) == before


def test_a_good_patch_is_entered_and_a_bad_one_leaves_no_trace(rig: Rig) -> None:
    pack = rig.pack(ONE)
    patch = rig.root / "some.patch"
    patch.write_text(NOTE.replace("b/note.txt", "b/../escape.txt"))
    bad = rig.call("submit-patch", pack, patch)
    assert bad.code == 65
    assert not list(rig.runs.glob("*/attempt-*"))
    assert not (rig.runs / "campaign.jsonl").exists()
    patch.write_text(NOTE)
    good = rig.call("submit-patch", pack, patch, "--json")
    assert good.code == 0, good.err
    attempt = Path(good.json()[0]["path"])
    assert last(attempt, "captured")["origin"] == "operator_patch"
    assert (attempt / "candidate/candidate.patch").read_text() == NOTE
    rig.nothing_left()


def test_of_two_replays_at_once_one_begins(rig: Rig) -> None:
    attempt = rig.explore(rig.pack())
    racers = [rig.start("replay", attempt) for _ in range(2)]
    said = [racer.communicate(timeout=120)[1].decode() for racer in racers]
    assert sorted(racer.returncode for racer in racers) == [0, 64], said
    assert [path.name for path in sorted(attempt.glob("replay-*"))] == ["replay-001"]


def test_of_two_scorings_at_once_one_begins(rig: Rig) -> None:
    attempt = rig.explore(rig.pack())
    replay = rig.replay(attempt, "--through", "validate")
    racers = [rig.start("score", replay) for _ in range(2)]
    said = [racer.communicate(timeout=120)[1].decode() for racer in racers]
    assert sorted(racer.returncode for racer in racers) == [0, 64], said
    assert [path.name for path in sorted(replay.glob("score-*"))] == ["score-001"]


def test_disk_that_is_allocated_is_promised_no_more(rig: Rig) -> None:
    attempt = rig.explore(rig.pack(run="read -r _ < <(sleep 600)\n"))
    replay = attempt / "replay-001"
    with rig.context() as ctx, rig.start("replay", attempt) as running:
        until(lambda: has(replay, "run_started"))
        promised = [held.disk for held in ctx.ledger.held()]
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=60)
        assert running.returncode == 130
        assert not ctx.ledger.held()
    disk, control = 32 * 1024**2, 16 * 1024**2
    # Workspace and /out are allocated; the collected copy and the validators' output are to come.
    assert promised == [disk + control]
