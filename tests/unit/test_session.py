"""An agent's hands: what of its doings is shown to whoever looks on."""

import threading
from pathlib import Path
from unittest.mock import Mock, patch

from orchestrator.adapters.system_clock import SystemClock
from orchestrator.evidence import session as session_module
from orchestrator.evidence.session import ContainerSession
from orchestrator.evidence.transcript import Transcript


def test_an_agent_that_never_falls_silent_fills_no_log(tmp_path: Path) -> None:
    aloud: list[str] = []
    session = ContainerSession(
        container=Mock(),
        clock=SystemClock(),
        transcript=Transcript(tmp_path / "transcript.jsonl", SystemClock()),
        text="do it",
        user=(1000, 1000),
        env={},
        deadline_ns=0,
        command_wall=1.0,
        stop=threading.Event(),
        on_leftover=Mock(),
        say_aloud=aloud.append,
        on_note=Mock(),
    )
    with patch.object(session_module, "MOST_ALOUD", 3):
        for number in range(10):
            session.say(f"line {number}")
    session.transcript.close()
    assert aloud[:3] == ["line 0", "line 1", "line 2"]
    assert aloud[3:] == ["(the agent goes on; no more of it is shown here)"]
