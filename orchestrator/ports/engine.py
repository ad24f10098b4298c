"""A Docker-compatible container engine and its containers."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from orchestrator.domain.container import (
    ContainerEnd,
    ContainerSpec,
    ContainerState,
    DeviceClaim,
    EngineIdentity,
    ExecResult,
    HostAbilities,
    ImageIdentity,
)
from orchestrator.domain.image import OldImage


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

    ``limit_reached`` counts how often the container's own limit was hit, ``oom_kills`` how many
    of its processes the kernel ended for want of memory; None when unreadable.
    """

    peak: int | None
    limit_reached: int | None
    oom_kills: int | None = None


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """What a container uses of its host, from its cgroup's own counters; None when unreadable.

    ``cpu_s`` is what it has used so far, ``pids`` counts its processes and threads.
    """

    cpu_s: float | None = None
    memory: int | None = None
    memory_peak: int | None = None
    pids: int | None = None


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

    def use(self) -> ContainerUse:
        """Read its cgroup's counters without asking the engine; nothing once it has ended."""
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

    def copy_out(self, reference: str, folder: str, into: Path) -> None:
        """Write a folder of an image, with its name, into an empty folder of this host.

        Of its modes only the executable bit counts; what is no file, folder or link is left out.

        Raises:
            UsageError: the engine does not hold the image, or the image has no such folder.
        """
        ...

    def create(self, spec: ContainerSpec) -> Container:
        """Make a container, not yet started.

        Raises:
            InfrastructureError: the engine refused.
        """
        ...

    def find(self, labels: Mapping[str, str]) -> tuple[Container, ...]:
        """List containers, ended ones too, that carry all of ``labels``.

        An engine may list one a moment before it is made: asked then, it is not there
        (``ContainerLostError``).
        """
        ...

    def device_claims(self) -> tuple[DeviceClaim, ...]:
        """Say which running or paused containers, whosoever they are, were given GPUs.

        Raises:
            EngineUnavailableError: the engine does not answer.
        """
        ...

    def close(self) -> None:
        """Drop connections."""
        ...


class OldImages(Protocol):
    """Images that our builder made and that nothing names any more."""

    def all(self) -> tuple[OldImage, ...]:
        """List them.

        Raises:
            EngineUnavailableError: the engine does not answer.
        """
        ...

    def remove(self, image: OldImage) -> None:
        """Remove one.

        Raises:
            InfrastructureError: a container or another image still needs it.
        """
        ...

    def close(self) -> None:
        """Drop connections."""
        ...
