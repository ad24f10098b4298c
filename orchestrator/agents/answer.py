"""An agent that asks: each question of the task a few times, every time in a fresh conversation.

For tasks with ``interface: answer``. What the model answers is written down as it came, and handed
in; what becomes of code in it is the formal replay's business, and nothing is run here.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import override

from orchestrator.agents import loop
from orchestrator.agents.loop import next_message
from orchestrator.domain.interface import AnswerSpec, Interface
from orchestrator.domain.model import Dialect
from orchestrator.errors import TaskPackError, UsageError
from orchestrator.ports import Agent, AgentSession
from orchestrator.storage.pack import Pack

FOLDER = "answers"
TIMES = f"{FOLDER}/times.json"
MAX_ANSWER = 64 * 1024
"""Bytes of an answer that are kept."""
_SUBMIT = "/opt/harness/submit.sh --allow-empty"


@dataclass(frozen=True)
class AnswerAgent(Agent):
    """Asks every case as often as the task says, then submits what was answered."""

    pack: Pack

    def __post_init__(self) -> None:
        if self.pack.spec.answer is None:
            raise UsageError(
                f"task {self.pack.spec.name!r} asks no questions, and this agent does nothing else",
                remedy="choose another --agent",
            )
        questions(self.pack, self.pack.spec.answer)

    @property
    @override
    def name(self) -> str:
        return "answer"

    @property
    @override
    def digest(self) -> str:
        parts = (Path(__file__), Path(loop.__file__))
        return "sha256:" + hashlib.sha256(b"".join(map(Path.read_bytes, parts))).hexdigest()

    @property
    @override
    def interactive(self) -> bool:
        return False

    @property
    @override
    def interface(self) -> Interface:
        return Interface.ANSWER

    @property
    @override
    def dialect(self) -> Dialect | None:
        return Dialect.CHAT

    @override
    def run(self, session: AgentSession) -> None:
        spec = self.pack.spec.answer
        assert spec is not None  # noqa: S101 - see __post_init__
        answers: dict[str, str] = {}
        times: dict[str, dict[str, float]] = {}
        asked = questions(self.pack, spec)
        # Round by round, so that what ends the exploration early takes from every case alike.
        for number in range(1, spec.repeats + 1):
            for case, question in asked.items():
                found = _ask(session, question)
                if session.stopping.is_set():
                    return
                if found is None:
                    session.note("unanswered", case=case, answer=number)
                    continue
                text, seconds = found
                answers[f"{FOLDER}/{case}/{number}.md"] = text
                times.setdefault(case, {})[str(number)] = seconds
                session.put({**answers, TIMES: json.dumps(times, indent=1) + "\n"})
                size = len(text.encode())
                session.note("answer", case=case, answer=number, seconds=seconds, size=size)
        if answers:
            session.execute(_SUBMIT)


def questions(pack: Pack, spec: AnswerSpec) -> Mapping[str, str]:
    """Read the question of each case.

    Raises:
        TaskPackError: one is no text.
    """
    found = {}
    for case, path in spec.cases.items():
        try:
            found[case] = (pack.folder / path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as fault:
            raise TaskPackError(
                f"answer.cases.{case}: {path}: {fault}", remedy="write the question as UTF-8 text"
            ) from fault
    return found


def _ask(session: AgentSession, question: str) -> tuple[str, float] | None:
    """Ask one question in a conversation of its own; return the answer and how long it took.

    The time, in seconds of the host's clock, is that of the request which was answered.
    """
    seconds = 0.0

    def timed(body: Mapping[str, Any]) -> Mapping[str, Any]:
        nonlocal seconds
        began = session.time_left()
        answer = session.ask(body)
        seconds = round(began - session.time_left(), 3)
        return answer

    messages: list[Mapping[str, Any]] = [
        {"role": "system", "content": session.instruction},
        {"role": "user", "content": question},
    ]
    message = next_message(session, messages, [], ask=timed)
    if message is None:
        return None
    text = kept(message.get("content"))
    session.say(text)
    return text, seconds


def kept(content: object) -> str:
    """Make of an answer what is written down: text that UTF-8 can hold, of bounded size."""
    text = content if isinstance(content, str) else "" if content is None else json.dumps(content)
    data = text.encode("utf-8", "backslashreplace")[:MAX_ANSWER]
    return data.decode("utf-8", "ignore")
