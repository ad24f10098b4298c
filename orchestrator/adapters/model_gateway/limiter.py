"""One limit per key for all attempts of this host, whoever runs them.

A request holds one of a key's slots, each a file under a flock in the host folder, so a dead
holder's slot is free at once. A provider that asks to wait is asked by nobody with that key until
then: the moment stands in a file beside the slots.

Users of the host who have the same key share its slots. Who has it not cannot find them: names
follow from the key, and the folder cannot be listed. (Where a provider has no key, they follow from
its address.)
"""

import asyncio
import fcntl
import hashlib
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from orchestrator.errors import InfrastructureError
from orchestrator.ports import Clock

FOLDER = "model-keys"
_FOLDER_MODE = 0o1733
_SLOT_MODE = 0o644
_PAUSE_MODE = 0o666
_LOOK_EVERY = 0.05
_NS = 1_000_000_000
_MAX_PAUSE = 200
_LONGEST_PAUSE = 600.0
"""Seconds, many times what a provider is waited for."""


class KeyLimiter:
    """The slots of one key. Nothing on disk tells the key: names are a digest's beginning."""

    def __init__(self, host: Path, identity: str, slots: int, clock: Clock) -> None:
        self._folder = host / FOLDER
        self._name = hashlib.sha256(b"orch model key\0" + identity.encode()).hexdigest()[:16]
        self._slots = slots
        self._clock = clock
        self._turn = asyncio.Lock()

    @property
    def _pause(self) -> Path:
        return self._folder / f"{self._name}.pause"

    def prepare(self) -> None:
        """Make the folder.

        Raises:
            InfrastructureError: the host will not have it.
        """
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._folder.stat().st_uid == os.geteuid():
                self._folder.chmod(_FOLDER_MODE)
        except OSError as error:
            raise InfrastructureError(
                f"{self._folder}: {error.strerror}", remedy="name another folder: ORCH_HOST"
            ) from error

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold one slot, waiting for one and for the end of a pause; first come, first served."""
        async with self._turn:
            await self._sit_out()
            descriptor = self._take()
            while descriptor is None:  # flock tells no other process
                await asyncio.sleep(_LOOK_EVERY)
                descriptor = self._take()
        try:
            yield
        finally:
            os.close(descriptor)

    def pause(self, seconds: float) -> None:
        """Let nobody ask with this key for ``seconds``, as the provider wants it."""
        until = self._clock.boottime_ns() + round(seconds * _NS)
        if until <= self._paused_until():
            return
        record = json.dumps({"boot": self._clock.boot_id(), "until_ns": until}).encode()
        descriptor = _open(self._pause, os.O_RDWR, _PAUSE_MODE)
        try:
            os.pwrite(descriptor, record.ljust(_MAX_PAUSE), 0)
        finally:
            os.close(descriptor)

    def paused(self) -> float:
        """Seconds until somebody may ask again. Others may write the file: nonsense is none."""
        left = (self._paused_until() - self._clock.boottime_ns()) / _NS
        return left if 0 < left <= _LONGEST_PAUSE else 0.0

    async def _sit_out(self) -> None:
        while (left := self.paused()) > 0:  # noqa: ASYNC110 - others may make it longer
            await asyncio.sleep(min(left, 1.0))

    def _paused_until(self) -> int:
        try:
            value = json.loads(self._pause.read_bytes()[:_MAX_PAUSE])
            return int(value["until_ns"]) if value["boot"] == self._clock.boot_id() else 0
        except (OSError, ValueError, TypeError, KeyError, OverflowError):
            return 0  # none, or half written: the provider will say it again

    def _take(self) -> int | None:
        for number in range(self._slots):
            slot = self._folder / f"{self._name}.{number}.slot"
            descriptor = _open(slot, os.O_RDONLY, _SLOT_MODE)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
            else:
                return descriptor
        return None


def _open(path: Path, access: int, mode: int) -> int:
    """Open a file that others use as well, whoever made it."""
    flags = access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        descriptor = os.open(path, flags | os.O_CREAT, mode)
        if os.fstat(descriptor).st_uid == os.geteuid():
            os.fchmod(descriptor, mode)
        return descriptor
