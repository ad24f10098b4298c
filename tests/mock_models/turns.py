"""What a mock model says, and what goes wrong with it."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Turn:
    """One reply. ``tool`` is the name of a tool to call, with ``arguments``."""

    text: str = ""
    thought: str = ""
    tool: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    asked: int = 100
    cached: int = 40
    answered: int = 20
    reasoned: int = 5


@dataclass(frozen=True)
class Status:
    """An HTTP failure in place of a reply."""

    status: int
    body: bytes = b'{"error": {"message": "it went wrong", "type": "server_error"}}'
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cut:
    """The connection breaks after ``events`` events of the stream."""

    turn: Turn
    events: int = 2


@dataclass(frozen=True)
class Ending:
    """The stream ends by itself after ``events`` events, without the sign that it is all."""

    turn: Turn
    events: int = 2


@dataclass(frozen=True)
class Raw:
    """Any bytes at all, with status 200; sent again and again if ``endless``."""

    body: bytes
    content_type: str = "text/event-stream"
    headers: Mapping[str, str] = field(default_factory=dict)
    endless: bool = False


@dataclass(frozen=True)
class HangUp:
    """The connection is closed without a word."""


@dataclass(frozen=True)
class Held:
    """The stream stands still after ``events`` events until ``go`` is set."""

    turn: Turn
    go: threading.Event
    events: int = 2


@dataclass(frozen=True)
class Endless:
    """Bytes in place of HTTP: ``first``, then ``again`` without end, ``pause`` seconds between."""

    first: bytes
    again: bytes
    pause: float = 0.0


Act = Held | Turn | Status | Cut | Ending | Raw | HangUp | Endless


@dataclass(frozen=True)
class Seen:
    """A request as it arrived. ``body`` is parsed, ``raw`` is not."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    raw: bytes
    body: Any
