"""A lease of an agent's process on a file: it stops who opens the file, and nothing else."""

import json
from pathlib import Path

import pytest

from tests.e2e.rig import Rig, final, last

HOLD = """\
cat > /tmp/hold.py <<'PY'
import fcntl, os, signal, sys, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
held = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("leased", flush=True)
time.sleep(300)
PY
setsid python3 /tmp/hold.py {} > /tmp/said 2>&1 &
until grep -q . /tmp/said; do sleep 0.1; done
cat /tmp/said
"""


def _said(attempt: Path) -> str:
    lines = map(json.loads, (attempt / "transcript.jsonl").read_text().splitlines())
    return "".join(line["output"] for line in lines if line["kind"] == "output")


def test_a_leased_request_is_passed_over(rig: Rig) -> None:
    held = HOLD.format("/run/orch/request-aa.json") + "sleep 1; echo more >> run.sh"
    attempt = rig.explore(rig.pack(steps=({"run": held}, {"run": "/opt/harness/submit.sh"})))
    assert "leased" in _said(attempt)
    assert last(attempt, "captured")["reason"] == "agent_explicit_submit"


@pytest.mark.parametrize("refused", [False, True])
def test_a_leased_file_of_the_workspace_ends_nothing_in_the_machines_name(
    rig: Rig, *, refused: bool
) -> None:
    hand_in = [{"run": "/opt/harness/submit.sh"}] if refused else []
    held = {"run": HOLD.format("/workspace/held.txt")}
    attempt = rig.explore(rig.pack(steps=(held, *hand_in)))
    assert ("is held by a lease" in _said(attempt)) == refused
    assert final(attempt) == "submitted"
    captured = last(attempt, "captured")
    assert captured["reason"] == "agent_early_exit"
    assert captured["contested"] == ["captured_after_kill"]
    manifest = json.loads((attempt / "candidate" / "manifest.json").read_text())
    assert "held.txt" in [entry["path"] for entry in manifest["entries"]]
