"""Hash-chained JSON lines: the file format under the journals and the campaign log.

One entry a line, ``{seq, ts, mono_ns, boot_id, id, event, data, prev}``; ``prev`` is the sha256 of
the bytes of the line before, without its newline. Writers exclude each other by flock on the file
itself, which is never replaced. A last line without newline was cut off by a crash and is cut away
by the next writer; any other break is tampering.
"""

import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.errors import TaskPackError
from orchestrator.ports import Clock
from orchestrator.storage import durable
from receipts.model import faults

START = "sha256:" + "0" * 64
"""What the first entry names as the line before it."""

_BLOCK = 64 * 1024
_EXACT = 2**53


@dataclass(frozen=True, slots=True)
class Entry:
    """One line. ``mono_ns`` is CLOCK_BOOTTIME and compares only under the same ``boot_id``."""

    seq: int
    ts: str
    mono_ns: int
    boot_id: str
    id: str
    event: str
    data: Mapping[str, Any]
    prev: str


@dataclass(frozen=True, slots=True)
class Chain:
    """A whole file as it was read. ``torn``: its last line has no newline and is left out."""

    entries: tuple[Entry, ...]
    head: str
    torn: bool


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    seq: int = Field(ge=1, strict=True)
    ts: str
    mono_ns: int = Field(ge=0)
    boot_id: str
    id: str
    event: str
    data: dict[str, Any]
    prev: str


def digest(line: bytes) -> str:
    """Name a line (without its newline) by its hash."""
    return "sha256:" + hashlib.sha256(line).hexdigest()


def tampered(path: Path, line: int | None, what: str) -> TaskPackError:
    """Say that a line of ``path`` (None: one near its end) is not what was written."""
    place = f"{path}:{line}" if line else f"{path}"
    return TaskPackError(
        f"{place}: tampered: {what}", remedy=f"see what else differs: orch verify {path.parent}"
    )


def unknown_event(path: Path, line: int, event: str) -> TaskPackError:
    """Say that a line, linked as it should be, tells of what only another version knows."""
    return TaskPackError(
        f"{path}:{line} has event {event[:80]!r}, which this orch does not know",
        remedy="open it with the orch that wrote it; nothing was touched",
    )


def read_chain(path: Path) -> Chain:
    """Read and check a whole file without writing; a missing file is an empty chain.

    Raises:
        TaskPackError: tampered, with the line; or no file that may be read.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise TaskPackError(f"{path} is not a regular file")
        data = path.read_bytes()
    except FileNotFoundError:
        return Chain((), START, torn=False)
    except (NotADirectoryError, PermissionError) as error:
        raise TaskPackError(f"{path} cannot be read: {error.strerror}") from error
    *lines, rest = data.split(b"\n")
    entries: list[Entry] = []
    head = START
    for number, line in enumerate(lines, start=1):
        entry = _decode(path, number, line)
        if entry.seq != number:
            raise tampered(path, number, f"seq is {entry.seq}")
        if entry.prev != head:
            raise tampered(path, number, "prev is not the hash of the line before")
        entries.append(entry)
        head = digest(line)
    return Chain(tuple(entries), head, torn=bool(rest))


class LockedChain:
    """A chain open for writing; nobody else writes while it is. Made by ``locked``."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._cut_torn()

    @property
    def head(self) -> str:
        """The hash of the last line."""
        last = next(self._lines_backward(), None)
        return START if last is None else digest(last)

    def backward(self, word: bytes = b"") -> Iterator[tuple[bytes, Entry]]:
        """Walk from the last entry back, reading only as far as the caller asks.

        Only each line's own form is checked here, not the links between them, and only that of
        lines that hold ``word``: parsing takes far longer than looking for it.

        Raises:
            TaskPackError: a line does not parse.
        """
        for line in self._lines_backward():
            if word in line:
                yield line, _decode(self._path, None, line)

    def append(
        self, run_id: str, event: str, data: Mapping[str, Any], clock: Clock
    ) -> tuple[Entry, str]:
        """Append one entry behind the last; return it and the new head.

        Raises:
            ValueError: ``data`` holds NaN or an infinity; nothing was written.
            StorageFullError: no space; the file is as it was.
        """
        last = next(self.backward(), None)
        entry = Entry(
            seq=last[1].seq + 1 if last else 1,
            ts=clock.utc().isoformat(timespec="microseconds").replace("+00:00", "Z"),
            mono_ns=clock.boottime_ns(),
            boot_id=clock.boot_id(),
            id=run_id,
            event=event,
            data=dict(data),
            prev=digest(last[0]) if last else START,
        )
        line = _encode(entry)
        durable.append(self._descriptor, self._path, line)
        return entry, digest(line.removesuffix(b"\n"))

    def _lines_backward(self) -> Iterator[bytes]:
        position = os.fstat(self._descriptor).st_size
        tail = b""
        while position > 0:
            start = max(0, position - _BLOCK)
            tail = os.pread(self._descriptor, position - start, start) + tail
            position = start
            first, *whole = tail.removesuffix(b"\n").split(b"\n")
            if position > 0 and whole:
                yield from reversed(whole)
                tail = first + b"\n"
            elif position == 0:
                yield from reversed([first, *whole])

    def _cut_torn(self) -> None:
        position = size = os.fstat(self._descriptor).st_size
        while position > 0:
            start = max(0, position - _BLOCK)
            found = os.pread(self._descriptor, position - start, start).rfind(b"\n")
            if found >= 0:
                position = start + found + 1
                break
            position = start
        if position != size:
            durable.cut(self._descriptor, self._path, position)


@contextmanager
def locked(path: Path) -> Iterator[LockedChain]:
    """Open ``path`` for writing (made when missing), alone; a torn last line is cut."""
    with durable.storage_faults(path):
        descriptor = durable.open_lines(path, read=True)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield LockedChain(path, descriptor)
        finally:
            os.close(descriptor)


def _encode(entry: Entry) -> bytes:
    fields = asdict(entry)
    if entry.mono_ns > _EXACT:
        fields["mono_ns"] = str(entry.mono_ns)
    return durable.encode_line(fields)


def _decode(path: Path, number: int | None, line: bytes) -> Entry:
    try:
        fields = _Line.model_validate(durable.parse_json(line))
    except TaskPackError as error:
        raise tampered(path, number, str(error)) from error
    except ValidationError as error:
        raise tampered(path, number, faults(error)) from error
    return Entry(**dict(fields))
