"""One supervisor per run: a lock that its process holds, free the moment the process is gone."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.errors import UsageError
from orchestrator.storage.lock import locked

_LOCK = ".supervisor.lock"
_BEGINNING = ".beginning.lock"


_claimed: dict[Path, int] = {}
"""Locks of runs that this process has made and not begun to drive."""


def claim(root: Path) -> None:
    """Take the lock of a new run before anybody can see that there is one.

    The next ``supervising`` of this process goes on with it.
    """
    descriptor = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    _claimed[root] = descriptor


@contextmanager
def supervising(root: Path) -> Iterator[None]:
    """Hold the lock of the run at ``root``.

    Raises:
        UsageError: another process is its supervisor.
    """
    descriptor = _claimed.pop(root, None)
    if descriptor is None:
        descriptor = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as held:
            raise UsageError(
                f"{root} has a supervisor that is alive", remedy="orch lifecycle follows it"
            ) from held
        yield
    finally:
        os.close(descriptor)


def is_supervised(root: Path) -> bool:
    """Tell whether a living process supervises the run at ``root``; writes nothing."""
    try:
        descriptor = os.open(root / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Wait for, then hold, the right to begin a run below ``root``; free when its holder dies."""
    with locked(root / _BEGINNING):
        yield
