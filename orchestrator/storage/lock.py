"""A file lock among the processes of this host, free the moment its holder is gone."""

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LOOK_EVERY = 0.02


@contextmanager
def locked(path: Path, *, patience: float | None = None, mode: int = 0o644) -> Iterator[None]:
    """Hold the lock at ``path``; the file is made when missing, and stays.

    Args:
        patience: seconds to wait for another holder; None means for as long as it lives.
        mode: of the file when it is made; the umask does not take from it.

    Raises:
        TimeoutError: another process still holds it.
    """
    descriptor = open_shared(path, mode)
    try:
        if patience is None:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        elif not lock_within(descriptor, patience):
            raise TimeoutError(f"{path} stayed locked for {patience:.0f} s")
        yield
    finally:
        os.close(descriptor)


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file without waiting; False where another process has it locked.

    Args:
        shared: only look: two that do so do not take each other for a holder.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_within(descriptor: int, patience: float) -> bool:
    """Lock an open file within so many seconds; False where another process kept it for so long.

    It is asked for again and again: flock itself knows no time limit.
    """
    pause = threading.Event()
    for _ in range(max(1, round(patience / _LOOK_EVERY))):
        if try_lock(descriptor):
            return True
        pause.wait(_LOOK_EVERY)
    return False


def open_shared(path: Path, mode: int) -> int:
    """Open a file that several users share, made with ``mode`` where it is missing.

    In a sticky folder the kernel may refuse O_CREAT on a file that another user has made: see
    fs.protected_regular in proc_sys_fs(5).
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        with suppress(FileNotFoundError):
            return os.open(path, flags)
        with suppress(FileExistsError):  # somebody else was faster
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, mode)
            os.fchmod(descriptor, mode)
            return descriptor
