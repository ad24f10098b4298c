"""``agent-raw.log``, what an agent's own program printed as it came; and its lines for a reader."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

from orchestrator.storage.durable import storage_faults

MAX_BYTES = 64 * 1024**2
"""Beyond this no more is kept; lines are read on."""
MAX_LINE = 4 * 1024**2
"""A longer line is kept in the file and not read."""


class RawLog:
    """An append-only file with a limit. Taken lines go to no file of their own."""

    def __init__(self, path: Path, *, limit: int = MAX_BYTES) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._left = limit - path.stat().st_size
        self._lock = threading.Lock()

    def write(self, data: bytes) -> None:
        """Append ``data``, or what of it there is room for.

        Raises:
            StorageFullError: the host's disk would not take it.
        """
        with self._lock:
            kept = data[: max(0, self._left)]
            self._left -= len(kept)
            if not kept or self._file.closed:
                return
            with storage_faults(self._path):
                if self._file.write(kept) != len(kept):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))

    def close(self) -> None:
        """Close the file; what comes later is dropped."""
        with self._lock:
            self._file.close()


class Lines:
    """Cuts a stream into lines of text for ``on_line``; a line that is too long is left out."""

    def __init__(self, on_line: Callable[[str], None], *, limit: int = MAX_LINE) -> None:
        self._on_line = on_line
        self._limit = limit
        self._begun = bytearray()
        self._too_long = False

    def take(self, data: bytes) -> None:
        """Take a piece of the stream."""
        *whole, rest = data.split(b"\n")
        for part in whole:
            self._add(part)
            self.end()
        self._add(rest)

    def end(self) -> None:
        """End the line that has begun, if any has."""
        if self._begun and not self._too_long:
            self._on_line(self._begun.decode("utf-8", "backslashreplace"))
        self._begun.clear()
        self._too_long = False

    def _add(self, part: bytes) -> None:
        self._too_long = self._too_long or len(self._begun) + len(part) > self._limit
        if not self._too_long:
            self._begun += part
