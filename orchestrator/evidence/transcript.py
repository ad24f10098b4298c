"""``transcript.jsonl``: what an agent said and did, a line each, written as it happens."""

import errno
import json
import os
import threading
from enum import StrEnum
from pathlib import Path
from typing import Any

from orchestrator.ports import Clock
from orchestrator.storage.durable import storage_faults

MAX_BYTES = 64 * 1024**2
"""Beyond this a transcript takes no more lines but one that says so."""


class LineKind(StrEnum):
    """What a transcript line holds."""

    MESSAGE = "message"
    THOUGHT = "thought"
    CALL = "call"
    OUTPUT = "output"
    TOKENS = "tokens"
    """What one exchange with the model took, as the host counted it."""
    FULL = "full"


class Transcript:
    """An append-only, size-bounded list of JSON lines. Not evidence: it holds an agent's words."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._clock = clock
        self._lock = threading.Lock()
        self._size = path.stat().st_size
        self._full = False

    def add(self, kind: LineKind, **fields: Any) -> None:
        """Append one line.

        Raises:
            StorageFullError: no space for all of it.
        """
        with self._lock:
            if self._full:
                return
            line = self._line(kind, fields)
            if self._size + len(line) > MAX_BYTES:
                self._full = True
                line = self._line(LineKind.FULL, {"limit": MAX_BYTES})
            self._size += len(line)
            with storage_faults(self._path):
                if self._file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))

    def _line(self, kind: LineKind, fields: dict[str, Any]) -> bytes:
        stamp = self._clock.utc().isoformat()
        return json.dumps({"ts": stamp, "kind": kind.value, **fields}).encode("ascii") + b"\n"

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._full = True
            self._file.close()
