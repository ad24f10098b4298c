"""A real HTTP server on loopback that publishes files, well or badly."""

import hashlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from typing_extensions import override


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass
class Published:
    """How one path is answered.

    Attributes:
        body: the whole file.
        status: of each answer in turn, the last for all that follow; 200 answers with bytes.
        headers: beside the usual ones.
        cut: after how many bytes each answer in turn breaks off; None is a whole one.
        ranges: whether a part may be asked for.
        chunked: whether it comes in chunks, whose sizes the usual headers do not tell.
        begins: where a part that is asked for is said to begin, if not where it does.
    """

    body: bytes = b""
    status: list[int] = field(default_factory=lambda: [200])
    headers: dict[str, str] = field(default_factory=dict)
    cut: list[int | None] = field(default_factory=list)
    ranges: bool = True
    begins: str | None = None
    chunked: bool = False


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]


class Site:
    """What is published where, and who asked for it."""

    def __init__(self) -> None:
        self.files: dict[str, Published] = {}
        self.requests: list[Request] = []
        self.silent = threading.Event()
        """While it is set, requests are taken and none is answered."""
        self.over = threading.Event()
        self.address = ""

    def url(self, path: str) -> str:
        return f"{self.address}/{path}"

    def ranges(self) -> list[str | None]:
        """What part each request for bytes asked for."""
        return [r.headers.get("range") for r in self.requests if r.method == "GET"]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: Site

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.site.requests.append(Request(self.command, self.path, headers))
        if self.site.silent.is_set():
            self.site.over.wait()
            self.close_connection = True
            return
        file = self.site.files.get(self.path.lstrip("/"), Published(status=[404]))
        status = file.status.pop(0) if len(file.status) > 1 else file.status[0]
        start = int(headers.get("range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        part = status == 200 and file.ranges and "range" in headers
        if part and start >= len(file.body):
            status, part = 416, False
        self._send(file, status, start if part else None)

    def _send(self, file: Published, status: int, start: int | None) -> None:
        body = file.body[start or 0 :] if status == 200 else b""
        self.send_response(status if start is None else 206)
        if start is not None:
            end = len(file.body)
            shown = file.begins or start
            self.send_header("Content-Range", f"bytes {shown}-{end - 1}/{end}")
        length = {"Content-Length": str(len(body))}
        headers = {**({"Transfer-Encoding": "chunked"} if file.chunked else length), **file.headers}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD" or not body:
            return
        if file.chunked:
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        cut = file.cut.pop(0) if file.cut else None
        self.wfile.write(body if cut is None else body[:cut])
        self.close_connection = cut is not None

    @override
    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that went away: that is what they are tested for."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def site() -> Iterator[Site]:
    """Serve a site until the context ends; no proxy of this host's stands before it."""
    found = Site()
    handler = type("Handler", (_Handler,), {"site": found})
    with pytest.MonkeyPatch.context() as env, _Server(("127.0.0.1", 0), handler) as server:
        for name in ("no_proxy", "NO_PROXY"):
            env.setenv(name, "127.0.0.1")
        found.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield found
        finally:
            found.over.set()
            server.shutdown()
            thread.join()
