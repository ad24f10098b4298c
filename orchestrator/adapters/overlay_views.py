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
from orchestrator.adapters.mounts import mounted_at
from orchestrator.errors import AssetMismatchError, InfrastructureError
from orchestrator.ports import Views

_READ_ONLY = 1
_HARMLESS = 2 | 4
"""MS_RDONLY; MS_NOSUID and MS_NODEV (mount(2))."""
_DETACH = 2
"""MNT_DETACH (umount2(2)): whoever still looks at it keeps it; the name is free now."""
_EMPTY = "empty"
_LIBC = ctypes.CDLL(None, use_errno=True)


class OverlayViews(Views):
    """Read-only overlays, all those of one folder in a small file system mounted there.

    So one call closes them all. A read-only overlay asks for two layers; the second is an empty
    folder of that file system, which nobody can remove: an overlay with a removed layer lists
    nothing, and a container keeps its overlays for longer than the host does.
    """

    @override
    def relaxations(self) -> tuple[str, ...]:
        return ()

    @override
    def open(self, source: Path, folder: Path) -> Path:
        views = folder.parent
        empty = views / _EMPTY
        if not source.is_dir():
            raise AssetMismatchError(
                f"{source} is missing", remedy="orch task prepare makes assets again"
            )
        try:
            if not os.path.ismount(views):
                views.mkdir(exist_ok=True)
                _mount("tmpfs", views, "size=64k,mode=700")
                empty.mkdir()
            folder.mkdir()
            _mount_overlay((source, empty), folder)
        except OSError as error:
            raise InfrastructureError(
                f"{source} cannot be laid over {folder}: {error.strerror}",
                remedy="keep assets and runs on a local file system; orch doctor looks at it",
            ) from error
        return folder

    @override
    def close(self, folder: Path) -> None:
        if os.path.ismount(folder):
            _check(_LIBC.umount2(os.fsencode(folder), _DETACH))
        if folder.is_dir():
            folder.rmdir()

    @override
    def left(self, folder: Path) -> bool:
        if folder.is_symlink():
            raise InfrastructureError(f"{folder} is a link, which orch never makes")
        if not folder.is_dir():
            return False
        mounted = mounted_at(folder.resolve())
        if mounted is not None and mounted.kind != "tmpfs":
            raise InfrastructureError(f"what is mounted on {folder} holds no views")
        return True


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

    @override
    def left(self, folder: Path) -> bool:
        return False


def open_views(shared: Path) -> Views:
    """Choose overlays where this process may mount one over ``shared``, as a trial shows."""
    if not may_mount():
        return PlainViews()
    while not shared.is_dir():
        shared = shared.parent
    with tempfile.TemporaryDirectory(prefix="orch-views-") as name:
        overlays = OverlayViews()
        try:
            overlays.open(shared, Path(name, "views", "trial"))
        except InfrastructureError:
            return PlainViews()
        finally:
            overlays.close(Path(name, "views"))
    return overlays


def _mount_overlay(layers: tuple[Path, ...], folder: Path) -> None:
    """Lay ``layers`` over one another, the first on top.

    They are named by descriptor: no name has to be escaped, and a container that reads its mount
    table learns nothing of the host's folders.
    """
    opened = [os.open(layer, os.O_PATH | os.O_DIRECTORY) for layer in layers]
    try:
        names = ":".join(f"/proc/self/fd/{descriptor}" for descriptor in opened)
        _mount("overlay", folder, f"lowerdir={names}", _READ_ONLY)
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _mount(kind: str, folder: Path, options: str, flags: int = 0) -> None:
    """Call mount(2).

    Raises:
        OSError: the kernel or the file system would not.
    """
    name = kind.encode()
    _check(_LIBC.mount(name, os.fsencode(folder), name, flags | _HARMLESS, options.encode()))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
