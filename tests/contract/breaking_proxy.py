"""Stands between a client and an engine's socket, and can cut or hold up every connection."""

import socket
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Self

_CHUNK = 65536


class BreakingProxy:
    """Listens at ``path`` and forwards to ``engine``.

    From ``cut`` to ``mend`` it is not there; from ``stall`` to ``go_on`` it takes connections and
    requests, and answers nothing.
    """

    def __init__(self, path: Path, engine: Path) -> None:
        self.path = path
        self._engine = engine
        self._lock = Lock()
        self._open: list[socket.socket] = []
        self._listener: socket.socket | None = None
        self._flowing = Event()
        self._flowing.set()

    def stall(self) -> None:
        """Pass nothing on."""
        self._flowing.clear()

    def go_on(self) -> None:
        """Pass on what was held up, and everything after it."""
        self._flowing.set()

    def mend(self) -> None:
        """Listen, anew."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(self.path))
        listener.listen(64)
        self._listener = listener
        Thread(target=self._accept, args=(listener,), daemon=True).start()

    def cut(self) -> None:
        """Break every connection and refuse new ones."""
        with self._lock:
            self.path.unlink(missing_ok=True)
            for one in [*self._open, *([self._listener] if self._listener else [])]:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            self._open.clear()
            self._listener = None

    def _accept(self, listener: socket.socket) -> None:
        with listener, suppress(OSError):
            while True:
                client, _ = listener.accept()
                engine = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                engine.connect(str(self._engine))
                with self._lock:
                    if self._listener is not listener:
                        client.close()
                        engine.close()
                        return
                    self._open += [client, engine]
                for source, target in ((client, engine), (engine, client)):
                    Thread(target=self._forward, args=(source, target), daemon=True).start()

    def __enter__(self) -> Self:
        self.mend()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cut()
        self.go_on()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with source:
            with suppress(OSError):
                while data := source.recv(_CHUNK):
                    self._flowing.wait()
                    target.sendall(data)
            with suppress(OSError):
                target.shutdown(socket.SHUT_WR)
