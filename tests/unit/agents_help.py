"""A session that remembers what an agent did with it."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from orchestrator.domain.container import ExecResult
from orchestrator.ports import AgentSession, ModelRefused, SessionModel


@dataclass
class Run:
    """One run of an agent's program: what it prints, and how it ends."""

    lines: tuple[str, ...] = ()
    exit_code: int | None = 0
    provider_failed: bool = False
    asks: bool = True


@dataclass
class ScriptedSession(AgentSession):
    """Plays ``runs`` to ``run_program`` and ``answers`` to ``ask``; keeps everything."""

    runs: list[Run] = field(default_factory=list)
    answers: list[Mapping[str, Any] | ModelRefused] = field(default_factory=list)
    effort: str = ""
    started: list[tuple[tuple[str, ...], Mapping[str, str]]] = field(default_factory=list)
    asked: list[Mapping[str, Any]] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    told: list[tuple[Any, ...]] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    failed: bool = False
    model_was_asked: bool = False
    ends_with: int = 0
    """The run of the program with which the exploration is over; 0 for none."""

    @property
    @override
    def instruction(self) -> str:
        return "do it"

    @property
    @override
    def stopping(self) -> threading.Event:
        return self.over

    @property
    @override
    def model(self) -> SessionModel:
        return SessionModel("m-1", self.effort, "http://127.0.0.1:8377")

    @property
    @override
    def program(self) -> tuple[str, ...]:
        return ("/opt/agent/program",)

    @override
    def time_left(self) -> float:
        return 630.0

    @override
    def execute(self, command: str, *, timeout: float | None = None) -> ExecResult:
        self.commands.append(command)
        return ExecResult(0, b"printed\n", truncated=False, timed_out=False, seconds=0.5)

    @override
    def run_program(
        self, argv: tuple[str, ...], env: Mapping[str, str], on_line: Callable[[str], None]
    ) -> ExecResult:
        self.started.append((argv, env))
        run = self.runs.pop(0)
        for line in run.lines:
            on_line(line)
        self.failed = run.provider_failed
        self.model_was_asked = self.model_was_asked or run.asks
        if len(self.started) == self.ends_with:
            self.over.set()
        return ExecResult(run.exit_code, b"", truncated=False, timed_out=False, seconds=1.0)

    @override
    def put(self, changed: Mapping[str, str]) -> None:
        self.told.append(("put", dict(changed)))

    @override
    def test(self, changed: Mapping[str, str]) -> ExecResult:
        self.told.append(("test", dict(changed)))
        return ExecResult(
            0, b"seed 42 digits acc 0.9\n", truncated=False, timed_out=False, seconds=2
        )

    @override
    def ask(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        self.asked.append({**body, "messages": list(body["messages"])})
        answer = self.answers.pop(0)
        if isinstance(answer, ModelRefused):
            raise answer
        return answer

    @override
    def model_asked(self) -> bool:
        return self.model_was_asked

    @override
    def provider_failed(self) -> bool:
        return self.failed

    @override
    def attach_terminal(self) -> int:
        raise NotImplementedError

    @override
    def say(self, text: str) -> None:
        self.told.append(("say", text))

    @override
    def think(self, text: str) -> None:
        self.told.append(("think", text))

    @override
    def call(self, tool: str, arguments: str) -> None:
        self.told.append(("call", tool, arguments))

    @override
    def output(self, text: str, exit_code: int | None = None) -> None:
        self.told.append(("output", text, exit_code))

    @override
    def note(self, what: str, **facts: Any) -> None:
        self.notes.append({"audit": what, **facts})
