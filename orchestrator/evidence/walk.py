"""Walk a folder that someone hostile has filled, by descriptor and without recursion.

One descriptor is open at a time, whatever the depth: the walk goes down with ``openat`` and comes
back through ``..``, and it proves by device and inode that it came back to where it was. Links are
never followed, and nothing but folders is ever opened here.
"""

import errno
import os
import stat
from collections.abc import Callable, Generator, Iterator
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from orchestrator.errors import InfrastructureError

PATH_LIMIT = 4095
"""Longest path in bytes the kernel takes in one call (PATH_MAX without its NUL)."""

NAME_LIMIT = 255
"""Longest name in bytes that Linux file systems hold."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class TreeChangedError(InfrastructureError):
    """A tree that should stand still changed while it was read."""


class Visit(Enum):
    """Why the walk stops at an entry."""

    SEEN = 1
    LEFT = 2
    """A folder whose contents have all been seen."""
    SHUT = 3
    """A folder that may not be read."""


class Found(NamedTuple):
    """An entry of the tree. ``folder`` is open on its parent until the next is asked for."""

    visit: Visit
    folder: int
    name: bytes
    path: bytes
    status: os.stat_result

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder; a link to one is not."""
        return stat.S_ISDIR(self.status.st_mode)


class _Level(NamedTuple):
    found: Found
    identity: tuple[int, int]
    names: Iterator[bytes]


def walk(root: Path, enter: Callable[[Found], bool]) -> Generator[Found, None, None]:
    """Yield every entry below ``root``, names in byte order, a folder before its contents.

    Args:
        root: the folder; a link here is refused too.
        enter: asked for each folder after it was yielded as seen.

    Raises:
        TreeChangedError: an entry vanished or moved while the walk was on it.
        OSError: ``root`` cannot be opened as a folder.
    """
    here = os.open(root, _FOLDER)
    try:
        status = os.fstat(here)
        levels = [_level(here, Found(Visit.LEFT, -1, b"", b"", status))]
        while levels:
            level = levels[-1]
            name = next(level.names, None)
            if name is None:
                levels.pop()
                if levels:
                    here = _swap(here, b"..", levels[-1].identity)
                    yield level.found._replace(folder=here)
                continue
            parent = level.found.path
            path = parent + b"/" + name if parent else name
            found = Found(Visit.SEEN, here, name, path, _status(here, name))
            yield found
            if not found.is_folder or not enter(found):
                continue
            try:
                here = _swap(here, name, (found.status.st_dev, found.status.st_ino))
            except PermissionError:
                yield found._replace(visit=Visit.SHUT)
                continue
            levels.append(_level(here, found._replace(visit=Visit.LEFT)))
    finally:
        os.close(here)


def open_file(folder: int, name: bytes, status: os.stat_result) -> int:
    """Open the regular file that ``status`` was taken of, and no other.

    Raises:
        PermissionError: it may not be read.
        TreeChangedError: something else lies there now, or a process holds a lease on it.
    """
    try:
        descriptor = os.open(name, _FILE, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.EAGAIN:  # the kernel breaks a lease after 45 s; we do not wait
            raise TreeChangedError(f"{name!r} is held by a lease of a process") from error
        raise _changed(error, name) from error
    now = os.fstat(descriptor)
    if (now.st_dev, now.st_ino) != (status.st_dev, status.st_ino):
        os.close(descriptor)
        raise TreeChangedError(f"{name!r} was exchanged while it was read")
    return descriptor


def reopen(folder: Path) -> None:
    """Let ourselves into the root of a volume again; its owner in a container may have shut it."""
    if not os.access(folder, os.R_OK | os.X_OK):
        folder.chmod(0o755)


def remove_tree(path: Path) -> None:
    """Remove a folder and all in it, however deep, long-named or shut; gone already is fine.

    Raises:
        OSError: the file system refuses (as another user's, or read-only).
    """
    if not os.path.lexists(path):
        return
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    path.chmod(stat.S_IRWXU)
    for found in walk(path, _make_enterable):
        if found.visit is Visit.LEFT:
            os.rmdir(found.name, dir_fd=found.folder)
        elif not found.is_folder:
            os.unlink(found.name, dir_fd=found.folder)
    path.rmdir()


def _make_enterable(found: Found) -> bool:
    if found.status.st_mode & stat.S_IRWXU != stat.S_IRWXU:
        os.chmod(found.name, stat.S_IRWXU, dir_fd=found.folder)
    return True


def _level(here: int, found: Found) -> _Level:
    identity = (found.status.st_dev, found.status.st_ino)
    return _Level(found, identity, iter(sorted(map(os.fsencode, os.listdir(here)))))


def _status(folder: int, name: bytes) -> os.stat_result:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError as error:
        raise _changed(error, name) from error


def _swap(here: int, name: bytes, identity: tuple[int, int]) -> int:
    """Open the folder ``name`` of ``here``, check that it is the one meant, close ``here``."""
    try:
        there = os.open(name, _FOLDER, dir_fd=here)
    except OSError as error:
        raise _changed(error, name) from error
    status = os.fstat(there)
    if (status.st_dev, status.st_ino) != identity:
        os.close(there)
        raise TreeChangedError(f"folder {name!r} moved while it was walked")
    os.close(here)
    return there


def _changed(error: OSError, name: bytes) -> OSError | TreeChangedError:
    if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO}:
        return TreeChangedError(f"{name!r} changed while it was read: {error.strerror}")
    return error
