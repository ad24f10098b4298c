"""Whatever an agent does in its container, the exploration ends in one of six ways."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.rig import SUBMIT, Rig, events, final, last

CHANGE = {"run": "echo '# changed' >> run.sh"}
HAND_IN = {"run": "/opt/harness/submit.sh"}

JUNK = """\
cd /run/orch && python3 - <<'PY'
import json, os, socket
ok = {"id": "x", "action": "no_candidate", "reason": "forged"}
os.symlink("/etc/passwd", "request-a1.json")
os.symlink("request-a1.json", "request-a2.json")
os.mkfifo("request-a3.json")
os.mkdir("request-a4.json")
socket.socket(socket.AF_UNIX).bind("request-a5.json")
os.symlink("/", "link")
junk = {
    "b1": b" " * (1 << 20),
    "b2": b"{not json",
    "b3": b"[" * 60000,
    "b4": b'{"id": "x", "id": "y", "action": "no_candidate"}',
    "b5": b'{"id": "x", "action": "no_candidate", "reason": "' + bytes([92]) + b'ud800"}',
    "b6": bytes([255, 254]),
    "b7": json.dumps({**ok, "extra": 1}).encode(),
    "b8": json.dumps({**ok, "id": "../../../x"}).encode(),
    "b9": json.dumps({**ok, "action": "delete"}).encode(),
    "c1": b"9" * 60000,
    "c2": b"",
    "c3": json.dumps({**ok, "reason": "r" * 9000}).encode(),
    "c4": b"null",
}
for name, data in junk.items():
    open(f"request-{name}.json", "wb").write(data)
open("request-d1.json" + chr(10), "w").close()
print("planted")
PY
"""
FILL = """\
for at in /tmp /dev/shm /home/agent /out; do
  for n in 1 2 3; do head -c 20M /dev/zero > $at/full$n; done
done
"""
MEMORY = "python3 -c 'x = bytearray(1 << 30); x[:] = b\"1\" * (1 << 30)'; echo code $?"
LOUD = "head -c 50000000 /dev/zero; head -c 1000000 /dev/urandom >&2"
FORKS = """\
python3 -c '
import os, time
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(600)
'
"""


def _outputs(attempt: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (attempt / "transcript.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == "output"]


@pytest.fixture(scope="module")
def survived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An attempt that abused everything it could reach and then submitted."""
    rig = Rig(tmp_path_factory.mktemp("agent"))
    abuses = ({"run": text} for text in (JUNK, MEMORY, FILL, LOUD, "kill -9 -1", "echo alive"))
    return rig.explore(rig.pack(steps=(*abuses, *SUBMIT)))


def test_an_abused_exploration_still_takes_the_submission(survived: Path) -> None:
    assert final(survived) == "submitted"
    captured = last(survived, "captured")
    assert (captured["reason"], captured["origin"]) == ("agent_explicit_submit", "agent")
    assert (survived / ".complete").is_file()


def test_requests_that_are_none_are_passed_over(survived: Path) -> None:
    assert "planted" in _outputs(survived)[0]["output"]
    assert not [e for e in events(survived) if e["event"] in {"declined", "submit_refused"}]


def test_its_own_memory_is_its_own_doing(survived: Path) -> None:
    assert "code 137" in _outputs(survived)[1]["output"]
    captured = last(survived, "captured")
    assert captured["exit"]["oom_killed"] is True
    assert captured["host_facts"] == []


def test_a_loud_command_is_cut_off_in_the_transcript(survived: Path) -> None:
    loud = _outputs(survived)[3]
    assert loud["truncated"] is True
    assert (survived / "transcript.jsonl").stat().st_size < 20 * 1024**2


def test_killing_everything_ends_only_what_it_may_kill(survived: Path) -> None:
    assert _outputs(survived)[5]["output"] == "alive\n"


def test_a_flood_of_requests_costs_the_agent_its_own_submission(rig: Rig) -> None:
    """The control volume is full, so submit.sh fails; the host then captures what is there."""
    flood = "cd /run/orch; for n in $(seq 100000); do : > request-$n.json || break; done"
    attempt = rig.explore(rig.pack(steps=(CHANGE, {"run": flood}, HAND_IN)))
    assert final(attempt) == "submitted"
    assert last(attempt, "captured")["reason"] == "agent_early_exit"
    assert last(attempt, "captured")["origin"] == "host_early_exit_capture"
    assert "No space left on device" in _outputs(attempt)[2]["output"]


def test_a_fork_bomb_ends_with_its_command(rig: Rig) -> None:
    bomb = {"run": FORKS, "timeout": "2s"}
    attempt = rig.explore(rig.pack(steps=(CHANGE, bomb, {"run": "echo after"}, HAND_IN)))
    assert final(attempt) == "submitted"
    noted = last(attempt, "noted")
    assert noted["audit"] == "command_limit"
    assert _outputs(attempt)[1]["timed_out"] is True
    assert _outputs(attempt)[2]["output"] == "after\n"
    assert last(attempt, "captured")["host_facts"] == []


def test_a_full_workspace_is_refused_by_the_policy_and_kept(rig: Rig) -> None:
    fill = {"run": "for n in 1 2 3; do head -c 6M /dev/urandom > f$n; done"}
    attempt = rig.explore(rig.pack(steps=(fill, HAND_IN), defaults={"disk": "12m"}))
    assert final(attempt) == "declined"
    assert "max_compressed" in last(attempt, "submit_refused")["message"]
    assert last(attempt, "declined")["message"] == "policy"
    assert (attempt / "kept/workspace/f1").stat().st_size == 6 * 1024**2
