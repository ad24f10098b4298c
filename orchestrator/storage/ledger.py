"""Host-wide reservations of CPUs, memory, disk and GPUs: reserved, not merely checked.

One file per reservation, under a flock that its holder keeps for as long as it lives; so a dead
holder's reservation is free at once, with nothing to time out. The folder is shared by every user
of the host: sticky, its files writable by all. Whoever asks holds ``.lock`` while looking and
taking, so of two that race for the last CPU exactly one gets it.
"""

import fcntl
import math
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.domain.quantity import cpu_list, human
from orchestrator.domain.roles import Phase
from orchestrator.errors import (
    ContainerLeftRunning,
    EngineUnavailableError,
    GateRefusedError,
    ResourcesBusyError,
    TaskPackError,
)
from orchestrator.ports import Clock
from orchestrator.storage import durable
from orchestrator.storage.device_locks import DeviceLock, DeviceLocks, relock
from orchestrator.storage.lock import locked, try_lock

_FOLDER_MODE = 0o1777
_FILE_MODE = 0o666
_SUFFIX = ".reservation"
_PATIENCE = 30.0
_MAX_RECORD = 64 * 1024
_OUTLIVED = (ContainerLeftRunning, EngineUnavailableError)
"""What may end our part in a run while its container goes on with what it was given."""
_Plain = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f-\x9f]{1,1000}$")]


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the host has to give in all. ``memory`` in bytes."""

    cpus: int
    memory: int


@dataclass(frozen=True, slots=True)
class Claim:
    """What one run asks for. ``memory`` and ``disk`` in bytes; ``cpus`` is rounded up to whole."""

    run_id: str
    phase: Phase
    cpus: float
    memory: int
    disk: int
    disk_folder: Path


class Held(BaseModel):
    """A live reservation. ``disk`` is what of its claim is not on the disk yet, in bytes."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    run_id: _Plain
    phase: Phase
    pid: int
    since: _Plain
    cpus: tuple[int, ...]
    memory: int = Field(ge=0)
    disk: int = Field(ge=0)
    device: int
    gpus: tuple[_Plain, ...] = ()


class Reservation:
    """Resources that are ours until ``release`` or the end of this process.

    It may be handed from phase to phase, and to a child that inherits ``descriptors``; releasing
    twice is fine. Made by ``Ledger.reserve`` and ``Ledger.inherit``.
    """

    def __init__(
        self,
        ledger: "Ledger",
        path: Path,
        descriptor: int,
        held: Held,
        devices: tuple[DeviceLock, ...] = (),
    ) -> None:
        self._ledger = ledger
        self._path = path
        self._descriptor: int | None = descriptor
        self._held = held
        self._devices = devices

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The open files whose locks are the reservation; none once it is released.

        It lasts until every process that has them open is gone, or one of them releases it.
        """
        own = (self._descriptor, *(device.descriptor for device in self._devices))
        return tuple(descriptor for descriptor in own if descriptor is not None)

    @property
    def gpus(self) -> tuple[str, ...]:
        """The UUIDs of the devices that are ours."""
        return self._held.gpus

    @property
    def cpuset(self) -> str:
        """The CPUs that are ours, as a list such as ``0-1,4``."""
        return cpu_list(self._held.cpus)

    def add(self, devices: tuple[DeviceLock, ...]) -> None:
        """Have devices released with the rest, and say that they are reserved."""
        self._devices += devices
        self._change(gpus=tuple(device.uuid for device in self._devices))

    def allocated(self, size: int) -> None:
        """Say that ``size`` bytes of the claimed disk are allocated, so they no longer count."""
        self._change(disk=max(0, self._held.disk - size))

    def _change(self, **what: int | tuple[str, ...]) -> None:
        if self._descriptor is None:
            raise ValueError(f"the reservation of {self._held.run_id} was released")
        self._held = self._held.model_copy(update=what)
        with self._ledger.alone():
            _put(self._descriptor, self._path, self._held)

    def release(self) -> None:
        """Give everything back."""
        if self._descriptor is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None
        for device in self._devices:
            device.release()

    def leave(self) -> None:
        """Let go of it here, without giving it back: whoever inherited it keeps it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        for device in self._devices:
            device.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, _OUTLIVED):
            self.leave()
        else:
            self.release()


@dataclass(frozen=True, slots=True)
class _Room:
    cpus: int
    memory: int
    disk: int


class Ledger:
    """The host's reservations. ``folder`` is made at the first reservation."""

    def __init__(self, folder: Path, capacity: Capacity, clock: Clock) -> None:
        self._folder = folder
        self._capacity = capacity
        self._clock = clock
        self.devices = DeviceLocks(folder, clock, self.alone, partial(self._live, sweep=False))

    def reserve(self, claim: Claim) -> Reservation:
        """Take what ``claim`` asks for, all or nothing, without waiting for others to end.

        Raises:
            GateRefusedError: it is not free, or is more than this host has; who holds it is said.
            StorageFullError: the ledger's own folder has no space.
        """
        self._refuse_if_too_large(claim)
        self.make_folder()
        with self.alone():
            others = self._live(sweep=True)
            free = self._free_cpus(others)
            self._refuse_if_short(claim, len(free), others)
            held = Held(
                run_id=claim.run_id,
                phase=claim.phase,
                pid=os.getpid(),
                since=self._clock.utc().isoformat(timespec="milliseconds"),
                cpus=free[: math.ceil(claim.cpus)],
                memory=claim.memory,
                disk=claim.disk,
                device=_existing(claim.disk_folder).stat().st_dev,
            )
            return self._take(held)

    def inherit(self, descriptors: Iterable[int]) -> Reservation:
        """Make a reservation again from what this process inherited of its holder.

        What is recorded of it is read from its file, and names this process from now on.

        Args:
            descriptors: what ``Reservation.descriptors`` was, open here under the same numbers.

        Raises:
            GateRefusedError: they are not the locks of one reservation, or it was given back.
        """
        named = {number: Path(f"/proc/self/fd/{number}").readlink() for number in descriptors}
        own = [number for number, path in named.items() if path.name.endswith(_SUFFIX)]
        if len(own) != 1:
            found = ", ".join(map(str, named.values())) or "nothing"
            raise GateRefusedError(f"these are not the locks of one reservation: {found}")
        descriptor, path = own[0], named[own[0]]
        with self.alone():
            relock(descriptor, path)
            held = _parse(path, os.pread(descriptor, _MAX_RECORD, 0))
            held = held.model_copy(update={"pid": os.getpid()})
            _put(descriptor, path, held)
        devices = tuple(self.devices.inherit(n) for n in named if n != descriptor)
        return Reservation(self, path, descriptor, held, devices)

    def held(self) -> tuple[Held, ...]:
        """List the live reservations, oldest first. Changes nothing."""
        if not self._folder.is_dir():
            return ()
        with self.alone():
            return self._live(sweep=False)

    def left(self, *, sweep: bool) -> tuple[Path, ...]:
        """List the reservations whose holders are dead; ``sweep`` removes those it may."""
        if not self._folder.is_dir():
            return ()
        with self.alone():
            files = [p for p in sorted(self._folder.glob(f"*{_SUFFIX}")) if _is_plain(p)]
            return tuple(path for path in files if _look(path, sweep=sweep) is None)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep everybody else from looking and taking; for moments only.

        Raises:
            GateRefusedError: somebody has kept the lock for half a minute.
        """
        path = self._folder / ".lock"
        try:
            with locked(path, patience=_PATIENCE, mode=_FILE_MODE):
                yield
        except TimeoutError as error:
            raise GateRefusedError(
                f"the reservation ledger stayed locked for {_PATIENCE:.0f} s",
                remedy=f"see who holds it: fuser -v {path}",
            ) from error

    def make_folder(self) -> None:
        """Make the ledger's folder, usable by every user, unless it is there."""
        missing = [p for p in (self._folder, *self._folder.parents) if not p.exists()]
        for folder in reversed(missing):
            durable.make_folder(folder, mode=_FOLDER_MODE, exist_ok=True)

    def _take(self, held: Held) -> Reservation:
        path = self._folder / f"{secrets.token_hex(8)}{_SUFFIX}"
        with durable.storage_faults(path):
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(path, flags, _FILE_MODE)
            try:
                os.fchmod(descriptor, _FILE_MODE)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _put(descriptor, path, held)
            except BaseException:
                os.close(descriptor)
                path.unlink()
                raise
        return Reservation(self, path, descriptor, held)

    def _live(self, *, sweep: bool) -> tuple[Held, ...]:
        found = (_look(path, sweep=sweep) for path in self._folder.glob(f"*{_SUFFIX}"))
        return tuple(sorted((h for h in found if h), key=lambda held: (held.since, held.run_id)))

    def _free_cpus(self, others: tuple[Held, ...]) -> tuple[int, ...]:
        taken = {cpu for held in others for cpu in held.cpus}
        free = [cpu for cpu in sorted(os.sched_getaffinity(0)) if cpu not in taken]
        return tuple(free[: max(0, self._capacity.cpus - len(taken))])

    def _refuse_if_too_large(self, claim: Claim) -> None:
        file_system = os.statvfs(_existing(claim.disk_folder))
        whole = _Room(
            cpus=min(self._capacity.cpus, len(os.sched_getaffinity(0))),
            memory=self._capacity.memory,
            disk=file_system.f_blocks * file_system.f_frsize,
        )
        if short := _shortage(claim, whole, "in all"):
            raise GateRefusedError(
                f"{claim.run_id} ({claim.phase}) can never start on this host: it asks for {short}",
                remedy="lower the task's resources, or use a larger host",
            )

    def _refuse_if_short(self, claim: Claim, cpus: int, others: tuple[Held, ...]) -> None:
        folder = _existing(claim.disk_folder)
        device, file_system = folder.stat().st_dev, os.statvfs(folder)
        promised = sum(held.disk for held in others if held.device == device)
        free = _Room(
            cpus=cpus,
            memory=self._capacity.memory - sum(held.memory for held in others),
            disk=file_system.f_bavail * file_system.f_frsize - promised,
        )
        if short := _shortage(claim, free, "free"):
            holders = ", ".join(f"{h.run_id} ({h.phase}, pid {h.pid})" for h in others)
            refusal = ResourcesBusyError if others else GateRefusedError
            raise refusal(
                f"{claim.run_id} ({claim.phase}) asks for {short}; "
                f"reserved by {holders or 'nobody'}",
                remedy="wait for a holder to end (orch status); --wait 30m does so by itself"
                if others
                else "free space: orch gc",
            )


def _shortage(claim: Claim, has: _Room, word: str) -> str:
    cpus = math.ceil(claim.cpus)
    short = []
    if cpus > has.cpus:
        short.append(f"{cpus} CPU{'s' * (cpus > 1)} ({has.cpus} {word})")
    if claim.memory > has.memory:
        short.append(f"{human(claim.memory)} of memory ({human(has.memory)} {word})")
    if claim.disk > has.disk:
        disk = f"{human(claim.disk)} of disk at {claim.disk_folder}"
        short.append(f"{disk} ({human(max(0, has.disk))} {word})")
    return " and ".join(short)


def _existing(folder: Path) -> Path:
    """Find what a folder that may be made later will lie in."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _put(descriptor: int, path: Path, held: Held) -> None:
    with durable.storage_faults(path):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, held.model_dump_json().encode(), 0)


def _look(path: Path, *, sweep: bool) -> Held | None:
    """Read a reservation; None when its holder is dead, and then ``sweep`` removes the file."""
    if not _is_plain(path):
        return None
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if not try_lock(descriptor):
            return _parse(path, os.pread(descriptor, _MAX_RECORD, 0))
        if sweep:
            # In a sticky folder only the owner may remove it; left behind, it counts for nothing.
            with suppress(PermissionError):
                path.unlink(missing_ok=True)
        return None
    finally:
        os.close(descriptor)


def _is_plain(path: Path) -> bool:
    """Tell whether there is a file: a link or a folder of that name reserves nothing."""
    return path.is_file() and not path.is_symlink()


def _parse(path: Path, data: bytes) -> Held:
    try:
        return Held.model_validate(durable.parse_json(data))
    except (TaskPackError, ValidationError) as error:
        # Its holder lives and what it holds is unknown: unknown is never free.
        raise GateRefusedError(
            f"{path}: a living process holds a reservation that cannot be read",
            remedy=f"see whose it is: fuser -v {path}",
        ) from error
