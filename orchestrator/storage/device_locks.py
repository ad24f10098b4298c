"""Who has a GPU: one lock per device UUID in the host-wide folder, and the marks of broken ones.

A lock is an flock that its holder keeps from before it first looks at the device until the
container on it is gone; it is free the moment its last holder is. The file stays: it is the lock.
Should somebody remove it all the same, the holder's reservation still names the device.
"""

import fcntl
import json
import os
import pwd
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from typing_extensions import override

from orchestrator.domain.roles import Phase
from orchestrator.errors import GateRefusedError, TaskPackError
from orchestrator.ports import Clock
from orchestrator.storage import durable
from orchestrator.storage.lock import open_shared, try_lock

LOCK_SUFFIX = ".device"
_MARK_SUFFIX = ".unusable"
_FILE_MODE = 0o666
_MAX_RECORD = 64 * 1024


@dataclass(frozen=True, slots=True)
class Lease:
    """Who has a device: a run, and the process that took it for the run."""

    uuid: str
    run_id: str
    phase: Phase
    pid: int
    user: str
    since: str

    @override
    def __str__(self) -> str:
        """Name the holder for people."""
        return f"{self.run_id} ({self.phase}, pid {self.pid}, user {self.user})"


@dataclass(frozen=True, slots=True)
class Mark:
    """Why a device is not to be used until the host has been restarted."""

    uuid: str
    reason: str
    boot_id: str
    since: str


_Record = TypeVar("_Record", Lease, Mark)


class Reserved(Protocol):
    """What a live reservation says of itself."""

    @property
    def run_id(self) -> str:
        """Whose it is."""
        ...

    @property
    def phase(self) -> Phase:
        """For which phase it was made."""
        ...

    @property
    def pid(self) -> int:
        """Which process has it, or had it last."""
        ...

    @property
    def since(self) -> str:
        """When it was made."""
        ...

    @property
    def gpus(self) -> tuple[str, ...]:
        """The devices that it has, by UUID."""
        ...


class DeviceLock:
    """A device that is ours until ``release``, or until every holder of its descriptor is gone."""

    def __init__(self, lease: Lease, descriptor: int) -> None:
        self.lease = lease
        self.descriptor: int | None = descriptor

    @property
    def uuid(self) -> str:
        """Which device."""
        return self.lease.uuid

    def release(self) -> None:
        """Let it go, for whoever else inherited the descriptor too. Twice is fine."""
        if self.descriptor is not None:
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)
            os.close(self.descriptor)
            self.descriptor = None

    def leave(self) -> None:
        """Let go of it here alone. Twice is fine."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


class DeviceLocks:
    """The locks in the host-wide ``folder``, which ``Ledger`` makes.

    Args:
        alone: the ledger's.
        live: lists its reservations whose holders live.
    """

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        alone: Callable[[], AbstractContextManager[None]],
        live: Callable[[], Iterable[Reserved]],
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._alone = alone
        self._live = live

    def take(self, uuid: str, run_id: str, phase: Phase) -> DeviceLock | Lease:
        """Take a device without waiting; where somebody else has it, say who.

        Raises:
            StorageFullError: the folder has no space.
        """
        path = self._path(uuid)
        lease = Lease(
            uuid=uuid,
            run_id=run_id,
            phase=phase,
            pid=os.getpid(),
            user=user_name(),
            since=self._clock.utc().isoformat(timespec="milliseconds"),
        )
        with self._alone(), durable.storage_faults(path):
            descriptor = open_shared(path, _FILE_MODE)
            try:
                other = self._holder(path, descriptor, uuid)
                if other is None:
                    _write(descriptor, lease)
                    return DeviceLock(lease, descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
            return other

    def holder(self, uuid: str) -> Lease | None:
        """Say who has a device now; None when nobody has. Changes nothing."""
        path = self._path(uuid)
        if not self._folder.is_dir():
            return None
        with self._alone():
            if not path.exists():
                return self._named(uuid)
            descriptor = open_shared(path, _FILE_MODE)
            try:
                return self._holder(path, descriptor, uuid)
            finally:
                os.close(descriptor)

    def _holder(self, path: Path, descriptor: int, uuid: str) -> Lease | None:
        """Say who has a device; where nobody has, its lock is ours."""
        if try_lock(descriptor):
            return self._named(uuid)
        return _read(path, descriptor, Lease)

    def _named(self, uuid: str) -> Lease | None:
        """Say whose live reservation names a device: its lock's file may have been removed."""
        for held in self._live():
            if uuid in held.gpus:
                return Lease(uuid, held.run_id, held.phase, held.pid, "unknown", held.since)
        return None

    def inherit(self, descriptor: int) -> DeviceLock:
        """Make a lock again from a descriptor that this process inherited from its holder.

        Raises:
            GateRefusedError: it is no device's lock, or is held by somebody else.
        """
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        with self._alone():
            relock(descriptor, path)
            before = _read(path, descriptor, Lease)
            lease = replace(before, pid=os.getpid(), user=user_name())
            _write(descriptor, lease)
        return DeviceLock(lease, descriptor)

    def mark_unusable(self, uuid: str, reason: str, boot_id: str) -> None:
        """Keep a device from every run until the host has been restarted.

        Raises:
            StorageFullError: the folder has no space.
        """
        since = self._clock.utc().isoformat(timespec="milliseconds")
        mark = Mark(uuid=uuid, reason=reason, boot_id=boot_id, since=since)
        path = self._path(uuid, _MARK_SUFFIX)
        with self._alone(), durable.storage_faults(path):
            descriptor = open_shared(path, _FILE_MODE)
            try:
                _write(descriptor, mark)
            finally:
                os.close(descriptor)

    def mark(self, uuid: str, boot_id: str) -> Mark | None:
        """Return why a device is not to be used; None when it may, or the host was restarted since.

        Raises:
            GateRefusedError: there is a mark that cannot be read; unknown is never usable.
        """
        path = self._path(uuid, _MARK_SUFFIX)
        if not path.exists():
            return None
        with self._alone():
            descriptor = open_shared(path, _FILE_MODE)
            try:
                found = _read(path, descriptor, Mark)
            finally:
                os.close(descriptor)
        return found if found.boot_id == boot_id else None

    def where(self, uuid: str) -> Path:
        """Name the file that marks a device unusable: who mended it removes that."""
        return self._path(uuid, _MARK_SUFFIX)

    def _path(self, uuid: str, suffix: str = LOCK_SUFFIX) -> Path:
        return self._folder / f"{quote(uuid, safe='')}{suffix}"


def user_name() -> str:
    """Name the user whose process this is, by number where it has no name."""
    uid = os.geteuid()
    with suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return str(uid)


def relock(descriptor: int, path: Path) -> None:
    """Make sure that an inherited descriptor holds its file's lock, and let no child have it.

    Raises:
        GateRefusedError: somebody else holds it, or the file is gone.
    """
    if not try_lock(descriptor):
        raise GateRefusedError(
            f"{path} is held by somebody else", remedy=f"see who holds it: fuser -v {path}"
        )
    if os.fstat(descriptor).st_nlink == 0:
        raise GateRefusedError(
            f"{path}: what was reserved has been given back already",
            remedy="start the run again",
        )
    os.set_inheritable(descriptor, False)  # noqa: FBT003 - the standard library's own way


def _write(descriptor: int, record: Lease | Mark) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(asdict(record)).encode(), 0)


def _read(path: Path, descriptor: int, kind: type[_Record]) -> _Record:
    """Read a record that another user may have written: nothing of it is taken on trust."""
    try:
        raw = durable.parse_json(os.pread(descriptor, _MAX_RECORD, 0))
        found = kind(**{name: _plain(value) for name, value in raw.items()})
        return replace(found, phase=Phase(found.phase)) if isinstance(found, Lease) else found
    except (TaskPackError, AttributeError, TypeError, ValueError) as error:
        raise GateRefusedError(
            f"{path} cannot be read", remedy=f"see whose it is: fuser -v {path}; remove it if none"
        ) from error


def _plain(value: object) -> Any:
    """Return a number, or a text that is fit to be shown.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(value, int) or (isinstance(value, str) and value.isprintable()):
        return value
    raise ValueError(f"{value!r} is neither a number nor a printable text")
