"""What may stand in a request, as tables of rules.

A rule takes a value and gives back what is sent in its place, or refuses. A field that no table
knows is left out, and its name is recorded: a provider never gets what nobody looked at, and an
agent that learned a new field still works. What would give the provider an ability (a tool that it
runs, an address that it fetches, something that it keeps) is refused in words.
"""

import re
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from orchestrator.domain.model import Refusal
from orchestrator.domain.task import ProviderTool

MAX_DROPPED = 50
_LONGEST_SAID = 2_000
"""Of a refusal, which may name a field, and an agent may spell one at any length."""


class RefusedError(Exception):
    """The gateway answers a request itself."""

    def __init__(self, kind: Refusal, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message if len(message) <= _LONGEST_SAID else f"{message[:_LONGEST_SAID]}..."
        self.retry_after = retry_after


@dataclass
class Scope:
    """What a request is held against, and what was left out of it."""

    tools: frozenset[ProviderTool] = frozenset()
    own_ids: AbstractSet[str] = frozenset()
    dropped: list[str] = field(default_factory=list)

    def drop(self, where: str) -> None:
        """Note a field that is not passed on."""
        if len(self.dropped) < MAX_DROPPED:
            self.dropped.append(where[:200])


Rule = Callable[[Any, Scope, str], Any]
_GONE = object()


def refuse(where: str, why: str) -> RefusedError:
    """Make the refusal of one field."""
    return RefusedError(Refusal.NOT_ALLOWED, f"{where or 'the body'}: {why}")


def malformed(where: str, why: str) -> RefusedError:
    """Make the refusal of something that is not what its dialect says."""
    return RefusedError(Refusal.MALFORMED, f"{where or 'the body'}: {why}")


def anything(value: Any, _scope: Scope, _where: str) -> Any:
    """Pass it on as it is."""
    return value


def _of(what: str, *kinds: type) -> Rule:
    """Pass null and values of these types of JSON.

    Some servers take 1 for true and "5" for 5; the gateway would have read something else.
    """

    def rule(value: Any, _scope: Scope, where: str) -> Any:
        if value is None or type(value) in kinds:
            return value
        raise malformed(where, f"{what} is expected")

    return rule


flag = _of("true or false", bool)
number = _of("a number", int, float)
text = _of("text", str)


def left_out(_value: Any, _scope: Scope, _where: str) -> Any:
    """Leave it out; it is known and harmless, and nothing here is for the provider."""
    return _GONE


def plain(names: str, rule: Rule = anything) -> dict[str, Rule]:
    """Make the table of fields that one rule is for, by their names with blanks between."""
    return dict.fromkeys(names.split(), rule)


def never(why: str) -> Rule:
    """Refuse a field, unless it says nothing."""

    def rule(value: Any, _scope: Scope, where: str) -> Any:
        if value in (None, False, "", [], {}):
            return _GONE
        raise refuse(where, why)

    return rule


def always(fixed: Any) -> Rule:
    """Send ``fixed``, whatever was asked."""

    def rule(_value: Any, _scope: Scope, _where: str) -> Any:
        return fixed

    return rule


def allowed_with(tool: ProviderTool, rule: Rule = anything) -> Rule:
    """Pass by ``rule`` where the task allows ``tool``, refuse elsewhere."""

    def guarded(value: Any, scope: Scope, where: str) -> Any:
        if tool not in scope.tools:
            raise refuse(where, f"tools of the provider's own are not allowed here ({tool})")
        return rule(value, scope, where)

    return guarded


def fields(known: Mapping[str, Rule], *, spelled: Callable[[str], str] = str) -> Rule:
    """Hold an object against a table of its fields; ``spelled`` finds a name's usual spelling."""

    def rule(value: Any, scope: Scope, where: str) -> Any:
        if not isinstance(value, dict):
            raise malformed(where, "an object is expected")
        kept: dict[str, Any] = {}
        for name, inner in value.items():
            place = f"{where}.{name}" if where else name
            usual = spelled(name)
            if usual not in known or usual in kept:
                scope.drop(place)
                continue
            result = known[usual](inner, scope, place)
            if result is not _GONE:
                kept[usual] = result
        return kept

    return rule


def each(item: Rule) -> Rule:
    """Hold every item of a list against one rule."""

    def rule(value: Any, scope: Scope, where: str) -> Any:
        if not isinstance(value, list):
            raise malformed(where, "a list is expected")
        kept = (item(inner, scope, f"{where}[{index}]") for index, inner in enumerate(value))
        return [inner for inner in kept if inner is not _GONE]

    return rule


def text_or(other: Rule) -> Rule:
    """Pass text, and nothing; hold anything else against ``other``."""

    def rule(value: Any, scope: Scope, where: str) -> Any:
        return value if value is None or isinstance(value, str) else other(value, scope, where)

    return rule


def or_none(other: Rule) -> Rule:
    """Pass nothing; hold anything else against ``other``."""

    def rule(value: Any, scope: Scope, where: str) -> Any:
        return None if value is None else other(value, scope, where)

    return rule


def one_or_each(item: Rule) -> Rule:
    """Hold an item, or every item of a list."""
    several = each(item)

    def rule(value: Any, scope: Scope, where: str) -> Any:
        return (several if isinstance(value, list) else item)(value, scope, where)

    return rule


_DATED = re.compile(r"_[0-9]{8}$")


def by(key: str, kinds: Mapping[str, Rule], *, missing: str | None = None) -> Rule:
    """Choose the table by the field ``key``; a kind that no table is for is refused.

    Kinds that carry the date of a version, ``bash_20250124``, are looked up without it.
    """

    def rule(value: Any, scope: Scope, where: str) -> Any:
        if not isinstance(value, dict):
            raise malformed(where, "an object is expected")
        kind = value.get(key, missing)
        chosen = kinds.get(_DATED.sub("", kind)) if isinstance(kind, str) else None
        if chosen is None:
            raise refuse(where, f"{key} {str(kind)[:80]!r} does not pass the gateway")
        return chosen(value, scope, where)

    return rule


def inline(value: Any, _scope: Scope, where: str) -> Any:
    """Pass data that the request itself carries, never an address to fetch it from."""
    if not isinstance(value, str) or not value[:5].lower() == "data:":
        raise refuse(where, "only data: URLs pass; a provider fetches nothing for an agent")
    return value


def carried(value: Any, scope: Scope, where: str) -> Any:
    """Pass data in base64, bare or as a data: URL; some servers take an address there as well."""
    if isinstance(value, str) and ":" not in value:
        return value
    return inline(value, scope, where)


def own_id(value: Any, scope: Scope, where: str) -> Any:
    """Pass the name of something that this attempt was given earlier."""
    if value is None:
        return _GONE
    if not isinstance(value, str) or value not in scope.own_ids:
        raise refuse(where, "only ids from this attempt's own replies pass")
    return value


def own_id_or_none(value: Any, scope: Scope, _where: str) -> Any:
    """Leave out the name of something that this attempt was not given: it would be looked up."""
    return value if isinstance(value, str) and value in scope.own_ids else _GONE
