"""The one way every agent acts: as the agent's user in the exploration's container."""

import hashlib
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from orchestrator.domain.container import ExecResult
from orchestrator.evidence.model_room import ModelRoom
from orchestrator.evidence.raw_stream import Lines, RawLog
from orchestrator.evidence.transcript import LineKind, Transcript
from orchestrator.evidence.trial import Trials
from orchestrator.ports import AgentSession, Clock, Container, SessionModel

_NS = 1_000_000_000
_CLEAR_WALL = 10.0
_ALOUD = 200
_CUT = " ..."
_KILLED = 137
MOST_ALOUD = 50_000
"""Lines of an exploration that are shown, and so logged: a program can print without end."""
_NO_MORE = "(the agent goes on; no more of it is shown here)"
_TERMINAL = ("bash", "-c", "cat /logs/instruction.md; echo; exec bash -l")


@dataclass(frozen=True)
class ContainerSession(AgentSession):
    """An agent's hands in one container. ``deadline_ns`` counts on CLOCK_BOOTTIME."""

    container: Container
    clock: Clock
    transcript: Transcript
    text: str
    user: tuple[int, int]
    env: Mapping[str, str]
    deadline_ns: int
    command_wall: float
    stop: threading.Event
    on_leftover: Callable[[str, tuple[int, ...]], None]
    say_aloud: Callable[[str], None]
    on_note: Callable[..., None]
    room: ModelRoom | None = None
    raw: RawLog | None = None
    trials: Trials | None = None
    _shown: Iterator[int] = field(default_factory=itertools.count)

    @property
    @override
    def instruction(self) -> str:
        return self.text

    @property
    @override
    def stopping(self) -> threading.Event:
        return self.stop

    @property
    @override
    def model(self) -> SessionModel:
        return self._thinking.model

    @property
    @override
    def program(self) -> tuple[str, ...]:
        installed = self._thinking.installed
        return () if installed is None else installed.argv()

    @property
    def _thinking(self) -> ModelRoom:
        if self.room is None:
            raise RuntimeError("this exploration has no model")  # planning gives none to no agent
        return self.room

    @override
    def time_left(self) -> float:
        return max(0.0, (self.deadline_ns - self.clock.boottime_ns()) / _NS)

    @override
    def execute(self, command: str, *, timeout: float | None = None) -> ExecResult:
        wall = min(self.command_wall, timeout or self.command_wall)
        self.transcript.add(LineKind.CALL, command=command, time_left=round(self.time_left(), 1))
        self._say_aloud(f"$ {command.strip()}")
        result = self.container.execute(
            ("bash", "-c", command),
            user=self._user,
            env=self.env,
            workdir="/workspace",
            timeout=wall,
        )
        if result.timed_out:
            self._clear(command)
        self.transcript.add(
            LineKind.OUTPUT,
            exit_code=result.exit_code,
            output=result.output.decode("utf-8", "backslashreplace"),
            truncated=result.truncated,
            timed_out=result.timed_out,
            seconds=round(result.seconds, 3),
        )
        self._say_aloud(_brief(result, over=self.stop.is_set()))
        return result

    @override
    def run_program(
        self, argv: tuple[str, ...], env: Mapping[str, str], on_line: Callable[[str], None]
    ) -> ExecResult:
        said = hashlib.sha256("\0".join(argv).encode()).hexdigest()
        self.on_note("agent_program", program=argv[0], argv=f"sha256:{said}", variables=sorted(env))
        lines = Lines(on_line)

        def take(data: bytes) -> None:
            if self.raw is not None:
                self.raw.write(data)
            lines.take(data)

        result = self.container.execute(
            self._thinking.relayed(argv),
            user=self._user,
            env={**self.env, **env},
            workdir="/workspace",
            timeout=None,
            on_output=take,
            max_output=0,
        )
        lines.end()
        return result

    @override
    def put(self, changed: Mapping[str, str]) -> None:
        self._tests.put(changed)

    @override
    def test(self, changed: Mapping[str, str]) -> ExecResult:
        return self._tests.run(changed)

    @property
    def _tests(self) -> Trials:
        if self.trials is None:
            raise RuntimeError("this exploration has a shell")  # see pipeline.agents
        return self.trials

    @override
    def ask(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._thinking.ask(body)

    @override
    def model_asked(self) -> bool:
        return self._thinking.gateway.arrived() > 0

    @override
    def provider_failed(self) -> bool:
        return self._thinking.provider_failed

    @override
    def attach_terminal(self) -> int:
        self.transcript.add(LineKind.MESSAGE, text="(a person works at a terminal)")
        return self.container.interact(_TERMINAL, user=self._user, env=self.env)

    @override
    def say(self, text: str) -> None:
        self.transcript.add(LineKind.MESSAGE, text=text, time_left=round(self.time_left(), 1))
        self._say_aloud(text.strip())

    @override
    def think(self, text: str) -> None:
        self.transcript.add(LineKind.THOUGHT, text=text)

    @override
    def call(self, tool: str, arguments: str) -> None:
        left = round(self.time_left(), 1)
        self.transcript.add(LineKind.CALL, tool=tool, arguments=arguments, time_left=left)
        self._say_aloud(f"{tool}: {arguments.strip()}")

    @override
    def output(self, text: str, exit_code: int | None = None) -> None:
        self.transcript.add(LineKind.OUTPUT, output=text, exit_code=exit_code)

    @override
    def note(self, what: str, **facts: Any) -> None:
        self.on_note(what, **facts)

    def _say_aloud(self, text: str) -> None:
        """Let whoever looks on know, in a line that fits."""
        number = next(self._shown)
        if number <= MOST_ALOUD:
            said = text if number < MOST_ALOUD else _NO_MORE
            first, more, _ = said.partition("\n")
            cut = more or len(first) > _ALOUD
            self.say_aloud(f"{first[: _ALOUD - len(_CUT)]}{_CUT}" if cut else first)

    @property
    def _user(self) -> str:
        return f"{self.user[0]}:{self.user[1]}"

    def _clear(self, command: str) -> None:
        """End every process of the agent's uid: a command may have left setsid children."""
        left = tuple(p.pid for p in self.container.processes() if p.user == str(self.user[0]))
        self.container.execute(
            ("bash", "-c", "kill -KILL -1"),
            user=self._user,
            env={},
            workdir="/",
            timeout=_CLEAR_WALL,
        )
        self.on_leftover(command, left)


def _brief(result: ExecResult, *, over: bool) -> str:
    """Say in a line how a command came out: its end, and the last line it printed.

    Whoever submits is killed with the container: that is how an exploration ends, not an error.
    """
    printed = result.output.decode("utf-8", "backslashreplace").strip()
    ending = "cut off" if result.exit_code is None else f"exit {result.exit_code}"
    if over and result.exit_code == _KILLED:
        ending = "orch has ended the container"
    return f"  {ending}, {result.seconds:.1f} s  {printed.rpartition(chr(10))[2]}".rstrip()
