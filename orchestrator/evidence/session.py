"""The one way every agent acts: commands as the agent's user in the exploration's container."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from typing_extensions import override

from orchestrator.domain.container import ExecResult
from orchestrator.evidence.transcript import LineKind, Transcript
from orchestrator.ports import AgentSession, Clock, Container

_NS = 1_000_000_000
_CLEAR_WALL = 10.0
_TERMINAL = ("bash", "-c", "cat /logs/instruction.md; exec bash -l")


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

    @property
    @override
    def instruction(self) -> str:
        return self.text

    @property
    @override
    def stopping(self) -> threading.Event:
        return self.stop

    @override
    def time_left(self) -> float:
        return max(0.0, (self.deadline_ns - self.clock.boottime_ns()) / _NS)

    @override
    def execute(self, command: str, *, timeout: float | None = None) -> ExecResult:
        wall = min(self.command_wall, timeout or self.command_wall)
        self.transcript.add(LineKind.CALL, command=command, time_left=round(self.time_left(), 1))
        self.say_aloud("$ " + command.strip().partition("\n")[0])
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
        self.say_aloud(_brief(result))
        return result

    @override
    def attach_terminal(self) -> int:
        self.transcript.add(LineKind.MESSAGE, text="(a person works at a terminal)")
        return self.container.interact(_TERMINAL, user=self._user, env=self.env)

    @override
    def say(self, text: str) -> None:
        self.transcript.add(LineKind.MESSAGE, text=text, time_left=round(self.time_left(), 1))
        self.say_aloud(text.strip().partition("\n")[0])

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


def _brief(result: ExecResult) -> str:
    """Say in a line how a command came out: its end, and the last line it printed."""
    printed = result.output.decode("utf-8", "backslashreplace").strip()
    ending = "cut off" if result.exit_code is None else f"exit {result.exit_code}"
    return f"  {ending}, {result.seconds:.1f} s  {printed.rpartition(chr(10))[2]}".rstrip()
