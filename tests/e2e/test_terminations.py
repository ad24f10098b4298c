"""How an exploration ends: six reasons, each on the real engine, and what is left afterwards."""

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from orchestrator.sandbox import RUN_LABEL
from tests.e2e.rig import Rig, events, final, has, kill_group, last, until

CHANGE = {"run": "echo '# changed' >> run.sh"}
SUBMIT = {"run": "/opt/harness/submit.sh"}
WAIT = {"run": "echo begun > /out/begun; sleep 300"}


def only_attempt(rig: Rig) -> Path:
    """Wait for the one attempt's folder."""
    return until(lambda: next(iter(rig.runs.glob("*/attempt-001")), None))


def working(rig: Rig) -> Path:
    """Wait until the agent is at work, and return the attempt's folder."""
    attempt = only_attempt(rig)
    until((attempt / "out/begun").exists)
    return attempt


def ended(process: "subprocess.Popen[bytes]") -> tuple[int, str]:
    """Wait for a started command; return its exit code and what it said."""
    _, err = process.communicate(timeout=60)
    return process.returncode, err.decode()


def submission(attempt: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((attempt / "candidate/submission.json").read_text())
    return found


def test_agent_explicit_submit(rig: Rig) -> None:
    """The lifecycle says submit, though the container's own status is 137."""
    attempt = rig.explore(rig.pack(steps=(CHANGE, SUBMIT, WAIT)))
    captured = last(attempt, "captured")
    assert captured["reason"] == "agent_explicit_submit"
    assert captured["origin"] == submission(attempt)["origin"] == "agent"
    assert captured["exit"]["exit_code"] == 137
    assert captured["exit"]["stop_reason"] == "submitted"
    assert captured["exit"]["killed_by"] == "orchestrator"
    assert captured["exit"]["oom_killed"] is False
    assert final(attempt) == "submitted"
    assert (attempt / ".complete").is_file()
    rig.nothing_left()


def test_agent_explicit_no_candidate(rig: Rig) -> None:
    steps = (CHANGE, {"run": "/opt/harness/no_candidate.sh 'nothing helps'"}, WAIT)
    attempt = rig.explore(rig.pack(steps=steps))
    declined = last(attempt, "declined")
    assert declined["reason"] == "agent_explicit_no_candidate"
    assert declined["origin"] == "none"
    assert declined["message"] == "nothing helps"
    assert final(attempt) == "declined"
    assert not (attempt / "candidate/candidate.patch").exists()
    assert (attempt / ".complete").is_file()
    refused = rig.call("replay", attempt)
    assert refused.code == 64
    assert "no candidate" in refused.err
    rig.nothing_left()


def test_agent_early_exit_with_changes_is_captured(rig: Rig) -> None:
    attempt = rig.explore(rig.pack(steps=(CHANGE,)))
    captured = last(attempt, "captured")
    assert captured["reason"] == "agent_early_exit"
    assert captured["origin"] == "host_early_exit_capture"
    assert final(attempt) == "submitted"
    rig.nothing_left()


def test_agent_early_exit_without_changes_is_no_candidate(rig: Rig) -> None:
    attempt = rig.explore(rig.pack(steps=({"say": "I have no idea"},)))
    declined = last(attempt, "declined")
    assert declined["reason"] == "agent_early_exit"
    assert declined["message"] == "empty"
    assert (attempt / ".complete").is_file()
    rig.nothing_left()


def test_agent_early_exit_with_a_policy_breach_keeps_the_tree(rig: Rig) -> None:
    attempt = rig.explore(rig.pack(steps=({"run": "head -c 1000 /dev/urandom > big.npz"},)))
    declined = last(attempt, "declined")
    assert declined["reason"] == "agent_early_exit"
    assert declined["message"] == "policy"
    assert declined["violations"][0]["path"] == "big.npz"
    assert (attempt / "kept/workspace/big.npz").stat().st_size == 1000
    assert not (attempt / "candidate/submission.json").exists()
    rig.nothing_left()


def test_phase_deadline_captures_what_is_there(rig: Rig) -> None:
    attempt = rig.explore(rig.pack(steps=(CHANGE, WAIT), explore={"wall": "6s"}))
    captured = last(attempt, "captured")
    assert captured["reason"] == "phase_deadline"
    assert captured["origin"] == "host_deadline_capture"
    assert 6 - 2 <= captured["exit"]["duration_s"] <= 8 + 3
    assert final(attempt) == "submitted"
    rig.nothing_left()


def test_runtime_failure_is_the_machines_and_can_be_run_again(rig: Rig) -> None:
    pack = rig.pack(steps=(CHANGE, WAIT))
    process = rig.start("explore", pack)
    attempt = working(rig)
    run_id = events(attempt)[0]["id"]
    with rig.context() as ctx:
        for container in ctx.engine.find({RUN_LABEL: run_id}):
            container.remove()
    code, said = ended(process)
    assert code == 75, said
    failed = last(attempt, "infrastructure")
    assert failed["reason"] == "runtime_failure"
    assert failed["fact"] in {"container_lost", "killed_by_third_party"}
    assert "orch explore" in said
    assert "changed" in (attempt / "kept/workspace/run.sh").read_text()
    assert (attempt / ".complete").is_file()
    rig.nothing_left()
    again = rig.start("explore", pack)
    second = until(lambda: next(iter(rig.runs.glob("*/attempt-002")), None))
    until((second / "out/begun").exists)
    kill_group(again, signal.SIGINT)
    assert ended(again)[0] == 130


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_operator_interrupt_is_clean(rig: Rig, number: signal.Signals) -> None:
    process = rig.start("explore", rig.pack(steps=(CHANGE, WAIT)))
    attempt = working(rig)
    kill_group(process, number)
    code, said = ended(process)
    assert code == 130, said
    assert "stopping after 0:00:0" in said
    assert "terminal_operator" in said
    assert last(attempt, "operator")["reason"] == "operator_interrupt"
    assert (attempt / ".complete").is_file()
    rig.nothing_left()


def test_operator_interrupt_twice_leaves_the_container(rig: Rig) -> None:
    """The journal has no ending yet; the background, or the next command, ends it."""
    pack = rig.pack(steps=(CHANGE, WAIT))
    process = rig.start("explore", pack)
    attempt = working(rig)
    rig.leave(process)
    code, said = ended(process)
    assert code == 130, said
    assert "leaving it to the background" in said
    assert f"orch lifecycle {events(attempt)[0]['id'][:8]} tells how it gets on" in said
    rig.kill_for_good(process, attempt)
    assert final(attempt) == "noted"
    assert last(attempt, "noted")["audit"] == "left_running"
    assert not (attempt / ".complete").exists()
    (container,) = rig.containers()
    assert container.state().status == "running"
    assert container.labels[RUN_LABEL] == events(attempt)[0]["id"]
    assert rig.mounts()
    missing = rig.call("replay", attempt)
    assert missing.code == 64
    assert last(attempt, "operator")["reason"] == "operator_interrupt"
    assert (attempt / ".complete").is_file()
    rig.nothing_left()


def test_an_empty_candidate_is_refused_unless_it_is_meant(rig: Rig) -> None:
    steps = (SUBMIT, {"run": "/opt/harness/submit.sh --allow-empty"}, WAIT)
    attempt = rig.explore(rig.pack(steps=steps))
    refused = last(attempt, "submit_refused")
    assert "--allow-empty" in refused["message"]
    captured = last(attempt, "captured")
    assert captured["reason"] == "agent_explicit_submit"
    assert captured["empty"] is True
    told = (attempt / "transcript.jsonl").read_text()
    assert "nothing has changed" in told
    assert (attempt / "candidate/candidate.patch").read_bytes() == b""


def test_a_policy_breach_is_told_with_figures_and_can_be_mended(rig: Rig) -> None:
    steps = (
        CHANGE,
        {"run": "head -c 300000 /dev/urandom | base64 > noise.txt; seq 17 > rows.json"},
        {"run": "head -c 9 /dev/zero > blob; seq 16 > few.json"},
        SUBMIT,
        {"run": "rm noise.txt rows.json blob few.json"},
        SUBMIT,
        WAIT,
    )
    attempt = rig.explore(rig.pack(steps=steps))
    refused = last(attempt, "submit_refused")
    assert "policy" in refused["message"]
    lines = map(json.loads, (attempt / "transcript.jsonl").read_text().splitlines())
    told = next(line for line in lines if "policy" in line.get("output", ""))
    assert told["exit_code"] == 1
    size, *others = (row for row in told["output"].splitlines() if row.startswith("  "))
    assert re.fullmatch(r"  max_compressed: \d{6} bytes added, compressed; 262144 allowed", size)
    assert others == [
        "  rows.json: max_rows: 17 rows added, 16 allowed",
        "  blob: what is no text does not cross (refuse: binary)",
    ]
    assert submission(attempt)["changed"] == {"added": 0, "deleted": 0, "modified": 1}
    assert final(attempt) == "submitted"


def test_a_stop_before_anything_began_registers_nothing(rig: Rig) -> None:
    """A stop that comes while the plan is made leaves no attempt behind."""
    pack = rig.pack(steps=(CHANGE, WAIT))
    process = rig.start("explore", pack)
    until(lambda: (rig.runs / "keys").exists() or process.poll() is not None)
    kill_group(process, signal.SIGINT)
    code, said = ended(process)
    assert code == 130, said
    for attempt in rig.runs.glob("*/attempt-*"):
        assert has(attempt, "operator")
        assert (attempt / ".complete").is_file()
    rig.nothing_left()


def test_an_accepted_agent_reads_what_does_not_cross(rig: Rig) -> None:
    steps = ({"run": "echo '# x' >> run.sh; mkfifo pipe"}, {"run": "/opt/harness/submit.sh"})
    attempt = rig.explore(rig.pack(steps=steps))
    assert last(attempt, "captured")["reason"] == "agent_explicit_submit"
    said = (attempt / "transcript.jsonl").read_text()
    assert "1 entries of the workspace do not cross" in said
    assert '\\"path\\": \\"pipe\\", \\"reason\\": \\"special_file\\"' in said.replace("\\\\", "\\")
    listed = json.loads((attempt / "candidate" / "submission.json").read_text())["left_out"]
    assert listed == [{"path": "pipe", "reason": "special_file"}]


def test_submissions_without_end_are_judged_now_and_then(rig: Rig) -> None:
    many = "for i in $(seq 22); do /opt/harness/submit.sh; done"
    steps = ({"run": many}, {"run": "echo '# x' >> run.sh"})
    attempt = rig.explore(rig.pack(steps=steps, explore={"wall": "5m", "command_wall": "4m"}))
    assert len([e for e in events(attempt) if e["event"] == "submit_refused"]) == 20
    assert "judged once in 10 s" in (attempt / "transcript.jsonl").read_text()
    assert last(attempt, "captured")["origin"] == "host_early_exit_capture"
