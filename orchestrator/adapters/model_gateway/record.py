"""``exchanges.jsonl``: every exchange of an attempt, written as it ends; a recording to replay.

A request repeats nearly all of the one before. What is large in it is stored where it first
occurs, by its digest, and named by that digest from then on.
"""

import base64
import errno
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.adapters.model_gateway.fingerprint import Fingerprint
from orchestrator.adapters.model_gateway.secrets import Vault
from orchestrator.domain.model import Exchange, Price
from orchestrator.ports import Clock
from orchestrator.ports.models import MAX_RECORD, ModelChoice
from orchestrator.storage.durable import storage_faults

SCHEMA = "orch.exchanges/1"
MAX_BODY = 16 * 1024**2
_LARGE = 256
_PART = "orch:part"


@dataclass(frozen=True, slots=True)
class Wire:
    """What was on the wire in an exchange. ``body`` is the reply's, cut at ``MAX_BODY``."""

    method: str
    path: str
    request: Mapping[str, Any]
    fingerprint: Fingerprint | None
    content_type: str
    body: bytes
    body_cut: bool


class Recorder:
    """Appends exchanges to a file, without any secret; one that is full says so, once."""

    def __init__(
        self,
        path: Path,
        choice: ModelChoice,
        prices: Mapping[str, Price],
        vault: Vault,
        clock: Clock,
    ) -> None:
        self._path = path
        self._vault = vault
        self._clock = clock
        self._known: set[str] = set()
        self._full = False
        with storage_faults(path):
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(path, flags, 0o644)
            self._descriptor: int | None = descriptor
            self._size = os.fstat(descriptor).st_size
            if self._size and os.pread(descriptor, 1, self._size - 1) != b"\n":
                self._size += os.write(descriptor, b"\n")  # whoever wrote before was killed
        if self._size == 0:
            self._write(
                {
                    "schema": SCHEMA,
                    "model": choice.name,
                    "named": choice.model,
                    "effort": choice.effort,
                    "dialects": [dialect.value for dialect in choice.dialects],
                    "prices": {name: price.model_dump() for name, price in prices.items()},
                }
            )

    def add(self, exchange: Exchange, wire: Wire) -> None:
        """Append one exchange.

        Raises:
            StorageFullError: no space for all of it.
        """
        if self._full or self._descriptor is None:
            return
        parts: dict[str, Any] = {}
        facts = {name: value for name, value in asdict(exchange).items() if name != "path"}
        self._write(
            {
                "at": self._clock.utc().isoformat(),
                **facts,
                "method": wire.method,
                "path": wire.path,
                "fingerprint": asdict(wire.fingerprint) if wire.fingerprint else None,
                "request": self._stored(wire.request, parts),
                "parts": parts,
                "content_type": wire.content_type,
                **_body(wire),
            }
        )

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _stored(self, request: Mapping[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
        stored: dict[str, Any] = {}
        for name, value in request.items():
            if isinstance(value, list):
                stored[name] = [self._part(item, parts) for item in value]
            else:
                stored[name] = self._part(value, parts)
        return stored

    def _part(self, value: Any, parts: dict[str, Any]) -> Any:
        text = json.dumps(value, sort_keys=True)
        if len(text) < _LARGE:
            return value
        digest = hashlib.sha256(text.encode()).hexdigest()
        if digest not in self._known:
            self._known.add(digest)
            parts[digest] = value
        return {_PART: digest}

    def _write(self, value: Mapping[str, Any]) -> None:
        assert self._descriptor is not None  # noqa: S101 - for mypy; add looked
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
        line = self._vault.clean(text.encode("ascii")) + b"\n"
        if self._size + len(line) > MAX_RECORD:
            self._full = True
            line = json.dumps({"full": MAX_RECORD}).encode() + b"\n"
        with storage_faults(self._path):
            if os.write(self._descriptor, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        self._size += len(line)


def restored(stored: Any, parts: Mapping[str, Any]) -> Any:
    """Put the parts back into a request that was stored."""
    if isinstance(stored, dict):
        if stored.keys() == {_PART}:
            return parts.get(stored[_PART])
        return {name: restored(value, parts) for name, value in stored.items()}
    if isinstance(stored, list):
        return [restored(value, parts) for value in stored]
    return stored


def _body(wire: Wire) -> dict[str, Any]:
    """Store a reply's body: as text where it is text."""
    cut = {"body_cut": True} if wire.body_cut else {}
    try:
        return {"body": wire.body.decode("utf-8"), **cut}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(wire.body).decode("ascii"), **cut}
