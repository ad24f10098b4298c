"""The one module that writes durable files, and the strict JSON both ways.

Write order: a hidden temporary file in the same folder, all bytes, a size check, fsync, then a
link (which never clobbers) or a rename, then fsync of the folder. A reader sees the old file, the
new file or none, never a part. A failed fsync is final: the kernel may have dropped the dirty
pages already, so trying again would report success over lost bytes.
"""

import errno
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from orchestrator.errors import StorageFullError, TaskPackError, UsageError
from receipts import reading
from receipts.errors import MalformedError

MAX_JSON = 64 * 1024**2
BALLAST = 1024**2
_STORAGE_FAULTS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})
_UNUSABLE = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EROFS),
        *(errno.ENOTDIR, errno.ENOENT, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG),
    }
)
_UNFINISHED = ".tmp"
_REMEDY = "free space on that file system (orch gc), then run the same command again"


@contextmanager
def storage_faults(path: Path) -> Iterator[None]:
    """Turn a full or failing file system under ``path`` into ``StorageFullError``."""
    try:
        yield
    except OSError as error:
        if error.errno in _STORAGE_FAULTS:
            raise _storage_full(path, error) from error
        raise


@contextmanager
def folder_faults(what: str, folder: Path, remedy: str) -> Iterator[None]:
    """Turn a folder of the operator's choice that cannot be used into ``UsageError``."""
    try:
        yield
    except OSError as error:
        if error.errno not in _UNUSABLE:
            raise
        why = "not a folder" if error.errno == errno.EEXIST else error.strerror
        raise UsageError(f"{what} {folder} cannot be used: {why}", remedy=remedy) from error


def require_writable(folder: Path) -> None:
    """Check that files can be made in ``folder``.

    Raises:
        PermissionError: they cannot, or its file system is mounted read-only.
    """
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "it cannot be written to", str(folder))


def write_file(path: Path, data: bytes, *, replace: bool = False, mode: int = 0o644) -> None:
    """Write ``data`` to ``path`` so that it is there whole and durable, or not at all.

    Args:
        path: where; its folder must exist.
        data: all of the content.
        replace: put it in place of an existing file; by default an existing file stays.
        mode: permission bits, whatever the umask.

    Raises:
        FileExistsError: ``path`` exists and ``replace`` is False.
        StorageFullError: no space, or an fsync failed; an older file is intact.
    """
    with storage_faults(path):
        descriptor, name = tempfile.mkstemp(prefix=".", suffix=_UNFINISHED, dir=path.parent)
        temporary = Path(name)
        try:
            try:
                os.fchmod(descriptor, mode)
                _write_all(descriptor, data)
                if os.fstat(descriptor).st_size != len(data):
                    raise OSError(errno.EIO, "file size differs from what was written", str(path))
                _sync(descriptor, path)
            finally:
                os.close(descriptor)
            if replace:
                temporary.replace(path)
            else:
                os.link(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)


def remove_file(path: Path) -> None:
    """Remove a file, durably; one that is not there is fine.

    Raises:
        StorageFullError: the fsync failed.
    """
    if path.exists():
        path.unlink()
        sync_folder(path.parent)


def remove_unfinished(folder: Path) -> None:
    """Remove what a killed ``write_file`` left in ``folder``; nobody else may be writing there."""
    for left in unfinished(folder):
        left.unlink(missing_ok=True)


def unfinished(folder: Path) -> tuple[Path, ...]:
    """List what a killed ``write_file`` left in ``folder``, or one is writing there now."""
    if folder.is_symlink():
        return ()
    found = (p for p in sorted(folder.glob(f".*{_UNFINISHED}")) if p.is_file())
    return tuple(path for path in found if not path.is_symlink())


def write_json(path: Path, value: object, *, replace: bool = False, mode: int = 0o644) -> None:
    """Write ``value`` as strict, readable JSON; otherwise as ``write_file``.

    Raises:
        ValueError: it holds NaN or an infinity; nothing was written.
    """
    text = json.dumps(value, allow_nan=False, sort_keys=True, indent=2, ensure_ascii=False)
    write_file(path, text.encode() + b"\n", replace=replace, mode=mode)


def parse_json(data: bytes) -> Any:
    """Parse strict JSON: UTF-8, no key twice, no lone surrogate, no NaN and no infinity.

    Raises:
        TaskPackError: it is not that; the message says what is wrong and where.
    """
    try:
        return reading.parse_json(data)
    except MalformedError as error:
        raise TaskPackError(str(error)) from error


def read_bytes(path: Path, *, max_bytes: int = MAX_JSON) -> bytes:
    """Read a regular file, never through a link at its last part.

    Raises:
        FileNotFoundError: it does not exist.
        TaskPackError: it is no regular file, or larger than ``max_bytes``.
    """
    try:
        return reading.read_file(path, max_bytes=max_bytes)
    except MalformedError as error:
        raise TaskPackError(str(error)) from error


def read_json(path: Path, *, max_bytes: int = MAX_JSON) -> Any:
    """Read strict JSON from a regular file; as ``read_bytes`` and ``parse_json``, naming it.

    Raises:
        FileNotFoundError: it does not exist.
        TaskPackError: it is no regular file, too large, or not strict JSON.
    """
    data = read_bytes(path, max_bytes=max_bytes)
    try:
        return parse_json(data)
    except TaskPackError as error:
        raise TaskPackError(f"{path}: {error}", remedy=error.remedy) from error


def make_folder(path: Path, *, mode: int = 0o755, exist_ok: bool = False) -> None:
    """Make one folder, durably; its parent must exist. ``mode`` holds whatever the umask.

    Raises:
        FileExistsError: it exists (with ``exist_ok``: and is no folder, or a link).
        StorageFullError: no space, or an fsync failed.
    """
    with storage_faults(path):
        try:
            path.mkdir()
        except FileExistsError:
            if exist_ok and stat.S_ISDIR(path.lstat().st_mode):
                return
            raise
        path.chmod(mode)
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make names in ``folder`` durable.

    Raises:
        StorageFullError: the fsync failed.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _sync(descriptor, folder)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make what was written to a file durable; one that is not there is fine.

    Raises:
        StorageFullError: the fsync failed.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        _sync(descriptor, path)
    finally:
        os.close(descriptor)


def open_lines(path: Path, *, read: bool = False) -> int:
    """Open a file of lines to append to, made durably when it is missing; return a descriptor.

    Raises:
        StorageFullError: no space for it.
    """
    access = os.O_RDWR if read else os.O_WRONLY
    with storage_faults(path):
        flags = access | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o644)
        try:
            if os.fstat(descriptor).st_size == 0:
                sync_folder(path.parent)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def cut(descriptor: int, path: Path, size: int) -> None:
    """Cut a file of lines back to ``size`` bytes, durably.

    Raises:
        StorageFullError: the fsync failed.
    """
    with storage_faults(path):
        os.ftruncate(descriptor, size)
        _sync(descriptor, path)


def append(descriptor: int, path: Path, data: bytes) -> None:
    """Append ``data`` with one write and fdatasync; cut back to the old end if either fails.

    What may be lost with the power must not be read as written meanwhile: whoever appends next
    writes the place anew. The caller holds whatever lock keeps other writers away.

    Raises:
        StorageFullError: no space, or the fdatasync failed.
    """
    end = os.fstat(descriptor).st_size
    written = 0
    with storage_faults(path):
        try:
            written = os.write(descriptor, data)
        finally:
            if written != len(data):
                os.ftruncate(descriptor, end)
    if written != len(data):
        raise StorageFullError(f"{path}: {os.strerror(errno.ENOSPC)}", remedy=_REMEDY)
    try:
        os.fdatasync(descriptor)
    except OSError as error:
        os.ftruncate(descriptor, end)
        raise _storage_full(path, error) from error


class Appender:
    """A file of JSON lines with one writer: each line is whole and durable when it returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = open_lines(path)

    def append(self, value: object) -> None:
        """Append one value as a line of strict JSON.

        Raises:
            ValueError: it holds NaN or an infinity; nothing was written.
            StorageFullError: no space, or the fdatasync failed.
        """
        append(self._descriptor, self._path, encode_line(value))

    def close(self) -> None:
        """Close the file; nothing is pending."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def encode_line(value: object) -> bytes:
    """Encode one line of strict JSON, newline included.

    Raises:
        ValueError: it holds NaN or an infinity.
    """
    text = json.dumps(
        value, allow_nan=False, sort_keys=True, separators=(",", ":"), ensure_ascii=False
    )
    return text.encode() + b"\n"


def make_ballast(path: Path, *, size: int = BALLAST) -> None:
    """Set space aside, allocated, to be freed once the disk is full; an existing one stays.

    Raises:
        StorageFullError: there is not even that much.
    """
    with storage_faults(path):
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return
        try:
            os.posix_fallocate(descriptor, 0, size)
            _sync(descriptor, path)
        except OSError:
            path.unlink()
            raise
        finally:
            os.close(descriptor)


def free_ballast(path: Path) -> bool:
    """Give the space back; True if there was any."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def _storage_full(path: Path, error: OSError) -> StorageFullError:
    return StorageFullError(f"{path}: {error.strerror or error}", remedy=_REMEDY)


def _sync(descriptor: int, path: Path) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise _storage_full(path, error) from error


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
