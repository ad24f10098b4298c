"""Read what a container wrote: regular files only, never through links, never more than a cap."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

_PLAIN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_REFUSALS = frozenset(
    # EAGAIN: its owner holds a lease on it, and we do not wait for that.
    {errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.EACCES, errno.ENXIO, errno.EAGAIN}
)


def read_untrusted(folder: Path, name: str, *, max_bytes: int) -> bytes | None:
    """Return the bytes of ``folder/name``; None unless it is a plain file of at most the cap.

    ``folder`` is a volume's and may be shut to us; ``name`` is a single part. The container chose
    what is there.
    """
    try:
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except PermissionError:
        return None
    try:
        file = os.open(name, _PLAIN, dir_fd=at)
    except OSError as refusal:
        if refusal.errno in _REFUSALS:
            return None
        raise
    finally:
        os.close(at)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_size > max_bytes:
            return None
        return _read_all(file, max_bytes)
    finally:
        os.close(file)


def _read_all(file: int, max_bytes: int) -> bytes | None:
    data = bytearray()
    while chunk := os.read(file, 1 << 16):
        data += chunk
        if len(data) > max_bytes:
            return None
    return bytes(data)


def names_in(folder: Path, *, most: int) -> Iterator[str]:
    """Yield at most ``most`` names of a folder that a container writes to; none if it is shut."""
    with suppress(PermissionError), os.scandir(folder) as found:
        for entry in islice(found, most):
            yield entry.name
