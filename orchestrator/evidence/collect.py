"""Take checkpoints out of a folder that the candidate filled, with its container gone.

Everything is reached by descriptor, nothing is followed, and what is copied is hashed in the same
pass, so that the digest is that of the bytes kept. A copy is complete, durable and read-only under
its name, or not there.
"""

import errno
import fcntl
import hashlib
import os
import re
import stat
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path

from orchestrator.domain.checkpoint import EntryKind, Published
from orchestrator.evidence.tree import Entry, Kind, Manifest, chunks_of, encode_path, git_mode
from orchestrator.evidence.walk import PATH_LIMIT, Found, Visit, open_file, remove_tree, walk
from orchestrator.storage.durable import storage_faults, sync_folder

MAX_FILES = 100_000
_MAX_LOOKED_AT = 1_000_000
_NEVER = 2**63 - 1
_FICLONE = 0x40049409
_ROOT = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_ONLY = {"100644": 0o444, "100755": 0o555}
_FOLDER = 0o555
_PROGRESS = re.compile(r"checkpoint-([0-9]{1,12})")
_RESULT_NAMES = (
    ".complete",
    "artifacts.json",
    "official-eval-receipt.json",
    "receipts",
    "reward.json",
    "score.json",
    "summary.json",
)


class Unfit(StrEnum):
    """Why a published folder cannot be a checkpoint."""

    EMPTY = "empty"
    LINK_LEAVES = "link_leaves_the_checkpoint"
    SPECIAL_FILE = "special_file"
    TOO_DEEP = "too_deep"
    TOO_LARGE = "too_large"
    TOO_MANY_FILES = "too_many_files"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Collected:
    """A checkpoint that is ours now: read-only, durable. ``bytes`` and ``files`` are its size."""

    name: str
    progress: int
    digest: str
    bytes: int
    files: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A folder that was not collected; ``path`` (percent-encoded) is where the reason lies."""

    name: str
    reason: Unfit
    path: str


def published(checkpoints: Path) -> tuple[Published, ...]:
    """List what a candidate published, in any order; no folder there is nothing published.

    Nor is anything in a folder that is shut to us, which it cannot be to root.

    ``changed_ns`` is the newest ctime in a folder. After a million entries the rest of the folders
    is not looked into, and counts as changed at the end of time.
    """
    try:
        folder = os.open(checkpoints, _ROOT)
    except (FileNotFoundError, PermissionError):
        return ()
    except OSError as error:
        if error.errno not in {errno.ELOOP, errno.ENOTDIR}:
            raise
        return (Published(os.fsencode(checkpoints.name), _kind(checkpoints.lstat()), _NEVER),)
    try:
        with os.scandir(folder) as names:
            statuses = {item.name: item.stat(follow_symlinks=False) for item in names}
    finally:
        os.close(folder)
    left = _MAX_LOOKED_AT
    found = []
    for name, status in statuses.items():
        changed, kind = status.st_ctime_ns, _kind(status)
        if kind is EntryKind.FOLDER:
            times = _ctimes(checkpoints / name, left + 1)
            left -= len(times)
            changed = max([changed, *times]) if left >= 0 else _NEVER
        found.append(Published(os.fsencode(name), kind, changed))
    return tuple(found)


def collect_one(source: Path, destination: Path, *, max_bytes: int) -> Collected | Refused:
    """Copy one checkpoint.

    Args:
        source: its folder; nothing writes to it any more.
        destination: where it will be, named ``checkpoint-<progress>``; what an interrupted copy
            left beside it is removed.
        max_bytes: how large it may be, by apparent sizes, so that holes count.

    Raises:
        StorageFullError: no space for it.
        FileExistsError: ``destination`` exists.
        ValueError: ``destination`` is not named as a checkpoint.
    """
    match = _PROGRESS.fullmatch(destination.name)
    if match is None:
        raise ValueError(f"{destination.name!r} is not the name of a checkpoint")
    if os.path.lexists(destination):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(destination))
    part = destination.with_name(f".{destination.name}.part")
    remove_tree(part)
    with storage_faults(destination):
        part.mkdir(0o700)
        copy = _Copy(part)
        try:
            copy.run(source, max_bytes)
            part.rename(destination)
        except _UnfitError as unfit:
            return Refused(destination.name, unfit.reason, encode_path(unfit.path))
        finally:
            copy.close()
            remove_tree(part)
    sync_folder(destination.parent)
    manifest = Manifest(tuple(sorted(copy.entries)))
    return Collected(
        name=destination.name,
        progress=int(match.group(1)),
        digest=manifest.digest,
        bytes=manifest.size,
        files=len(manifest.entries),
    )


def forged(out: Path) -> tuple[str, ...]:
    """List names in ``/out`` that look like results of ours. They are ignored; an audit wants them.

    Raises:
        OSError: ``out`` is not a folder.
    """
    try:
        folder = os.open(out, _ROOT)
    except PermissionError:
        return ()
    try:
        return tuple(name for name in _RESULT_NAMES if _lexists(folder, name))
    finally:
        os.close(folder)


class _UnfitError(Exception):
    def __init__(self, reason: Unfit, path: bytes) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path


class _Copy:
    """One copy; ``entries`` is what has been copied so far."""

    def __init__(self, target: Path) -> None:
        self._target = os.open(target, _ROOT)
        self._folders = [b"."]
        self.entries: list[Entry] = []

    def run(self, source: Path, max_bytes: int) -> None:
        """Copy all, then make it durable and read-only."""
        try:
            _refuse_too_much(source, max_bytes)
            for found in walk(source, self._enter):
                if found.visit is Visit.SHUT:
                    raise _UnfitError(Unfit.UNREADABLE, found.path)
                if found.visit is Visit.SEEN and not found.is_folder:
                    self._take(found)
        except PermissionError as error:
            raise _UnfitError(Unfit.UNREADABLE, b"") from error
        if not self.entries:
            raise _UnfitError(Unfit.EMPTY, b"")
        for folder in reversed(self._folders):
            descriptor = os.open(folder, _ROOT, dir_fd=self._target)
            os.fchmod(descriptor, _FOLDER)
            _sync(descriptor)

    def close(self) -> None:
        os.close(self._target)

    def _enter(self, found: Found) -> bool:
        _refuse_too_deep(found)
        os.mkdir(found.path, 0o700, dir_fd=self._target)
        self._folders.append(found.path)
        return True

    def _take(self, found: Found) -> None:
        _refuse_too_deep(found)
        if stat.S_ISLNK(found.status.st_mode):
            self._take_link(found)
        elif stat.S_ISREG(found.status.st_mode):
            self._take_file(found)
        else:
            raise _UnfitError(Unfit.SPECIAL_FILE, found.path)

    def _take_link(self, found: Found) -> None:
        target = os.readlink(found.name, dir_fd=found.folder)
        if _leaves(found.path, target):
            raise _UnfitError(Unfit.LINK_LEAVES, found.path)
        os.symlink(target, found.path, dir_fd=self._target)
        digest = hashlib.sha256(target).hexdigest()
        self.entries.append(Entry(found.path, Kind.LINK, "120000", len(target), digest))

    def _take_file(self, found: Found) -> None:
        source = open_file(found.folder, found.name, found.status)
        mode = git_mode(found.status.st_mode)
        try:
            target = os.open(found.path, _WRITE, 0o600, dir_fd=self._target)
            with os.fdopen(target, "r+b", buffering=0):
                size, digest = _copy_file(source, target, found.status.st_size)
                os.fchmod(target, _READ_ONLY[mode])
                os.fsync(target)
        finally:
            os.close(source)
        self.entries.append(Entry(found.path, Kind.FILE, mode, size, digest))


def _refuse_too_much(source: Path, max_bytes: int) -> None:
    """Count before anything is copied: every file that is costs an fsync."""
    count = size = 0
    for found in walk(source, lambda _: True):
        if found.visit is Visit.SEEN:
            count += 1
            size += found.status.st_size if stat.S_ISREG(found.status.st_mode) else 0
        if count > MAX_FILES:
            raise _UnfitError(Unfit.TOO_MANY_FILES, found.path)
        if size > max_bytes:
            raise _UnfitError(Unfit.TOO_LARGE, found.path)


def _refuse_too_deep(found: Found) -> None:
    if len(found.path) > PATH_LIMIT:
        raise _UnfitError(Unfit.TOO_DEEP, found.path)


def _copy_file(source: int, target: int, size: int) -> tuple[int, str]:
    """Copy and hash; share the blocks instead where the file system can. Return size and sha256."""
    digest = hashlib.sha256()
    copied = 0
    if _shares_blocks(source, target):
        for chunk in chunks_of(target, size):
            digest.update(chunk)
            copied += len(chunk)
        return copied, digest.hexdigest()
    if size:
        os.posix_fallocate(target, 0, size)
    for chunk in chunks_of(source, size):
        digest.update(chunk)
        view = memoryview(chunk)
        while view:
            view = view[os.write(target, view) :]
        copied += len(chunk)
    os.ftruncate(target, copied)
    return copied, digest.hexdigest()


def _shares_blocks(source: int, target: int) -> bool:
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as error:
        if error.errno in {errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL}:
            return False
        raise
    return True


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _leaves(path: bytes, target: bytes) -> bool:
    """Tell whether a link might lead out of its tree, whatever the other links are.

    It cannot if it goes up first, at most to the root, and then only down: each step down lands
    on a folder of the tree or on another link, for which the same holds.
    """
    if target.startswith(b"/"):
        return True
    parts = [part for part in target.split(b"/") if part not in {b"", b"."}]
    ups = next((i for i, part in enumerate(parts) if part != b".."), len(parts))
    return ups > path.count(b"/") or b".." in parts[ups:]


def _kind(status: os.stat_result) -> EntryKind:
    if stat.S_ISLNK(status.st_mode):
        return EntryKind.LINK
    return EntryKind.FOLDER if stat.S_ISDIR(status.st_mode) else EntryKind.OTHER


def _ctimes(folder: Path, limit: int) -> list[int]:
    """Read the ctimes of a folder's contents, at most ``limit``; none where it is shut to us."""
    try:
        with closing(walk(folder, lambda _: True)) as entries:
            seen = (found for found in entries if found.visit is Visit.SEEN)
            return [found.status.st_ctime_ns for found in islice(seen, limit)]
    except PermissionError:
        return []


def _lexists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
