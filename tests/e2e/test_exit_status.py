"""What is made of how a container ended: acceptance cases EX."""

import json
from pathlib import Path
from typing import Any

from tests.e2e.rig import PUBLISH, Rig, final, last, snapshot

EAT_MEMORY = """\
python3 -c 'a = bytearray(1)
while True: a += bytes(1 << 20)'
exit_code=$?
sleep 1
exit $exit_code
"""
IGNORE_TERM = PUBLISH + "publish 10 0.1\ntrap '' TERM\nsleep 1000\n"
LEAVE_CHILDREN = "setsid sleep 601 & sleep 602"
FILL_THE_PIDS = "while :; do setsid sleep 603 & done; sleep 604"
LOOK = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done"


def commands(attempt: Path) -> list[dict[str, Any]]:
    """Read what each command of the agent's came to."""
    lines = map(json.loads, (attempt / "transcript.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == "output"]


def test_EX_02_a_child_killed_by_the_containers_own_limit_is_behaviour(rig: Rig) -> None:
    replay = rig.run(EAT_MEMORY, defaults={"memory": "64m"})
    seen = last(replay, "exited")
    assert seen["exit"]["exit_code"] == 137
    assert seen["exit"]["oom_killed"] is True
    # The counters go with the container, which on a busy host may be before they are read.
    assert seen["exit"]["memory_limit_reached"] is not False
    assert seen["exit"]["stop_reason"] == "exited"
    assert seen["exit"]["killed_by"] == "nobody"
    assert seen["host_facts"] == []
    assert final(replay) == "no_checkpoint"
    again = rig.call("replay", replay.parent)
    assert again.code == 64
    rig.nothing_left()


def test_EX_04_our_own_deadline_is_not_taken_for_anothers_kill(rig: Rig) -> None:
    replay = rig.run(IGNORE_TERM, replay={"wall": "5s"})
    seen = last(replay, "exited")["exit"]
    assert seen["stop_reason"] == "deadline"
    assert seen["killed_by"] == "orchestrator"
    assert seen["oom_killed"] is False
    assert seen["exit_code"] == 137
    assert 5 - 2 <= seen["duration_s"] <= 5 + 3  # making the container takes its share
    assert last(replay, "validated")["accepted"][0]["name"] == "checkpoint-10"
    rig.nothing_left()


def test_EX_07_exit_75_of_the_candidate_is_behaviour_and_no_free_retry(rig: Rig) -> None:
    attempt = rig.enter(rig.pack("exit 75\n"))
    first = rig.call("replay", attempt)
    assert first.code == 0, first.err
    replay = attempt / "replay-001"
    assert last(replay, "exited")["exit"]["exit_code"] == 75
    assert final(replay) == "no_checkpoint"
    before = snapshot(attempt)
    second = rig.call("replay", attempt)
    assert second.code == 64
    assert "finished" in second.err
    assert snapshot(attempt) == before


def test_EX_10_nothing_of_a_command_outlives_its_limit(rig: Rig) -> None:
    steps = (
        {"run": LEAVE_CHILDREN, "timeout": "2s"},
        {"run": LOOK},
        {"run": FILL_THE_PIDS, "timeout": "2s"},
        {"run": LOOK},
    )
    attempt = rig.explore(rig.pack(steps=steps))
    left, then, filled, last_look = commands(attempt)
    for cut in (left, filled):
        assert cut["timed_out"] is True
        assert cut["exit_code"] is None
    for look in (then, last_look):
        assert look["exit_code"] == 0
        assert look["seconds"] <= 20
        assert "sleep infinity" in look["output"]
        assert "sleep 60" not in look["output"]
    noted = [last(attempt, "noted")]
    assert noted[0]["audit"] == "command_limit"
    assert len(noted[0]["cleared_pids"]) > 30
    assert final(attempt) == "declined"
    assert last(attempt, "declined")["reason"] == "agent_early_exit"
