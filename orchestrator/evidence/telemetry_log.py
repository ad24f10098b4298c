"""``telemetry.jsonl``: rows of what was seen, in a file that never outgrows its bound.

When it is full, every second periodic row is dropped and the next ones come half as often; what
happened only once is kept, up to a number of rows that leaves room for the rest.
"""

import errno
import os
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from pydantic import ValidationError

from orchestrator.domain.telemetry import ROW, AnyRow, Foreign, Processes, Thinned
from orchestrator.errors import StorageFullError
from orchestrator.storage.durable import encode_line, read_bytes, sync_folder, write_file

MAX_BYTES = 8 * 1024**2
MAX_EVENTS = 1000
_EVENTS = frozenset({"foreign", "xid", "device", "gap"})
_ROOM = 3 / 4
"""How full a file may be when it has been thinned out."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """A file as it was read: its rows, and how many lines could not be."""

    rows: tuple[AnyRow, ...] = ()
    unreadable: int = 0


def read_telemetry(path: Path) -> Telemetry:
    """Read a file of rows; a missing one is empty, a last line that was cut off does not count.

    Raises:
        TaskPackError: it is no regular file, or far beyond its bound.
    """
    try:
        data = read_bytes(path, max_bytes=2 * MAX_BYTES)
    except FileNotFoundError:
        return Telemetry()
    return _parse(data)


def _parse(data: bytes) -> Telemetry:
    rows, unreadable = [], 0
    for line in data.split(b"\n")[:-1]:
        row = _row(line)
        if row is None:
            unreadable += 1
        else:
            rows.append(row)
    return Telemetry(tuple(rows), unreadable)


def _row(line: bytes) -> AnyRow | None:
    try:
        return ROW.validate_json(line)
    except ValidationError:
        return None


class TelemetryLog:
    """The file, open for one container's rows. ``every`` (seconds) grows when it is thinned out.

    Any thread may add; after ``close`` nothing is written any more, whoever still tries. A write
    that fails is remembered in ``error``: what is on disk then is whole, and nothing is added.

    Raises:
        OSError: the file cannot be opened.
        TaskPackError: what is there is no file of ours.
    """

    def __init__(
        self, path: Path, every: float, *, mode: int = 0o644, max_bytes: int = MAX_BYTES
    ) -> None:
        self._path, self._mode, self._max = path, mode, max_bytes
        self._lock = threading.Lock()
        self._descriptor: int | None = self._open()
        try:
            whole = self._cut_torn(self._descriptor)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._size = len(whole)
        self.before: tuple[AnyRow, ...] = _parse(whole).rows
        """The rows that were there when it was opened, until somebody takes them."""
        self._events = sum(row.kind in _EVENTS for row in self.before)
        self._dropped: Counter[str] = Counter()
        thinned = (row.every for row in self.before if isinstance(row, Thinned))
        self.every = max((every, *thinned))
        self.error: OSError | StorageFullError | None = None

    @property
    def dropped(self) -> Mapping[str, int]:
        """How many rows of each kind found no room."""
        return MappingProxyType(dict(self._dropped))

    def add(self, row: AnyRow) -> None:
        """Append a row, or count it where there is no room for more of its kind."""
        with self._lock:
            if self._descriptor is None or self.error is not None:
                return
            if row.kind in _EVENTS:
                self._events += 1
                if self._events > MAX_EVENTS:
                    self._dropped[row.kind] += 1
                    return
            line = _encode(row)
            try:
                if self._size + len(line) > self._max:
                    self._thin(row)
                if self._size + len(line) > self._max and row.kind != "end":
                    self._dropped[row.kind] += 1
                else:
                    self._write(line)
            except (OSError, StorageFullError) as failure:
                self.error = failure

    def close(self) -> None:
        """Make what was added durable; twice is fine."""
        with self._lock:
            if self._descriptor is None:
                return
            try:
                os.fdatasync(self._descriptor)
                sync_folder(self._path.parent)
            except (OSError, StorageFullError) as failure:
                self.error = self.error or failure
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(self._path, flags, self._mode)

    def _cut_torn(self, descriptor: int) -> bytes:
        """Cut a line that a supervisor was killed in the middle of; return what is left."""
        if os.fstat(descriptor).st_size == 0:
            return b""
        data = read_bytes(self._path, max_bytes=2 * MAX_BYTES)
        whole = data[: data.rfind(b"\n") + 1]
        os.ftruncate(descriptor, len(whole))
        return whole

    def _write(self, line: bytes) -> None:
        assert self._descriptor is not None  # noqa: S101 - the caller has looked
        written = os.write(self._descriptor, line)
        if written != len(line):
            os.ftruncate(self._descriptor, self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        self._size += len(line)

    def _thin(self, now: AnyRow) -> None:
        """Rewrite the file with fewer periodic rows, whole or not at all."""
        rows = read_telemetry(self._path).rows
        dropped = sum(row.dropped for row in rows if isinstance(row, Thinned))
        kept: list[AnyRow] = [row for row in rows if not isinstance(row, Thinned)]
        while True:
            before = len(kept)
            kept = _thinner(kept)
            dropped += before - len(kept)
            self.every *= 2
            mark = Thinned(utc=now.utc, at=now.at, of=now.of, dropped=dropped, every=self.every)
            data = b"".join(_encode(row) for row in (*kept, mark))
            if len(data) <= self._max * _ROOM or len(kept) == before:
                break
        write_file(self._path, data, replace=True, mode=self._mode)
        assert self._descriptor is not None  # noqa: S101 - the caller has looked
        os.close(self._descriptor)
        self._descriptor = None
        self._descriptor = self._open()
        self._size = len(data)


def _thinner(rows: list[AnyRow]) -> list[AnyRow]:
    """Drop every second periodic row, but for the first and the last."""
    periodic = [number for number, row in enumerate(rows) if row.kind == "sample"]
    gone = frozenset(periodic[1:-1:2])
    return [row for number, row in enumerate(rows) if number not in gone]


def _encode(row: AnyRow) -> bytes:
    told = row.model_dump(mode="json", exclude_none=True)
    return encode_line({name: value for name, value in told.items() if value not in ([], {})})


def listed_processes(rows: Iterable[AnyRow]) -> int:
    """Count the processes that rows tell of."""
    found = (row for row in rows if isinstance(row, Processes))
    return sum(len(row.started) + len(row.changed) for row in found)


def foreign_total(rows: Iterable[AnyRow], of: str) -> float:
    """Return for how long somebody else was proven to be on a container's GPUs, up to now."""
    return max((row.total for row in rows if isinstance(row, Foreign) and row.of == of), default=0)
