"""What the driver does for a victim that asks: the engine's cable, a third party, a full disk."""

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.faults.points import Fault, Point, read_point


class Door:
    """Listens at ``path``; ``does`` says what to do when a fault is asked for."""

    def __init__(self, path: Path, does: dict[Fault, Callable[[], str]] | None = None) -> None:
        self._path = path
        self._does = does or {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.met: list[Point] = []
        self.notes: list[str] = []

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                call, _ = self._listener.accept()
                with call, call.makefile("rb") as lines:
                    self._take(lines.readline().decode().strip())
                    with suppress(OSError):
                        call.sendall(b".")

    def _take(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "met":
            self.met.append(read_point(rest))
        elif word == "failed":
            self.notes.append(line)
        else:
            self.notes.append(self._does[Fault(word)]())

    def __enter__(self) -> Self:
        self._path.unlink(missing_ok=True)
        self._listener.bind(str(self._path))
        self._listener.listen(8)
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def fill(folder: Path) -> str:
    """Take every free block of the file system that ``folder`` lies on."""
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    descriptor = os.open(folder / FILLER, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, free)
    finally:
        os.close(descriptor)
    return f"filled {free} bytes"


FILLER = "filler"
"""In the runs folder, until the disk is to have room again."""
