"""What of an agent's request goes on to the provider, and in which words it is refused."""

import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from orchestrator.adapters.model_gateway.fingerprint import Fingerprint, fingerprint
from orchestrator.adapters.model_gateway.language import Language, Verb
from orchestrator.adapters.model_gateway.languages import Route
from orchestrator.adapters.model_gateway.shape import RefusedError, Scope, malformed
from orchestrator.adapters.model_gateway.wire import parse_object
from orchestrator.domain.model import Refusal
from orchestrator.ports.models import GatewaySession


@dataclass(frozen=True, slots=True)
class Passed:
    """A request that may go on. ``sent`` is the body as the provider gets it.

    It is kept as bytes alone: parsed, it may take ten times as much.
    """

    model: str
    sent: bytes
    stream: bool
    suffix: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    fingerprint: Fingerprint


@dataclass
class Policy:
    """Holds requests against the tables and against the attempt's own model and effort."""

    session: GatewaySession
    own_ids: set[str] = field(default_factory=set)

    @property
    def models(self) -> tuple[str, ...]:
        """Every name that may be asked for."""
        own = self.session.choice.name
        return (own, *(name for name in self.session.auxiliary if name != own))

    def hold(
        self,
        route: Route,
        raw: bytes,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        scope: Scope,
    ) -> Passed:
        """Check a request and make of it what is sent.

        Raises:
            RefusedError: it may not pass.
        """
        rule = route.endpoint.body
        if rule is None:
            raise malformed("", "this path takes no body")
        try:
            given = parse_object(raw)
        except ValueError as error:
            raise malformed("the body", f"it is not a JSON object: {error}") from error
        language = route.language
        body = rule(given, scope, "")
        named = route.model or body.get("model")
        model = self._model(named)
        if not route.model:
            body["model"] = model
        verb = route.endpoint.verb
        if verb.spends:
            self._pin_effort(route, body, scope, named, model)
        stream = language.streams(body, route.endpoint.to)
        language.finish(body, verb)
        where = f"{route.endpoint.method} {route.endpoint.to}"
        return Passed(
            model=model,
            sent=_encoded(body),
            stream=stream,
            suffix=route.endpoint.to.format(model=model),
            query=_query(route, query, scope),
            headers=_headers(language, headers),
            fingerprint=fingerprint(where, body, language.items(body)),
        )

    def learn(self, ids: AbstractSet[str]) -> None:
        """Remember what the provider named in a reply: this attempt may name it again."""
        self.own_ids |= ids

    def _pin_effort(
        self, route: Route, body: dict[str, Any], scope: Scope, named: object, model: str
    ) -> None:
        """Hold a request to the run's effort; one for an auxiliary model gets it like the model."""
        own, language = self.session.choice, route.language
        if named != own.name:
            language.pin_effort(body, "", scope)
        effort = own.effort if model == own.name else ""
        language.pin_effort(body, effort, scope, add=route.endpoint.verb is Verb.GENERATE)

    def _model(self, named: object) -> str:
        """Hold the model's name against the config's own and the declared auxiliaries."""
        own = self.session.choice.name
        if named == own:
            return own
        if isinstance(named, str) and named in self.session.auxiliary:
            return self.session.auxiliary[named]
        raise RefusedError(
            Refusal.OTHER_MODEL,
            f"the model {str(named)[:80]!r} is not this run's, {', '.join(self.models)}",
        )


def _encoded(body: Mapping[str, Any]) -> bytes:
    """Write JSON as it came, beyond what a table changed: keys keep their order.

    Raises:
        RefusedError: it holds half a character, or a number beyond all numbers.
    """
    try:
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return text.encode()
    except ValueError as error:
        raise malformed("the body", "half a surrogate pair, or a number that is none") from error


def _query(route: Route, query: Mapping[str, str], scope: Scope) -> dict[str, str]:
    known = route.endpoint.query or {}
    kept = {}
    for name, value in query.items():
        if value in known.get(name, frozenset()):
            kept[name] = value
        else:
            scope.drop(f"?{name}")
    if route.endpoint.needs and route.endpoint.needs not in kept:
        needed = f"{route.endpoint.needs}={', '.join(known[route.endpoint.needs])}"
        raise malformed("the query", f"{needed} is missing: only such streams pass")
    return kept


def _headers(language: Language, headers: Mapping[str, str]) -> dict[str, str]:
    given = {name: headers[name] for name in language.headers if name in headers}
    passed = {name: language.filter_header(name, value) for name, value in given.items()}
    return {name: value for name, value in passed.items() if value and _plain(value)}


def _plain(value: str) -> bool:
    return value.isascii() and value.isprintable()
