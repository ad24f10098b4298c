"""What the four dialects have in common: endpoints, pinning, errors, and reading of replies."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar

from orchestrator.adapters.model_gateway.shape import Rule, Scope, refuse
from orchestrator.domain.model import Dialect, Refusal, Reply, ToolCall, Usage

BYTES_PER_TOKEN = 4
"""For what no provider counted; rough, and on the safe side for prose and code alike."""


class Verb(StrEnum):
    """What an endpoint is for."""

    GENERATE = "generate"
    COMPACT = "compact"
    COUNT = "count"
    LIST = "list"

    @property
    def spends(self) -> bool:
        """Whether it costs tokens, and so counts as a request of the budget."""
        return self in {Verb.GENERATE, Verb.COMPACT}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One exact path. ``path`` may name a group ``model``; ``query`` holds what may follow it."""

    method: str
    path: re.Pattern[str]
    verb: Verb
    body: Rule | None = None
    query: Mapping[str, frozenset[str]] | None = None
    needs: str = ""
    """An item of the query that must be there."""
    to: str = ""
    """Where it goes below the provider's base URL; ``{model}`` is filled in."""


class Collector(ABC):
    """Reads a reply for its words and its usage, as they go by."""

    def __init__(self) -> None:
        self.finished = False
        self.stop = ""
        self.model = ""
        self.ids: set[str] = set()
        self.usage: Usage | None = None
        self._text: list[str] = []
        self._thought: list[str] = []
        self._calls: dict[str, list[str]] = {}

    @abstractmethod
    def event(self, value: Mapping[str, Any]) -> None:
        """Take one event of a stream."""

    @abstractmethod
    def whole(self, value: Mapping[str, Any]) -> None:
        """Take a reply that came in one piece."""

    def done(self) -> None:
        """Take the mark ``[DONE]`` that ends streams of some dialects."""
        self.finished = True

    @property
    def reply(self) -> Reply:
        """What was said so far."""
        calls = tuple(ToolCall(parts[0], "".join(parts[1:])) for parts in self._calls.values())
        text, thought = "".join(self._text), "".join(self._thought)
        return Reply(text, thought, calls, self.stop, self.model)

    def estimate(self, sent: int) -> Usage:
        """Estimate the usage of a reply that no provider counted; ``sent`` bytes were asked."""
        reply = self.reply
        said = len(reply.text) + len(reply.thought)
        said += sum(len(call.name) + len(call.arguments) for call in reply.calls)
        asked, answered = sent // BYTES_PER_TOKEN + 1, said // BYTES_PER_TOKEN + 1
        return Usage(input=asked, output=answered, estimated=asked + answered)

    def _say(self, value: object) -> None:
        if isinstance(value, str):
            self._text.append(value)

    def _think(self, value: object) -> None:
        if isinstance(value, str):
            self._thought.append(value)

    def _call(self, key: object, name: object, arguments: object) -> None:
        """Open a tool call, or add to one; its key may be whatever stood in the reply."""
        parts = self._calls.setdefault(str(key), [""])
        if isinstance(name, str) and name and not parts[0]:
            parts[0] = name
        if isinstance(arguments, str):
            parts.append(arguments)

    def _count(self, **tokens: object) -> None:
        """Take counts as the provider states them; a later one replaces an earlier."""
        known = {name: whole_number(value) for name, value in tokens.items() if value is not None}
        self.usage = replace(self.usage or Usage(), **known)


@dataclass(frozen=True, slots=True)
class ErrorForm:
    """How a dialect's clients are told of a kind of refusal: HTTP status, and its own word."""

    status: int
    word: str


class Language(ABC):
    """One dialect: its tables, and how its requests and replies are read."""

    dialect: ClassVar[Dialect]
    endpoints: ClassVar[tuple[Endpoint, ...]]
    errors: ClassVar[Mapping[Refusal, ErrorForm]]
    effort_at: ClassVar[tuple[str, ...]]
    headers: ClassVar[tuple[str, ...]] = ()
    """Headers of the agent's that are passed on."""

    @abstractmethod
    def collector(self) -> Collector:
        """Make the reader of one reply."""

    @abstractmethod
    def error(self, form: ErrorForm, message: str) -> dict[str, Any]:
        """Say ``message`` as this dialect's provider would."""

    @abstractmethod
    def error_event(self, form: ErrorForm, message: str) -> bytes:
        """Say it in the middle of a stream."""

    @abstractmethod
    def items(self, body: Mapping[str, Any]) -> list[Any]:
        """List the conversation that a request carries."""

    def streams(self, body: Mapping[str, Any], _path: str) -> bool:
        """Tell whether a stream is asked for."""
        return body.get("stream") is True

    def finish(self, body: dict[str, Any], verb: Verb) -> None:  # noqa: B027 - most add nothing
        """Add what has to stand in a request that has passed."""

    def pin_effort(
        self, body: dict[str, Any], effort: str, scope: Scope, *, add: bool = True
    ) -> None:
        """Hold a request to ``effort``; leave it to the provider where that is empty.

        ``add`` says whether a request that names none gets it.

        Raises:
            RefusedError: it names another.
        """
        pin(body, self.effort_at, effort, scope, add=add)

    def filter_header(self, _name: str, value: str) -> str | None:
        """Choose what of a header's value is passed on; None leaves it out."""
        return value


def pin(
    body: dict[str, Any],
    path: tuple[str, ...],
    wanted: str | int,
    scope: Scope,
    *,
    add: bool = True,
) -> None:
    """Make the field at ``path`` hold ``wanted``; take it away where that is empty.

    Where it is missing it stays so, unless ``add``.

    Raises:
        RefusedError: it holds something else.
    """
    where = ".".join(path)
    places = _places(body, path, make=add and wanted != "")
    if places is None:
        return
    inner, last = places[-1], path[-1]
    found = inner.get(last)
    if wanted == "":
        _take_away(places, path)
        if found is not None:
            scope.drop(where)
    elif found is None and add:
        inner[last] = wanted
    elif found is not None and str(found).casefold() != str(wanted).casefold():
        raise refuse(where, f"{str(found)[:40]!r} is not the effort of this run, {wanted!r}")


def _places(
    body: dict[str, Any], path: tuple[str, ...], *, make: bool
) -> list[dict[str, Any]] | None:
    """List the objects on the way to a field, made where they are missing, or else None."""
    places = [body]
    for name in path[:-1]:
        inner = places[-1].get(name)
        if inner is None:
            if not make:
                return None
            inner = places[-1][name] = {}
        if not isinstance(inner, dict):
            raise refuse(".".join(path), "an object is expected around it")
        places.append(inner)
    return places


def _take_away(places: list[dict[str, Any]], path: tuple[str, ...]) -> None:
    """Remove a field, and with it what held nothing else: that would say something by itself."""
    places[-1].pop(path[-1], None)
    for name, place in zip(reversed(path[:-1]), reversed(places[:-1]), strict=True):
        if not place[name]:
            del place[name]


def whole_number(value: object) -> int:
    """Read a count that a provider states; nonsense is 0."""
    return value if isinstance(value, int) and 0 <= value < 1 << 40 else 0


def mapping(value: object) -> Mapping[str, Any]:
    """Read an object out of a reply; anything else is an empty one."""
    return value if isinstance(value, dict) else {}


def listing(value: object) -> list[Any]:
    """Read a list out of a reply; anything else is an empty one."""
    return value if isinstance(value, list) else []
