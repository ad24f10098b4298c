"""Containers in memory: each runs a program, a Python function in a thread of its own."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from signal import Signals
from threading import Condition, RLock
from typing import NoReturn, TypeAlias

from typing_extensions import override

from orchestrator.adapters.background import in_background
from orchestrator.adapters.fake_clock import FakeClock
from orchestrator.domain.container import (
    ContainerEnd,
    ContainerSpec,
    ContainerState,
    ContainerStatus,
    ExecResult,
)
from orchestrator.errors import ContainerLostError, EngineUnavailableError, InfrastructureError
from orchestrator.ports import Container, ContainerProcess, ContainerUse, LogSink, MemoryUse

_NEVER = "0001-01-01T00:00:00Z"
_PAUSE_TRIES = 3
_CUT_OFF = ExecResult(exit_code=None, output=b"", truncated=False, timed_out=False, seconds=0.0)


class EndedError(Exception):
    """Raised inside a program when its container has ended under it."""


class Inside:
    """What a program sees of its container. Calls block while it is paused.

    Attributes:
        spec: what the container was made of.
        clock: the engine's clock; a program may ``advance`` it to use up time.
        memory: what ``Container.memory`` answers.
        use: what ``Container.use`` answers while it runs.
        oom_killed: what the engine's state says.
        trapped: signals, such as ``TERM``, that do not end this container.
    """

    def __init__(
        self, container: "InMemoryContainer", spec: ContainerSpec, clock: FakeClock
    ) -> None:
        self._container = container
        self.spec = spec
        self.clock = clock
        self.memory = MemoryUse(peak=0, limit_reached=0)
        self.use = ContainerUse(cpu_s=0.0, memory=0, memory_peak=0, pids=1)
        self.oom_killed = False
        self.trapped: set[str] = set()

    def stdout(self, data: bytes) -> None:
        """Write to standard output."""
        self._container.output("stdout", data)

    def stderr(self, data: bytes) -> None:
        """Write to standard error."""
        self._container.output("stderr", data)

    def write_file(self, path: str, data: bytes) -> None:
        """Write a file, with its folders, below a writable mount.

        Raises:
            PermissionError: the mount, or the root it would lie on, is read-only.
        """
        self._container.proceed()
        host = self.host_path(path, writable=True)
        host.parent.mkdir(parents=True, exist_ok=True)
        host.write_bytes(data)

    def read_file(self, path: str) -> bytes:
        """Read a file below a mount."""
        self._container.proceed()
        return self.host_path(path).read_bytes()

    def host_path(self, path: str, *, writable: bool = False) -> Path:
        """Find where ``path`` lies on the host.

        Raises:
            PermissionError: in no mount, or in a read-only one where ``writable`` was asked.
        """
        wanted = PurePosixPath(path)
        for mount in sorted(self.spec.mounts, key=lambda it: len(it.target), reverse=True):
            if wanted.is_relative_to(mount.target) and (mount.writable or not writable):
                return mount.source / wanted.relative_to(mount.target)
            if wanted.is_relative_to(mount.target):
                break
        raise PermissionError(path)

    def exhaust_memory(self) -> None:
        """Have the container's own limit kill a child."""
        self.memory = MemoryUse(peak=self.spec.limits.memory, limit_reached=1)
        self.oom_killed = True

    def until_killed(self) -> NoReturn:
        """Run until the container ends."""
        self._container.stay()
        raise EndedError


@dataclass(slots=True)
class World:
    """What the containers of one engine share; ``changed`` guards and announces it."""

    program: "Program"
    command: "Command"
    clock: FakeClock
    changed: Condition = field(default_factory=lambda: Condition(RLock()))
    up: bool = True
    incarnation: int = 1
    refused_pauses: int = 0
    containers: dict[str, "InMemoryContainer"] = field(default_factory=dict)

    def answer(self) -> None:
        """Raise EngineUnavailableError while the engine is down."""
        if not self.up:
            raise EngineUnavailableError("the in-memory engine is down", remedy="let it come back")

    @property
    def incarnation_name(self) -> str:
        """The engine's incarnation as its identity tells it."""
        return f"incarnation-{self.incarnation}"


Program: TypeAlias = Callable[[Inside], int]
Command: TypeAlias = Callable[[Inside, tuple[str, ...]], tuple[int, bytes]]


def run_until_killed(inside: Inside) -> int:
    """Be a program that only keeps its container alive."""
    inside.until_killed()


def no_commands(inside: Inside, argv: tuple[str, ...]) -> tuple[int, bytes]:
    """Answer every command as a shell does one that it does not find."""
    return 127, f"{argv[0]}: not found in {inside.spec.name}\n".encode()


class InMemoryContainer(Container):
    """One container of an ``InMemoryEngine``; the engine's condition guards all it changes."""

    def __init__(
        self, world: World, container_id: str, spec: ContainerSpec, files: Mapping[str, bytes]
    ) -> None:
        self._world = world
        self._changed = world.changed
        self._id = container_id
        self._spec = spec
        self._files = files
        self._inside = Inside(self, spec, world.clock)
        self._sinks: list[LogSink] = []
        self._program: Future[None] | None = None
        self._signals: list[str] = []
        self._witnessed = True
        self._gone = False
        self._state = ContainerState(
            status=ContainerStatus.CREATED,
            exit_code=None,
            oom_killed=False,
            started_at=_NEVER,
            finished_at=_NEVER,
            pid=0,
        )

    @property
    @override
    def id(self) -> str:
        return self._id

    @property
    @override
    def name(self) -> str:
        return self._spec.name

    @property
    @override
    def labels(self) -> Mapping[str, str]:
        return self._spec.labels

    @property
    def spec(self) -> ContainerSpec:
        """What it was made of."""
        return self._spec

    @override
    def start(self, sink: LogSink) -> None:
        with self._changed:
            if self.state().status is not ContainerStatus.CREATED:
                raise InfrastructureError(f"container {self.name} was started before")
            self._sinks.append(sink)
            self._state = replace(
                self._state, status=ContainerStatus.RUNNING, started_at=self._now(), pid=1
            )
            self._program = in_background("in-memory-program", self._run)
            self._program.add_done_callback(self._notify)

    @override
    def adopt(self, sink: LogSink, incarnation: str = "") -> None:
        with self._changed:
            ended = self.state().ended
            self._sinks.append(sink)
            if ended:
                self._witnessed = incarnation == self._world.incarnation_name

    @override
    def state(self) -> ContainerState:
        self._world.answer()
        if self._gone:
            raise ContainerLostError(f"no such container: {self.name}")
        return self._state

    @override
    def wait(self, timeout: float) -> ContainerEnd | None:
        with self._changed:
            self._changed.wait_for(self._is_known, timeout)
            if self._program is not None and self._program.done():
                self._program.result()
            if not self._is_known():
                return None
            return ContainerEnd(
                state=self.state(),
                witnessed=self._witnessed,
                signals=tuple(self._signals),
                engine_restarted=not self._witnessed,
            )

    def _is_known(self) -> bool:
        """Tell whether a watch of this container would have come to its conclusion."""
        failed = self._program is not None and self._program.done() and self._program.exception()
        return bool(failed) or (self._world.up and (self._gone or self._state.ended))

    @override
    def pause(self, timeout: float = 30.0) -> None:
        with self._changed:
            if self.state().status is not ContainerStatus.RUNNING:
                raise InfrastructureError(f"container {self.name} is {self._state.status}")
            for _ in range(_PAUSE_TRIES):
                if self._world.refused_pauses == 0:
                    self._state = replace(self._state, status=ContainerStatus.PAUSED)
                    return
                self._world.refused_pauses -= 1
            raise InfrastructureError(f"container {self.name} could not be paused")

    @override
    def unpause(self) -> None:
        with self._changed:
            if self.state().status is ContainerStatus.PAUSED:
                self._state = replace(self._state, status=ContainerStatus.RUNNING)
                self._changed.notify_all()

    @override
    def kill(self, signal: str = "KILL") -> None:
        with self._changed:
            self._world.answer()
            self.deliver(signal)

    @override
    def execute(
        self,
        argv: tuple[str, ...],
        *,
        user: str,
        env: Mapping[str, str],
        workdir: str,
        timeout: float | None,
        on_output: Callable[[bytes], None] | None = None,
        max_output: int = 1024 * 1024,
    ) -> ExecResult:
        if self.state().status is not ContainerStatus.RUNNING:
            return _CUT_OFF
        try:
            code, output = self._world.command(self._inside, argv)
        except TimeoutError:
            return replace(_CUT_OFF, timed_out=True, seconds=timeout or 0.0)
        except EndedError:
            return _CUT_OFF
        if on_output is not None:
            on_output(output)
        return ExecResult(
            exit_code=None if self._gone or self._state.ended else code,
            output=output[:max_output],
            truncated=len(output) > max_output,
            timed_out=False,
            seconds=0.0,
        )

    @override
    def interact(self, argv: tuple[str, ...], *, user: str, env: Mapping[str, str]) -> int:
        return self._world.command(self._inside, argv)[0]

    @override
    def processes(self) -> tuple[ContainerProcess, ...]:
        if self.state().pid == 0:
            return ()
        command = " ".join(self._spec.argv)
        return (ContainerProcess(pid=1, ppid=0, user="0", command=command),)

    @override
    def memory(self) -> MemoryUse:
        return self._inside.memory

    @override
    def use(self) -> ContainerUse:
        return self._inside.use if self._state.pid else ContainerUse()

    @override
    def changes(self) -> tuple[str, ...]:
        self.state()
        return ()

    @override
    def has_file(self, path: str) -> bool:
        self.state()
        return path in self._files

    @override
    def remove(self) -> None:
        self._world.answer()
        self.vanish()

    # -- for its engine and its program

    def proceed(self) -> None:
        """Wait while paused; raise EndedError once it has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._state.status is not ContainerStatus.PAUSED)
            if self._gone or self._state.ended:
                raise EndedError

    def stay(self) -> None:
        """Wait until it has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._gone or self._state.ended)

    def output(self, stream: str, data: bytes) -> None:
        """Hand output to whoever attached."""
        self.proceed()
        for sink in self._sinks:
            sink.write(stream, data)

    def deliver(self, signal: str) -> None:
        """Note a signal and let it do what it does; one sent to an ended container is nothing."""
        with self._changed:
            if self._gone or self._state.pid == 0:
                return
            self._signals.append(signal)
            frozen = self._state.status is ContainerStatus.PAUSED
            if signal == "KILL" or not (frozen or signal in self._inside.trapped):
                self._end(128 + Signals[f"SIG{signal}"])

    def end_unseen(self) -> None:
        """Stand there as exited with 0, as after a restart of the engine."""
        with self._changed:
            if self._state.pid:
                self._end(0)
                self._witnessed = False

    def vanish(self) -> None:
        """Be removed."""
        with self._changed:
            self._gone = True
            self._world.containers.pop(self._id, None)
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            code = self._world.program(self._inside)
            self.proceed()
        except EndedError:
            return
        with self._changed:
            self._end(code)

    def _end(self, code: int) -> None:
        if self._state.ended:
            return
        self._state = replace(
            self._state,
            status=ContainerStatus.EXITED,
            exit_code=code,
            oom_killed=self._inside.oom_killed,
            finished_at=self._now(),
            pid=0,
        )
        self._changed.notify_all()

    def _notify(self, _: "Future[None]") -> None:
        with self._changed:
            self._changed.notify_all()

    def _now(self) -> str:
        return self._world.clock.utc().isoformat()
