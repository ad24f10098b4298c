"""What we keep of a container's output: bounded in disk and in memory, whatever comes."""

import os
import threading
from io import FileIO
from pathlib import Path


class CappedLog:
    """A sink that keeps the head and the tail of a container's output, within a byte budget.

    The first ``cap`` bytes of each stream go to its file as they come; of the rest the last
    ``tail`` bytes are kept and written at ``close`` behind a line that says how much is missing.
    A write that fails is remembered in ``error`` and the stream is dropped from there on, so that
    the container is never held up by our disk.
    """

    def __init__(
        self, folder: Path, *, cap: int = 8 * 1024**2, tail: int = 1024**2, mode: int = 0o644
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._cap, self._tail = cap, tail
        self._lock = threading.Lock()
        self._files = {
            stream: self._open(folder / f"{stream}.log", mode) for stream in ("stdout", "stderr")
        }
        self._written = dict.fromkeys(self._files, 0)
        self._kept = {stream: bytearray() for stream in self._files}
        self.seen = dict.fromkeys(self._files, 0)
        self.error: OSError | None = None

    @staticmethod
    def _open(path: Path, mode: int) -> FileIO:
        return FileIO(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, mode), "a"
        )

    def write(self, stream: str, data: bytes) -> None:
        """Take output; bounded in disk and memory whatever comes."""
        with self._lock:
            self.seen[stream] += len(data)
            if self.error is not None:
                return
            head = data[: max(0, self._cap - self._written[stream])]
            try:
                _write_all(self._files[stream], head)
            except OSError as failure:
                self.error = failure
                return
            self._written[stream] += len(head)
            rest = data[len(head) :]
            if rest:
                kept = self._kept[stream]
                kept += rest[-self._tail :]
                del kept[: max(0, len(kept) - self._tail)]

    def close(self) -> None:
        """Write the kept tails and close the files."""
        with self._lock:
            for stream, file in self._files.items():
                kept = self._kept[stream]
                missing = self.seen[stream] - self._written[stream] - len(kept)
                try:
                    if missing > 0:
                        _write_all(file, f"\n[orch: {missing} bytes left out]\n".encode())
                    _write_all(file, kept)
                except OSError as failure:
                    self.error = failure
                file.close()


def _write_all(file: FileIO, data: bytes | bytearray) -> None:
    """Write all of ``data``; a disk that fills up takes a part first and fails at the next try."""
    with memoryview(data) as rest:
        done = 0
        while done < len(rest):
            done += file.write(rest[done:])
