"""``transcript.jsonl``: what an agent said and did, a line each, written as it happens."""

import json
import threading
from enum import StrEnum
from pathlib import Path
from typing import Any

from orchestrator.ports import Clock

MAX_BYTES = 64 * 1024**2
"""Beyond this a transcript takes no more lines but one that says so."""


class LineKind(StrEnum):
    """What a transcript line holds."""

    MESSAGE = "message"
    CALL = "call"
    OUTPUT = "output"
    FULL = "full"


class Transcript:
    """An append-only, size-bounded list of JSON lines. Not evidence: it holds an agent's words."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._clock = clock
        self._lock = threading.Lock()
        self._size = path.stat().st_size
        self._full = False

    def add(self, kind: LineKind, **fields: Any) -> None:
        """Append one line."""
        with self._lock:
            if self._full:
                return
            line = self._line(kind, fields)
            if self._size + len(line) > MAX_BYTES:
                self._full = True
                line = self._line(LineKind.FULL, {"limit": MAX_BYTES})
            self._size += len(line)
            self._file.write(line)

    def _line(self, kind: LineKind, fields: dict[str, Any]) -> str:
        stamp = self._clock.utc().isoformat()
        return json.dumps({"ts": stamp, "kind": kind.value, **fields}) + "\n"

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._full = True
            self._file.close()
