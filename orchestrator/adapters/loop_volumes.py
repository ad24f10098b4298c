"""The Volumes port: folders that hold only so much.

``LoopVolumes`` needs root: a fully allocated image file ``.NAME.img`` beside the folder, with ext4
in it, mounted on the folder. A host that runs full later cannot take its blocks away, and a
container that fills it gets ENOSPC. ``FolderVolumes`` is a plain folder whose use somebody has to
watch; a fast writer outruns any watcher, so it is a relaxation.
"""

import errno
import os
import shutil
import subprocess
from pathlib import Path

from orchestrator.adapters.mounts import mounted_at
from orchestrator.errors import InfrastructureError, StorageFullError
from orchestrator.evidence.walk import TreeChangedError, Visit, reopen, walk
from orchestrator.ports import SizeLimit, Volume, Volumes

_BLOCK = 512
"""The unit of ``st_blocks``, whatever the file system (stat(2))."""

_BYTES_PER_INODE = 8192
_FEWEST_FILES = 1024
_ADMIN = 1 << 21
"""CAP_SYS_ADMIN as a bit of CapEff (capabilities(7))."""

_FORMAT = (
    *("mkfs.ext4", "-q", "-F", "-m", "0", "-i", str(_BYTES_PER_INODE)),
    # No journal: the content is dead after a crash of the host anyway. No discard: it would
    # give the allocated blocks back.
    *("-O", "^has_journal,^resize_inode"),
)
_TOOLS = ("mkfs.ext4", "mount", "umount")
_ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}


class LoopVolume:
    """A mounted image file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def path(self) -> Path:
        """The folder it is mounted on."""
        return self._folder

    @property
    def size_limit(self) -> SizeLimit:
        """Held by the file system itself."""
        return SizeLimit.LOOP

    def used(self) -> int:
        """Bytes of blocks in use."""
        status = os.statvfs(self._folder)
        return (status.f_blocks - status.f_bfree) * status.f_frsize

    def outgrown(self) -> bool:
        """Never: whoever writes more gets ENOSPC."""
        return False

    def close(self) -> None:
        """Unmount it and free its blocks; the folder stays, empty.

        Raises:
            InfrastructureError: it cannot be unmounted.
        """
        if os.path.ismount(self._folder):
            # Whoever still holds a file open keeps it until he closes it; the name is free now.
            _run("umount", "--lazy", str(self._folder))
        image_of(self._folder).unlink(missing_ok=True)


class LoopVolumes:
    """Makes loop volumes."""

    def relaxations(self) -> tuple[str, ...]:
        """None: the size is held by the kernel."""
        return ()

    def create(self, folder: Path, size: int, *, owner: tuple[int, int]) -> Volume:
        """Allocate, format and mount; nothing is left behind when one of these fails.

        Raises:
            StorageFullError: the host has not ``size`` bytes to allocate.
            InfrastructureError: it cannot be formatted or mounted.
        """
        folder.mkdir()
        image = image_of(folder)
        volume = LoopVolume(folder)
        try:
            _allocate(image, size)
            uid, gid = owner
            features = f"nodiscard,lazy_itable_init=1,root_owner={uid}:{gid}"
            _run(*_FORMAT, "-E", features, str(image))
            _run("mount", "-o", "loop,nodev,nosuid,noatime,noinit_itable", str(image), str(folder))
            (folder / "lost+found").rmdir()
        except BaseException:
            volume.close()
            folder.rmdir()
            raise
        return volume

    def adopt(self, folder: Path, size: int | None = None) -> Volume | None:
        """Take over what a supervisor that is gone left mounted at ``folder``, if anything.

        An image that is not mounted is from before a restart of the host, or was never finished:
        its content is dead, and it is removed.
        """
        del size  # the file system knows it
        if os.path.ismount(folder):
            return LoopVolume(folder)
        image_of(folder).unlink(missing_ok=True)
        return None

    def left(self, folder: Path) -> int | None:
        """Look for a mounted image, or for one that is mounted no more."""
        image = image_of(folder)
        if folder.is_symlink() or image.is_symlink():
            raise InfrastructureError(f"{folder} or its image is a link, which orch never makes")
        size = image.stat().st_blocks * _BLOCK if image.is_file() else None
        if not os.path.ismount(folder):
            return size
        mounted = mounted_at(folder.resolve())
        backing = None if mounted is None else mounted.backing()
        if backing not in {image.resolve(), Path(f"{image.resolve()} (deleted)")}:
            raise InfrastructureError(f"what is mounted on {folder} is not its own image")
        return size if size is not None else LoopVolume(folder).used()


class FolderVolume:
    """A plain folder that should not outgrow ``size`` bytes; None where nothing is written."""

    def __init__(self, folder: Path, size: int | None) -> None:
        self._folder = folder
        self._size = size

    @property
    def path(self) -> Path:
        """The folder."""
        return self._folder

    @property
    def size_limit(self) -> SizeLimit:
        """Held by nobody but a watcher."""
        return SizeLimit.WATCHED

    def used(self) -> int:
        """Bytes of blocks allocated to its files, each counted once however often it is linked."""
        return sum(self._blocks().values()) * _BLOCK

    def outgrown(self) -> bool:
        """Look through it; a loop volume of its size would hold so many bytes and files."""
        if self._size is None:
            return False
        most = max(_FEWEST_FILES, self._size // _BYTES_PER_INODE)
        try:
            blocks = self._blocks(most)
        except TreeChangedError:
            return False  # somebody is writing; the next look counts
        except PermissionError:
            reopen(self._folder)
            return False
        return len(blocks) > most or sum(blocks.values()) * _BLOCK > self._size

    def _blocks(self, most: int | None = None) -> dict[int, int]:
        """Map each file's inode to its blocks; look at one more than ``most`` files at most."""
        found: dict[int, int] = {}
        for entry in walk(self._folder, lambda _: True):
            if entry.visit is Visit.SEEN:
                found[entry.status.st_ino] = entry.status.st_blocks
            if most is not None and len(found) > most:
                break
        return found

    def close(self) -> None:
        """Nothing is open; the files stay."""


class FolderVolumes:
    """Makes plain folders."""

    def relaxations(self) -> tuple[str, ...]:
        """Say that sizes are watched, not held."""
        return ("volumes are watched folders: their size is not held by the kernel",)

    def create(self, folder: Path, size: int, *, owner: tuple[int, int]) -> Volume:
        """Make the folder, if the host has ``size`` bytes free now.

        Raises:
            StorageFullError: it has not.
            InfrastructureError: it may not be given to ``owner``.
        """
        status = os.statvfs(folder.parent)
        if status.f_bavail * status.f_frsize < size:
            raise _full(folder, size)
        folder.mkdir()
        if owner != (os.geteuid(), os.getegid()):
            try:
                os.chown(folder, *owner)
            except PermissionError as error:
                folder.rmdir()
                raise InfrastructureError(
                    f"{folder} cannot be given to user {owner[0]}", remedy="run orch as root"
                ) from error
        folder.chmod(0o755)
        return FolderVolume(folder, size)

    def adopt(self, folder: Path, size: int | None = None) -> Volume | None:
        """Take over a folder that a supervisor that is gone left, if it is there."""
        return FolderVolume(folder, size) if folder.is_dir() else None

    def left(self, folder: Path) -> int | None:  # noqa: ARG002 - the same for every folder
        """None: nothing is open, and the files stay."""
        return None


def open_volumes() -> Volumes:
    """Choose loop volumes where this process may mount and the tools are there."""
    return LoopVolumes() if can_mount() else FolderVolumes()


def can_mount() -> bool:
    """Tell whether loop volumes are possible here; nothing is tried."""
    return (
        may_mount()
        and os.access("/dev/loop-control", os.R_OK | os.W_OK)
        and "\text4\n" in Path("/proc/filesystems").read_text()
        and all(shutil.which(tool, path=_ENV["PATH"]) for tool in _TOOLS)
    )


def may_mount() -> bool:
    """Tell whether this process holds what mount(2) asks for."""
    status = Path("/proc/self/status").read_text()
    capabilities = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(capabilities.split()[1], 16) & _ADMIN)


def image_of(folder: Path) -> Path:
    """Where the image of a volume lies; it exists while the volume does."""
    return folder.with_name(f".{folder.name}.img")


def _allocate(image: Path, size: int) -> None:
    descriptor = os.open(image, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            raise _full(image, size) from error
        raise
    finally:
        os.close(descriptor)


def _full(path: Path, size: int) -> StorageFullError:
    return StorageFullError(
        f"no {size} bytes to allocate for {path}",
        remedy="free space there (orch gc), or ask for less disk in the task",
    )


def _run(*command: str) -> None:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=_ENV,
        start_new_session=True,
        check=False,
    )
    if done.returncode != 0:
        told = done.stderr.decode(errors="replace").strip()
        raise InfrastructureError(
            f"{command[0]} failed: {told}", remedy="orch doctor says what this host can mount"
        )
