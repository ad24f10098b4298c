"""The host: its clock, its size-limited folders, its views of assets, its devices."""

from datetime import datetime
from enum import StrEnum
from pathlib import Path
from threading import Event
from typing import Protocol

from orchestrator.domain.device import Device, DeviceLibrary, DeviceSample
from orchestrator.domain.process import ProcessFacts


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

    def wait(self, event: Event, seconds: float) -> bool:
        """Let up to ``seconds`` pass, or less if ``event`` is set; tell whether it is."""
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

    def left(self, folder: Path) -> int | None:
        """Say how many bytes a volume at ``folder`` still takes from the host; None if none does.

        What lies in a plain folder is no volume's.

        Raises:
            InfrastructureError: what is there is not one of these volumes.
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

    def left(self, folder: Path) -> bool:
        """Tell whether views right below ``folder`` were never closed.

        Raises:
            InfrastructureError: what is there was not opened here.
        """
        ...


class DeviceProbe(Protocol):
    """What the host can say of its GPUs.

    Every method raises ``DeviceUnreadableError`` when the driver does not answer (no permission, a
    driver and library that do not match, a call that hangs) and names the driver's own error.
    """

    def devices(self) -> tuple[Device, ...]:
        """List the host's GPUs, MIG instances in place of a GPU that is cut into them.

        A GPU that is lost, or not for this user, is left out; where all are, the driver does not
        answer. Empty where there is no driver, or no GPU.
        """
        ...

    def sample(self, uuid: str) -> DeviceSample:
        """Look at one device once.

        Raises:
            DeviceLostError: the driver says that it has lost it, or does not know it any more.
        """
        ...

    def library(self) -> DeviceLibrary | None:
        """Say which library answers; None where there is no driver."""
        ...

    def close(self) -> None:
        """Let go of the driver. Calling it twice is fine."""
        ...


class Guards(Protocol):
    """Starts watchdogs, which take over a run whose supervisor is gone."""

    def watch(self, root: Path, descriptors: tuple[int, ...]) -> int | None:
        """Start a watchdog over the run at ``root`` and return its pid; None for none.

        Args:
            descriptors: open files whose locks it keeps for whoever takes the run over.
        """
        ...


class ProcessTable(Protocol):
    """The host's processes. Nothing here raises: what cannot be read is None or left out."""

    def sees_host(self) -> bool:
        """Tell whether its pids are the host's own, as a driver means them: not in a container."""
        ...

    def facts(self, pid: int) -> ProcessFacts:
        """Describe one process; one that is gone has nothing but its pid."""
        ...

    def pids_of(self, container_id: str) -> frozenset[int]:
        """Name the processes of ``of_container``, which takes a hundred times as long."""
        ...

    def of_container(self, container_id: str) -> tuple[ProcessFacts, ...]:
        """Describe every process whose control group is, or lies below, the container's."""
        ...
