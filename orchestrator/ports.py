"""What the inner rooms need from the outside, as small protocols.

Adapters implement these; ``wiring`` picks them; ``adapters.in_memory`` ships a fake of each, and
one contract suite runs against fake and real alike.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import IO, NamedTuple, Protocol

from orchestrator.domain.container import (
    ContainerEnd,
    ContainerSpec,
    ContainerState,
    EngineIdentity,
    ExecResult,
    HostAbilities,
    ImageIdentity,
)


class Clock(Protocol):
    """All the time there is. Budgets count on ``boottime_ns``; records carry ``utc``."""

    def utc(self) -> datetime:
        """Return the wall clock, aware, in UTC."""
        ...

    def wall_ns(self) -> int:
        """Return the wall clock in nanoseconds since the epoch (comparable with ctime)."""
        ...

    def boottime_ns(self) -> int:
        """Return CLOCK_BOOTTIME: never steps, counts through suspend."""
        ...

    def boot_id(self) -> str:
        """Return the kernel's boot id; another one means the host was restarted."""
        ...


class LogSink(Protocol):
    """Takes a container's output as it comes. Never raises for what the bytes are."""

    def write(self, stream: str, data: bytes) -> None:
        """Take ``data`` from ``stream`` (``stdout`` or ``stderr``)."""
        ...


@dataclass(frozen=True, slots=True)
class ContainerProcess:
    """One process of a container, by its pid on the host. ``user`` is the numeric uid as text."""

    pid: int
    ppid: int
    user: str
    command: str


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory of a container from its cgroup's own counters, read while it exists.

    ``limit_reached`` counts how often the container's own limit was hit; None when unreadable.
    """

    peak: int | None
    limit_reached: int | None


class Container(Protocol):
    """One container. It never removes itself; whoever made it removes it in ``finally``."""

    @property
    def id(self) -> str:
        """The engine's full id."""
        ...

    @property
    def name(self) -> str:
        """The name we gave it."""
        ...

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels we gave it."""
        ...

    def start(self, sink: LogSink) -> None:
        """Attach ``sink`` to its output, then start it, and watch for its end in the background.

        Raises:
            InfrastructureError: the engine would not start it.
        """
        ...

    def adopt(self, sink: LogSink, incarnation: str = "") -> None:
        """Watch a container that somebody else started; output from now on goes to ``sink``.

        ``incarnation`` is the engine's when it was started, as the plan recorded it: an end that
        came before the adoption counts as witnessed only if the same engine process still runs.
        """
        ...

    def state(self) -> ContainerState:
        """Inspect it.

        Raises:
            ContainerLostError: the engine does not know it any more.
            EngineUnavailableError: the engine does not answer.
        """
        ...

    def wait(self, timeout: float) -> ContainerEnd | None:
        """Wait up to ``timeout`` seconds for its end; None while it runs.

        Time-outs and broken connections to the engine are not ends: they are asked again.

        Raises:
            ContainerLostError: it vanished without having ended.
        """
        ...

    def pause(self, timeout: float = 30.0) -> None:
        """Freeze every process in it.

        Raises:
            InfrastructureError: the engine could not within ``timeout`` seconds.
        """
        ...

    def unpause(self) -> None:
        """Let it go on."""
        ...

    def kill(self, signal: str = "KILL") -> None:
        """Send ``signal`` to PID 1 (a paused container is ended too); gone already is fine."""
        ...

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
        """Run one command inside and wait for it; its limit cuts the wait, not the processes."""
        ...

    def interact(self, argv: tuple[str, ...], *, user: str, env: Mapping[str, str]) -> int:
        """Join the caller's terminal to a command inside; return its exit code."""
        ...

    def processes(self) -> tuple[ContainerProcess, ...]:
        """List its processes by host pid; empty once it has ended."""
        ...

    def memory(self) -> MemoryUse:
        """Read its cgroup's memory counters; after its end, the last that were read."""
        ...

    def changes(self) -> tuple[str, ...]:
        """List what was changed in its own layer (not in mounts or tmpfs), at most 1,000 paths."""
        ...

    def has_file(self, path: str) -> bool:
        """Tell whether ``path`` exists in its file system, started or not."""
        ...

    def remove(self) -> None:
        """Remove it by force; gone already is fine."""
        ...


class ContainerEngine(Protocol):
    """A Docker-compatible engine."""

    def identity(self) -> EngineIdentity:
        """Say which engine answers.

        Raises:
            EngineUnavailableError: none does; the remedy says how to start one.
        """
        ...

    def abilities(self) -> HostAbilities:
        """Say what it can enforce."""
        ...

    def image(self, reference: str) -> ImageIdentity:
        """Identify an image it holds.

        Raises:
            UsageError: it does not hold it; the remedy says how to make or pull it.
        """
        ...

    def image_files(self, reference: str) -> Iterator[tuple[str, IO[bytes]]]:
        """Walk the regular files of an image: path and an open reader valid until the next."""
        ...

    def create(self, spec: ContainerSpec) -> Container:
        """Make a container, not yet started.

        Raises:
            InfrastructureError: the engine refused.
        """
        ...

    def find(self, labels: Mapping[str, str]) -> tuple[Container, ...]:
        """List containers, ended ones too, that carry all of ``labels``."""
        ...

    def close(self) -> None:
        """Drop connections."""
        ...


class SizeLimit(StrEnum):
    """How a volume's size is held."""

    LOOP = "allocated_loop_ext4"
    WATCHED = "watched_folder"


class Volume(Protocol):
    """A writable folder for a container, with a size limit."""

    @property
    def path(self) -> Path:
        """The host folder to bind."""
        ...

    @property
    def size_limit(self) -> SizeLimit:
        """How its size is held."""
        ...

    def used(self) -> int:
        """Bytes in use (allocated blocks)."""
        ...

    def outgrown(self) -> bool:
        """Tell whether it holds more than it should; a volume that cannot never does."""
        ...

    def close(self) -> None:
        """Unmount and free what was opened. Calling it twice is fine."""
        ...


class Volumes(Protocol):
    """Makes size-limited folders."""

    def relaxations(self) -> tuple[str, ...]:
        """Say what keeps its volumes from being official; empty when nothing does."""
        ...

    def create(self, folder: Path, size: int, *, owner: tuple[int, int]) -> Volume:
        """Make an empty folder at ``folder`` that holds at most ``size`` bytes for ``owner``.

        Raises:
            StorageFullError: the host has not that much to allocate.
        """
        ...

    def adopt(self, folder: Path, size: int | None = None) -> Volume | None:
        """Take over what a supervisor that is gone left open at ``folder``; None if nothing.

        ``size`` is what it was made with, for one whose size is still to be watched.
        """
        ...


class Views(Protocol):
    """Gives each container its own read-only sight of folders that several containers see."""

    def relaxations(self) -> tuple[str, ...]:
        """Say what keeps its views from being official; empty when nothing does."""
        ...

    def open(self, source: Path, folder: Path) -> Path:
        """Make the new ``folder`` show what ``source`` holds; return what to bind.

        Raises:
            InfrastructureError: the host would not.
        """
        ...

    def close(self, folder: Path) -> None:
        """Close every view that was opened right below ``folder``, and remove it."""
        ...


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU as the driver names it. ``memory`` in bytes."""

    uuid: str
    model: str
    memory: int
    driver: str


class DeviceProbe(Protocol):
    """What the host can say of its GPUs."""

    def devices(self) -> tuple[Device, ...]:
        """List the host's GPUs; empty where there is no driver."""
        ...


class AgentSession(Protocol):
    """What an agent is given: a prompt, a way to act in its container, and the time."""

    @property
    def instruction(self) -> str:
        """The rendered instruction of the task."""
        ...

    @property
    def stopping(self) -> threading.Event:
        """Set once the exploration is over; an agent returns soon after."""
        ...

    def time_left(self) -> float:
        """Seconds until the host ends the exploration."""
        ...

    def execute(self, command: str, *, timeout: float | None = None) -> ExecResult:
        """Run ``bash -c command`` in ``/workspace`` as the agent's user.

        ``timeout`` (at most the task's ``command_wall``) ends every process of the command.
        """
        ...

    def attach_terminal(self) -> int:
        """Give the operator's terminal a shell in the container; return its exit code."""
        ...

    def say(self, text: str) -> None:
        """Put a message of the agent's into the transcript."""
        ...


class Agent(Protocol):
    """Something that explores. It acts only through its session."""

    @property
    def name(self) -> str:
        """The name it is known by in configs."""
        ...

    @property
    def digest(self) -> str:
        """``sha256:...`` of what it is (its code or script)."""
        ...

    @property
    def interactive(self) -> bool:
        """Whether it uses the operator's terminal, so that nothing else may write there."""
        ...

    def run(self, session: AgentSession) -> None:
        """Work until done; returning without a submission is an early exit."""
        ...


@dataclass(frozen=True, slots=True)
class Blob:
    """A file or link to be stored: ``content`` yields exactly ``size`` bytes, once."""

    path: bytes
    mode: str
    size: int
    content: Iterator[bytes]


class StoredFile(NamedTuple):
    """A file or link of a stored tree; ``key`` names its content in the store."""

    path: bytes
    mode: str
    key: str


@dataclass(frozen=True, slots=True)
class PatchRefused:
    """The store would not apply a patch; ``reason`` is its own text, for people only."""

    reason: str


class Trees(Protocol):
    """A private store of trees that lives as long as it is open.

    Nothing in a stored tree can change how the store works or make it run anything. Every method
    raises InfrastructureError when the store itself fails.
    """

    def add(self, blobs: Iterable[Blob]) -> str:
        """Store a tree; return its name. Paths are distinct, and none lies below another."""
        ...

    def diff(self, before: str, after: str, destination: Path) -> None:
        """Write the patch that makes ``after`` of ``before``; no bytes if they are equal."""
        ...

    def apply(self, base: str, patch: Path) -> str | PatchRefused:
        """Apply a patch to a stored tree, all or nothing; return the name of the result."""
        ...

    def files(self, tree: str) -> tuple[StoredFile, ...]:
        """List a tree's files and links by path."""
        ...

    def read(self, key: str, take: Callable[[bytes], object]) -> None:
        """Hand a file's content, in pieces, to ``take``."""
        ...


class TreeStore(Protocol):
    """Opens private stores of trees."""

    def open(self) -> AbstractContextManager[Trees]:
        """Open an empty store; it is gone with all its content when the context ends."""
        ...
