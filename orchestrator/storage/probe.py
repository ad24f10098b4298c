"""Ask a file system for what the records rely on: flock, link, rename and fsync."""

import fcntl
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from orchestrator.errors import InfrastructureError


def nearest_folder(path: Path) -> Path:
    """Return ``path`` or the closest folder above it that exists."""
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def file_system_faults(folder: Path) -> tuple[str, ...]:
    """Try every operation in a scratch folder under ``folder``; return what failed, in words."""
    try:
        with tempfile.TemporaryDirectory(prefix=".orch-probe-", dir=folder) as scratch:
            return tuple(
                f"{name}: {fault}"
                for name, probe in _PROBES
                if (fault := _attempt(probe, Path(scratch)))
            )
    except OSError as error:
        return (f"write: {error.strerror}",)


def require_file_system(folder: Path) -> None:
    """Refuse a folder whose file system fails a probe; for the first writer of a runs folder.

    Raises:
        InfrastructureError: it names each operation that failed.
    """
    if faults := file_system_faults(folder):
        raise InfrastructureError(
            f"the file system of {folder} cannot hold records: {'; '.join(faults)}",
            remedy="put the runs folder on a local file system: --runs DIR or ORCH_RUNS",
        )


def _attempt(probe: Callable[[Path], str], scratch: Path) -> str:
    try:
        return probe(scratch)
    except OSError as error:
        return error.strerror or str(error)


def _flock(scratch: Path) -> str:
    path = scratch / "lock"
    with path.open("wb") as first, path.open("wb") as second:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(BlockingIOError):
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return "two holders at once"
    return ""


def _link(scratch: Path) -> str:
    first, second = scratch / "linked", scratch / "link"
    first.write_bytes(b"1")
    second.hardlink_to(first)
    if not second.samefile(first):
        return "a link is a copy"
    with suppress(FileExistsError):
        second.hardlink_to(first)
        return "overwrites"
    return ""


def _rename(scratch: Path) -> str:
    fresh, old = scratch / "fresh", scratch / "old"
    old.write_bytes(b"old")
    fresh.write_bytes(b"fresh")
    fresh.replace(old)
    return "" if old.read_bytes() == b"fresh" else "the old file stayed"


def _fsync(scratch: Path) -> str:
    with (scratch / "synced").open("wb") as file:
        file.write(b"1")
        file.flush()
        os.fdatasync(file.fileno())
        os.fsync(file.fileno())
    descriptor = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return ""


_PROBES: tuple[tuple[str, Callable[[Path], str]], ...] = (
    ("flock", _flock),
    ("link", _link),
    ("rename", _rename),
    ("fsync", _fsync),
)
