"""The Views port: each container's own read-only sight of folders that several containers see.

Two containers that have the same inode mounted can talk through it without a network: one locks a
file (flock(2)), the other tries. An overlay has inodes of its own, so every container gets one over
each shared folder; its data is still the one copy in the page cache. Mounting takes root.
"""

import ctypes
import os
import tempfile
from pathlib import Path

from typing_extensions import override

from orchestrator.adapters.loop_volumes import may_mount
from orchestrator.errors import InfrastructureError
from orchestrator.ports import Views

_FLAGS = 1 | 2 | 4
"""MS_RDONLY, MS_NOSUID, MS_NODEV (mount(2))."""
_DETACH = 2
"""MNT_DETACH (umount2(2)): whoever still looks at it keeps it; the name is free now."""
_LIBC = ctypes.CDLL(None, use_errno=True)


class OverlayViews(Views):
    """Read-only overlays with a single layer."""

    @override
    def relaxations(self) -> tuple[str, ...]:
        return ()

    @override
    def open(self, source: Path, folder: Path) -> Path:
        folder.mkdir(parents=True)
        try:
            mount(source, folder)
        except OSError as error:
            folder.rmdir()
            raise InfrastructureError(
                f"{source} cannot be laid over {folder}: {error.strerror}",
                remedy="keep assets and runs on a local file system; orch doctor looks at it",
            ) from error
        return folder

    @override
    def close(self, folder: Path) -> None:
        if not folder.is_dir():
            return
        for view in folder.iterdir():
            if os.path.ismount(view):
                _check(_LIBC.umount2(os.fsencode(view), _DETACH))
            view.rmdir()
        folder.rmdir()


class PlainViews(Views):
    """The shared folder itself, for those who may not mount."""

    @override
    def relaxations(self) -> tuple[str, ...]:
        return ("assets have no view of their own in each container: locks on them are shared",)

    @override
    def open(self, source: Path, folder: Path) -> Path:
        return source

    @override
    def close(self, folder: Path) -> None:
        """Nothing was opened."""


def open_views(shared: Path) -> Views:
    """Choose overlays where this process may mount one over ``shared``, as a trial shows."""
    if not may_mount():
        return PlainViews()
    while not shared.is_dir():
        shared = shared.parent
    with tempfile.TemporaryDirectory(prefix="orch-view-") as name:
        trial = Path(name)
        try:
            mount(shared, trial)
        except OSError:
            return PlainViews()
        _check(_LIBC.umount2(os.fsencode(trial), _DETACH))
    return OverlayViews()


def mount(source: Path, folder: Path) -> None:
    """Mount a read-only overlay of ``source`` on the empty ``folder``.

    Both are named by descriptor: no name has to be escaped, and a container that reads its mount
    table learns nothing of the host's folders. A read-only overlay asks for two layers; the empty
    folder itself is the second.

    Raises:
        OSError: the kernel or the file system would not.
    """
    opened = [os.open(path, os.O_PATH | os.O_DIRECTORY) for path in (source, folder)]
    try:
        layers = ":".join(f"/proc/self/fd/{descriptor}" for descriptor in opened)
        options = f"lowerdir={layers}".encode()
        _check(_LIBC.mount(b"overlay", os.fsencode(folder), b"overlay", _FLAGS, options))
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
