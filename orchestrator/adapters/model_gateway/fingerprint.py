"""How a request of today is recognised as one of a recording.

``exact`` forgets what changes from run to run without meaning anything: client ids, and runs of
digits in text, which hold times, durations, ports and process ids. ``shape`` is coarser: how many
turns there were, and of which kind.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_VOLATILE = frozenset(
    {
        "metadata",
        "client_metadata",
        "prompt_cache_key",
        "user",
        "session_id",
        "safety_identifier",
        "labels",
    }
)
_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_NUMBER = re.compile(r"[0-9]+(?:[.,:][0-9]+)*")
_MAX_DEPTH = 200
_LONG = 1024**2
"""Text that is longer is data, and taken as it is: nothing else runs here while it is searched."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Two digests of one request."""

    exact: str
    shape: str


def fingerprint(where: str, body: Mapping[str, Any], items: list[Any]) -> Fingerprint:
    """Take the digests of a request to the path ``where``; ``items`` is its conversation."""
    shape = [where, [_kind(item) for item in items]]
    return Fingerprint(_digest([where, normal(body)]), _digest(shape))


def normal(value: Any, depth: int = 0) -> Any:
    """Return ``value`` without what changes from run to run."""
    if depth > _MAX_DEPTH:
        return None
    if isinstance(value, str):
        if len(value) > _LONG:
            return value
        return _NUMBER.sub("#", _UUID.sub("#", value))
    if isinstance(value, dict):
        return {
            name: normal(inner, depth + 1) for name, inner in value.items() if name not in _VOLATILE
        }
    if isinstance(value, list):
        return [normal(inner, depth + 1) for inner in value]
    return value


def first_difference(one: Any, other: Any, where: str = "") -> str:
    """Name the place where two normal values part, such as ``messages[1].content``; "" if none."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in (*one, *(name for name in other if name not in one)):
            place = f"{where}.{name}" if where else name
            if name not in one or name not in other:
                return place
            if found := first_difference(one[name], other[name], place):
                return found
        return ""
    if isinstance(one, list) and isinstance(other, list):
        for index, (inner, outer) in enumerate(zip(one, other, strict=False)):
            if found := first_difference(inner, outer, f"{where}[{index}]"):
                return found
        return "" if len(one) == len(other) else f"{where}[{min(len(one), len(other))}]"
    return "" if one == other else where


def _kind(item: Any) -> list[Any]:
    """Say what kind of turn it is: who speaks, and what it is made of."""
    if not isinstance(item, dict):
        return [type(item).__name__]
    parts = item.get("content", item.get("parts"))
    inner = [_part(part) for part in parts] if isinstance(parts, list) else []
    return [item.get("type"), item.get("role"), item.get("name"), inner]


def _part(part: Any) -> Any:
    if not isinstance(part, dict):
        return type(part).__name__
    return part.get("type") or sorted(name for name in part if name[:1].islower())


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
