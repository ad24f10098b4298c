"""An agent's hands: what of its doings is shown to whoever looks on."""

import json
import threading
from pathlib import Path
from unittest.mock import Mock, patch

import pytest

from orchestrator.adapters.system_clock import SystemClock
from orchestrator.domain.container import ExecResult
from orchestrator.evidence import session as session_module
from orchestrator.evidence.session import ContainerSession
from orchestrator.evidence.transcript import Transcript


def session_in(folder: Path, container: Mock, aloud: list[str]) -> ContainerSession:
    return ContainerSession(
        container=container,
        clock=SystemClock(),
        transcript=Transcript(folder / "transcript.jsonl", SystemClock()),
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


def test_an_agent_that_never_falls_silent_fills_no_log(tmp_path: Path) -> None:
    aloud: list[str] = []
    session = session_in(tmp_path, Mock(), aloud)
    with patch.object(session_module, "MOST_ALOUD", 3):
        for number in range(10):
            session.say(f"line {number}")
    session.transcript.close()
    assert aloud[:3] == ["line 0", "line 1", "line 2"]
    assert aloud[3:] == ["(the agent goes on; no more of it is shown here)"]


@pytest.mark.parametrize(
    ("code", "over", "said"),
    [
        (137, True, "  orch has ended the container, 0.5 s  sent"),
        (137, False, "  exit 137, 0.5 s  sent"),
        (1, True, "  exit 1, 0.5 s  sent"),
    ],
)
def test_a_submission_that_ends_its_container_is_no_error_to_who_looks_on(
    tmp_path: Path, code: int, *, over: bool, said: str
) -> None:
    def killed(*_: object, **__: object) -> ExecResult:
        if over:
            session.stop.set()
        return ExecResult(code, b"sent\n", truncated=False, timed_out=False, seconds=0.5)

    aloud: list[str] = []
    session = session_in(tmp_path, Mock(execute=killed), aloud)
    session.execute("/opt/harness/submit.sh")
    session.transcript.close()
    assert aloud == ["$ /opt/harness/submit.sh", said]
    recorded = (tmp_path / "transcript.jsonl").read_text().splitlines()[-1]
    assert json.loads(recorded)["exit_code"] == code


def test_a_line_that_is_shown_in_part_ends_in_dots(tmp_path: Path) -> None:
    aloud: list[str] = []
    session = session_in(tmp_path, Mock(), aloud)
    for text in ("one line", "value() {\n  true\n}", "x" * 300):
        session.say(text)
    session.transcript.close()
    assert aloud == ["one line", "value() { ...", "x" * 196 + " ..."]
