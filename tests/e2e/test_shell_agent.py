"""A person at a terminal: the shell agent over a real pseudo-terminal."""

import os
import pty
import subprocess
import sys
from pathlib import Path

from receipts.verify import verify
from tests.e2e.rig import Rig, last


def typed(rig: Rig, pack: Path, text: str) -> tuple[int, str]:
    """Explore by hand, type ``text`` at the prompt, and read the terminal to the end."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator", "explore", str(pack), "--agent", "shell"],
        env={**os.environ, **rig.variables, "TERM": "dumb"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    seen = bytearray()
    waiting = True
    while True:
        try:
            data = os.read(ours, 4096)
        except OSError:  # the last writer has closed its end
            break
        if not data:
            break
        seen += data
        if waiting and b"/workspace$" in seen:
            os.write(ours, text.encode())
            waiting = False
    os.close(ours)
    return process.wait(timeout=30), seen.decode(errors="backslashreplace")


def test_a_person_explores_and_submits(rig: Rig) -> None:
    code, seen = typed(rig, rig.pack(), "echo '# by hand' >> run.sh; /opt/harness/submit.sh\n")
    assert code == 0, seen
    assert "Do something.\r\n" in seen
    (attempt,) = rig.runs.glob("shell__*/attempt-001")
    assert last(attempt, "captured")["reason"] == "agent_explicit_submit"
    assert not verify(attempt).faults
    rig.replay(attempt)


def test_without_a_terminal_nothing_is_registered(rig: Rig) -> None:
    done = rig.orch("explore", rig.pack(), "--agent", "shell")
    assert done.code == 64
    assert "terminal" in done.err
    assert not list(rig.runs.glob("*/attempt-*"))
