"""Bytes on the way: bounded bodies, strict JSON, and server-sent events as they go by."""

import json
import zlib
from collections.abc import AsyncIterator
from typing import Any

from orchestrator.adapters.model_gateway.shape import RefusedError
from orchestrator.domain.model import Refusal

MAX_REQUEST = 32 * 1024**2
MAX_REPLY = 64 * 1024**2
MAX_EVENT = 16 * 1024**2
MAX_ERROR = 64 * 1024
MAX_REQUEST_VALUES = 1_000_000
MAX_REPLY_VALUES = 4_000_000
"""An empty list is three bytes on the wire and sixty in memory."""
MAX_DEPTH = 100
_ZLIB_OR_GZIP = 47
DONE = b"[DONE]"


class TooLongError(Exception):
    """A reply is longer, in bytes or in time, than anything that makes sense."""


class BadEventError(Exception):
    """A stream holds what is no event of its dialect."""


async def read_request(chunks: AsyncIterator[bytes], encoding: str) -> bytes:
    """Read a request's body, unpacked.

    Raises:
        RefusedError: it is too large, or packed in a way that is not known.
    """
    data = bytearray()
    async for chunk in chunks:
        data += chunk
        if len(data) > MAX_REQUEST:
            raise RefusedError(Refusal.TOO_LARGE, f"a request holds at most {MAX_REQUEST} bytes")
    if encoding in {"", "identity"}:
        return bytes(data)
    if encoding not in {"gzip", "deflate"}:
        raise RefusedError(Refusal.MALFORMED, f"content-encoding {encoding[:40]!r} is not taken")
    unpacker = zlib.decompressobj(_ZLIB_OR_GZIP)
    try:
        plain = unpacker.decompress(bytes(data), MAX_REQUEST + 1)
    except zlib.error as error:
        raise RefusedError(Refusal.MALFORMED, "the body is not packed as it says") from error
    if len(plain) > MAX_REQUEST:
        raise RefusedError(Refusal.TOO_LARGE, f"a request holds at most {MAX_REQUEST} bytes")
    return plain


async def read_reply(chunks: AsyncIterator[bytes], limit: int = MAX_REPLY) -> bytes:
    """Read a whole reply.

    Raises:
        TooLongError: it is longer than ``limit``.
    """
    data = bytearray()
    async for chunk in chunks:
        data += chunk
        if len(data) > limit:
            raise TooLongError
    return bytes(data)


def values_in(data: bytes) -> int:
    """Bound the number of values in JSON from above, before it is parsed."""
    return sum(data.count(sign) for sign in (b",", b"[", b"{"))


def too_deep(value: object) -> bool:
    """Tell whether a value is nested more deeply than anything that makes sense."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def parse_object(data: bytes) -> dict[str, Any]:
    """Parse a JSON object; a key that stands twice has two meanings, so it is refused.

    Raises:
        ValueError: it is none.
    """
    try:
        if values_in(data) > MAX_REQUEST_VALUES:
            raise ValueError(f"it holds more than {MAX_REQUEST_VALUES} values")
        text = data.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("it is no object")  # noqa: TRY004 - one error for whatever it is
    if too_deep(value):
        raise ValueError(f"it is nested more than {MAX_DEPTH} times")
    return value


def parse_reply(data: bytes) -> dict[str, Any]:
    """Parse what a provider sent, which nobody checks for more than its form.

    Raises:
        BadEventError: it is no JSON object, or one that is nested too deeply.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadEventError from error
    if not isinstance(value, dict):
        raise BadEventError
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and too_deep(value):
        raise BadEventError
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number")


class Events:
    """Reads server-sent events (the WHATWG's text/event-stream) out of the bytes of a stream."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take bytes; return the data of the events that they complete.

        Raises:
            TooLongError: one event is longer than anything that makes sense.
        """
        self._line += chunk
        if self._size + len(self._line) > MAX_EVENT:
            raise TooLongError
        if b"\n" not in chunk:
            return []
        *lines, rest = bytes(self._line).split(b"\n")
        self._line = bytearray(rest)
        return [event for line in lines if (event := self._take(line.rstrip(b"\r"))) is not None]

    def _take(self, line: bytes) -> bytes | None:
        if line.startswith(b"data:"):
            data = line[5:].removeprefix(b" ")
            self._data.append(data)
            self._size += len(data) + 1
        elif not line and self._data:
            event = b"\n".join(self._data)
            self._data, self._size = [], 0
            return event
        return None
