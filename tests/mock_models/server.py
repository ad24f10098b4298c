"""A provider on this host's loopback that speaks all four dialects, well or badly.

What it answers is a script: acts that are used one after another, or a function of what it saw.
"""

import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

from tests.mock_models.dialects import CHAT, GEMINI, MESSAGES, RESPONSES, Spelling, encode
from tests.mock_models.turns import Act, Cut, Ending, Endless, HangUp, Held, Raw, Seen, Status, Turn

ENDLESS = 20.0
"""Seconds; a gateway that waits for so long is one that does not end."""
Script = Callable[[Seen], Act] | Iterable[Act]
_GEMINI = re.compile(r".*/models/(?P<model>[^/:]+):(?P<verb>\w+)")


class MockModels:
    """The server; a context manager. ``seen`` is every request that arrived."""

    def __init__(
        self,
        script: Script = (),
        *,
        default: Act | None = None,
        tls: ssl.SSLContext | None = None,
        port: int = 0,
    ) -> None:
        self.seen: list[Seen] = []
        self.present = True
        self._lock = threading.Lock()
        self._script = script if callable(script) else iter(script)
        self._default = default or Turn(text="all done")
        self._server = _Server(self, port)
        if tls is not None:
            # A handshake belongs to its own thread: a client that gives it up halts no other.
            self._server.socket = tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def asked(self) -> list[Seen]:
        """The requests that wanted something of a model."""
        return [seen for seen in self.seen if seen.method == "POST"]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def act(self, seen: Seen) -> Act:
        with self._lock:
            self.seen.append(seen)
            if not self.present:
                return Status(503)
            if seen.method != "POST":
                return Status(200, b'{"object": "list", "data": []}')
            if callable(self._script):
                return self._script(seen)
            return next(self._script, self._default)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Stay quiet: clients that hang up or trust nobody are what tests are about."""

    def __init__(self, models: MockModels, port: int) -> None:
        self.models = models
        super().__init__(("127.0.0.1", port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "_Server"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def _serve(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        parts = urlsplit(self.path)
        seen = Seen(
            method=self.command,
            path=parts.path,
            query=dict(parse_qsl(parts.query)),
            headers={name.lower(): value for name, value in self.headers.items()},
            raw=raw,
            body=json.loads(raw) if raw else None,
        )
        with suppress(BrokenPipeError, ConnectionResetError):
            self._play(self.server.models.act(seen), seen)

    def _play(self, act: Act, seen: Seen) -> None:
        match act:
            case HangUp():
                self.close_connection = True
            case Status():
                self._send(act.status, act.body, "application/json", dict(act.headers))
            case Raw():
                self._raw(act)
            case Endless():
                self._endless(act)
            case Cut():
                self._turn(act.turn, seen, events=act.events, broken=True)
            case Ending():
                self._turn(act.turn, seen, events=act.events)
            case Held():
                self._turn(act.turn, seen, hold=(act.events, act.go))
            case Turn():
                self._turn(act, seen)

    def _turn(
        self,
        turn: Turn,
        seen: Seen,
        *,
        events: int | None = None,
        broken: bool = False,
        hold: tuple[int, threading.Event] | None = None,
    ) -> None:
        spelling, model, stream = _spelling(seen)
        if isinstance(spelling, dict):
            self._send(200, json.dumps(spelling).encode(), "application/json", {})
            return
        if not stream:
            whole = json.dumps(spelling.whole(turn, model)).encode()
            self._send(200, whole, "application/json", {}, short=broken)
            return
        self._begin_stream()
        for number, event in enumerate(spelling.events(turn, model)):
            if number == events:
                break
            if hold is not None and number == hold[0]:
                hold[1].wait(60)
            self._chunk(encode(event))
        if broken:
            self.close_connection = True
        else:
            self._chunk(b"")

    def _begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _raw(self, act: Raw) -> None:
        self.send_response(200)
        for name, value in {"content-type": act.content_type, **act.headers}.items():
            self.send_header(name, value)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self._chunk(act.body)
        while act.endless:
            self._chunk(act.body)
        self._chunk(b"")

    def _endless(self, act: Endless) -> None:
        self.wfile.write(act.first)
        enough = time.monotonic() + ENDLESS
        while time.monotonic() < enough:
            self.wfile.write(act.again)
            threading.Event().wait(act.pause)

    def _send(
        self,
        status: int,
        body: bytes,
        content_type: str,
        headers: dict[str, str],
        *,
        short: bool = False,
    ) -> None:
        self.send_response(status)
        for name, value in {"content-type": content_type, **headers}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body) + short))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = self.close_connection or short


def _spelling(seen: Seen) -> tuple[Spelling | dict[str, Any], str, bool]:
    """Say in which dialect, as which model and how a request is to be answered."""
    body = seen.body or {}
    model, stream = str(body.get("model", "")), body.get("stream") is True
    if match := _GEMINI.fullmatch(seen.path):
        model, verb = match["model"], match["verb"]
        if verb == "countTokens":
            return {"totalTokens": 12}, model, False
        if "RawPredict" not in verb and verb != "rawPredict":
            return GEMINI, model, verb.startswith("stream")
        return MESSAGES, model, verb.startswith("stream")
    for ending, spelling in {
        "/chat/completions": CHAT,
        "/responses": RESPONSES,
        "/responses/compact": RESPONSES,
        "/messages": MESSAGES,
    }.items():
        if seen.path.endswith(ending):
            return spelling, model, stream
    return {"input_tokens": 12}, model, False
