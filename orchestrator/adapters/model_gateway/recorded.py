"""Serving a recording in place of a provider, so that a whole exploration repeats offline.

The next unserved exchange that a request's exact fingerprint names is served. Where none has it,
the next unserved one of the same shape is, and what differs is said in the record: a clock that an
agent prints must not end a replay. Where there is none of that shape either, the request is
refused, and told where it left the recording.
"""

import base64
import json
import os
import stat
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from typing_extensions import override

from orchestrator.adapters.model_gateway.fingerprint import (
    Fingerprint,
    first_difference,
    normal,
)
from orchestrator.adapters.model_gateway.language import mapping
from orchestrator.adapters.model_gateway.record import SCHEMA, restored
from orchestrator.adapters.model_gateway.shape import RefusedError
from orchestrator.adapters.model_gateway.source import Answer, Ask, BrokenOffError, Source
from orchestrator.domain.model import RECORDED, Dialect, Ended, Price, Refusal
from orchestrator.errors import UsageError
from orchestrator.ports.models import ModelChoice

_MAX_LINE = 128 * 1024**2
_CHUNK = 64 * 1024
_STATUSES = range(200, 600)
_REMEDY = "name the exchanges.jsonl of an attempt: --model recorded/runs/.../exchanges.jsonl"


@dataclass(slots=True)
class _Entry:
    """One exchange of the recording, by where its line stands."""

    number: int
    offset: int
    fingerprint: Fingerprint
    served: bool = False


def read_header(path: Path, effort: str) -> ModelChoice:
    """Choose the model of a recording.

    Raises:
        UsageError: it is no recording, or of another effort.
    """
    header = _header(path)
    if header.get("schema") != SCHEMA:
        raise UsageError(f"{path} is no recording", remedy=_REMEDY)
    recorded = str(header.get("effort", ""))
    if effort not in {"", recorded}:
        raise UsageError(
            f"{path} was recorded with effort {recorded or 'left to the provider'}",
            remedy="leave --effort out",
        )
    try:
        dialects = tuple(Dialect(name) for name in header["dialects"])
        _prices(header)
        model = header["model"]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path} is no recording of this version", remedy=_REMEDY) from error
    if not dialects or not isinstance(model, str):
        raise UsageError(f"{path} is no recording of this version", remedy=_REMEDY)
    return ModelChoice(f"{RECORDED}/{path}", model, recorded, _spoken(path) or dialects, "")


def _spoken(path: Path) -> tuple[Dialect, ...]:
    """Say what the agent of a recording spoke; one of another dialect would find nothing in it."""
    with _opened(path) as file:
        while line := file.readline(_MAX_LINE):
            value = _parsed(line)
            if _is_served(value):
                return tuple(dialect for dialect in Dialect if dialect == value.get("dialect"))
    return ()


def read_prices(path: Path) -> dict[str, Price]:
    """Read what the tokens of a recording cost when it was made."""
    return _prices(_header(path))


def _prices(header: Mapping[str, Any]) -> dict[str, Price]:
    found = header.get("prices", {})
    return {name: Price.model_validate(price) for name, price in found.items()}


def _header(path: Path) -> dict[str, Any]:
    with _opened(path) as file:
        return _parsed(file.readline(_MAX_LINE))


def _opened(path: Path) -> BinaryIO:
    """Open a plain file; a pipe or a device could keep us waiting for ever.

    Raises:
        UsageError: it is none, or cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"recording {path}: {error.strerror}", remedy=_REMEDY) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UsageError(f"recording {path} is no plain file", remedy=_REMEDY)
    return os.fdopen(descriptor, "rb")


class Recording(Source):
    """The exchanges of one file, each served once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries = tuple(self._scan())

    @override
    @asynccontextmanager
    async def ask(self, ask: Ask) -> AsyncIterator[Answer]:
        entry, note = self._match(ask)
        entry.served = True
        line = self._line(entry)
        cut = line.get("ended") == Ended.CUT
        yield Answer(
            status=int(line["status"]),
            content_type=str(line["content_type"]),
            chunks=_chunks(_body(line), cut=cut),
            note=note,
        )

    @override
    async def close(self) -> None:
        pass

    def _match(self, ask: Ask) -> tuple[_Entry, str]:
        """Choose what to serve, and say what differs.

        Raises:
            RefusedError: the recording holds nothing that this could be.
        """
        left = [entry for entry in self._entries if not entry.served]
        for entry in left:
            if entry.fingerprint.exact == ask.fingerprint.exact:
                return entry, ""
        for entry in left:
            if entry.fingerprint.shape == ask.fingerprint.shape:
                return entry, f"differs from {self._named(entry, ask)}"
        if not left:
            why = f"all {len(self._entries)} exchanges of the recording were served"
        else:
            why = f"another would come next; it differs from {self._named(left[0], ask)}"
        raise RefusedError(
            Refusal.NOT_RECORDED, f"this request is not in the recording {self._path.name}: {why}"
        )

    def _scan(self) -> Iterator[_Entry]:
        offset = 0
        with _opened(self._path) as file:
            while line := file.readline(_MAX_LINE):
                value = _parsed(line)
                if _is_served(value):
                    yield self._entry(value, offset)
                offset += len(line)

    def _entry(self, value: Mapping[str, Any], offset: int) -> _Entry:
        """Check what is needed of a line; somebody else may have written it.

        Raises:
            UsageError: it is no exchange.
        """
        with suppress(KeyError, TypeError, ValueError, OverflowError):
            print_ = value["fingerprint"]
            known = Fingerprint(str(print_["exact"]), str(print_["shape"]))
            if value["status"] in _STATUSES and isinstance(value["content_type"], str):
                return _Entry(int(value["number"]), offset, known)
        raise UsageError(f"{self._path}: the line at byte {offset} is no exchange", remedy=_REMEDY)

    def _named(self, entry: _Entry, ask: Ask) -> str:
        """Name an exchange, and where a request parts from it."""
        parts: dict[str, Any] = {}
        stored: Any = None
        with _opened(self._path) as file:
            while file.tell() <= entry.offset:
                line = _parsed(file.readline(_MAX_LINE))
                parts |= mapping(line.get("parts"))
                stored = line.get("request")
        try:
            recorded = normal(restored(stored, parts))
        except RecursionError:
            recorded = None
        where = first_difference(recorded, normal(json.loads(ask.body)))
        return f"exchange {entry.number} of the recording: {where or 'path'}"

    def _line(self, entry: _Entry) -> Mapping[str, Any]:
        with _opened(self._path) as file:
            file.seek(entry.offset)
            return _parsed(file.readline(_MAX_LINE))


def _is_served(line: Mapping[str, Any]) -> bool:
    """Tell whether a line of a recording holds an answer."""
    return bool(line.get("fingerprint") and line.get("status") and not line.get("refusal"))


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _body(line: Mapping[str, Any]) -> bytes:
    if line.get("body_cut"):
        raise RefusedError(Refusal.NOT_RECORDED, "the recording holds only a part of this reply")
    if "body_base64" in line:
        try:
            return base64.b64decode(str(line["body_base64"]))
        except ValueError as error:
            why = "the recording holds this reply in a form that cannot be read"
            raise RefusedError(Refusal.NOT_RECORDED, why) from error
    return str(line.get("body", "")).encode()


async def _chunks(body: bytes, *, cut: bool) -> AsyncIterator[bytes]:
    for start in range(0, len(body), _CHUNK):
        yield body[start : start + _CHUNK]
    if cut:
        raise BrokenOffError("as it was recorded")
