"""All dialects, and the way from a path to its table."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orchestrator.adapters.model_gateway.chat import Chat
from orchestrator.adapters.model_gateway.gemini import Gemini
from orchestrator.adapters.model_gateway.language import Endpoint, Language
from orchestrator.adapters.model_gateway.messages import Messages
from orchestrator.adapters.model_gateway.responses import Responses
from orchestrator.adapters.model_gateway.shape import RefusedError
from orchestrator.domain.model import Dialect, Refusal

LANGUAGES: Mapping[Dialect, Language] = {
    language.dialect: language for language in (Responses(), Chat(), Messages(), Gemini())
}

MODELS_PATH = re.compile(r"/v1(beta)?/models(?:/(?P<model>[^/:]+(?:/[^/:]+)*))?")


@dataclass(frozen=True, slots=True)
class Route:
    """Which table a request is held against. ``model`` is what its path names, if it does."""

    language: Language
    endpoint: Endpoint
    model: str


def find(method: str, path: str, spoken: Iterable[Dialect]) -> Route:
    """Find the table of a request.

    Raises:
        RefusedError: there is none, or the provider speaks another dialect.
    """
    for language in LANGUAGES.values():
        for endpoint in language.endpoints:
            match = endpoint.path.fullmatch(path)
            if match is None or endpoint.method != method:
                continue
            if language.dialect not in spoken:
                raise RefusedError(
                    Refusal.UNKNOWN_PATH,
                    f"the provider of this run speaks {', '.join(spoken)}, not {language.dialect}",
                )
            return Route(language, endpoint, match.groupdict().get("model") or "")
    raise RefusedError(Refusal.UNKNOWN_PATH, f"{method} {path[:200]} does not pass the gateway")


def guess(path: str, spoken: tuple[Dialect, ...]) -> Language:
    """Choose in whose form an error is told where the path tells none."""
    wanted = {"/v1beta": Dialect.GEMINI, "/v1/messages": Dialect.MESSAGES}
    for beginning, dialect in wanted.items():
        if path.startswith(beginning):
            return LANGUAGES[dialect]
    return LANGUAGES[spoken[0]]


def catalogue(path: str, models: tuple[str, ...]) -> dict[str, object]:
    """List ``models`` as each dialect's clients expect it.

    Raises:
        RefusedError: one is asked for that is not among them.
    """
    match = MODELS_PATH.fullmatch(path)
    if match is None:
        raise RefusedError(Refusal.UNKNOWN_PATH, f"GET {path[:200]} does not pass the gateway")
    gemini = match.group(1) is not None
    describe = _gemini if gemini else _common
    wanted = match["model"]
    if wanted is not None:
        if wanted not in models:
            raise RefusedError(Refusal.OTHER_MODEL, f"there is no model {wanted[:80]!r} here")
        return describe(wanted)
    listed = [describe(model) for model in models]
    if gemini:
        return {"models": listed}
    ends = {"first_id": models[0], "last_id": models[-1], "has_more": False}
    return {"object": "list", "data": listed, "models": [], **ends}


def _common(model: str) -> dict[str, object]:
    return {
        "id": model,
        "object": "model",
        "created": 0,
        "owned_by": "orch",
        "type": "model",
        "display_name": model,
        "created_at": "1970-01-01T00:00:00Z",
    }


def _gemini(model: str) -> dict[str, object]:
    methods = ["generateContent", "streamGenerateContent", "countTokens"]
    return {
        "name": f"models/{model}",
        "displayName": model,
        "supportedGenerationMethods": methods,
    }
