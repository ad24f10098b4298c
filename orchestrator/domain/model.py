"""Models as configs name them, the providers that serve them, and what talking to one came to.

A key is never a value here: a provider names the variable that holds it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, TypeAdapter, model_validator
from typing_extensions import override

from orchestrator.domain.schema import Strict

PER = 1_000_000
"""Prices are per this many tokens."""

NO_MODEL = "none"
RECORDED = "recorded"
"""As a provider's name: the model is a recording, ``recorded/FILE``."""
LOCAL = "local"
"""As a provider's name: the model runs on this host for the attempt alone, ``local/NAME``."""


class Dialect(StrEnum):
    """The languages in which agents ask for completions."""

    RESPONSES = "responses"
    """OpenAI Responses."""
    CHAT = "chat"
    """OpenAI Chat Completions, which most servers of open models speak as well."""
    MESSAGES = "messages"
    """Anthropic Messages."""
    GEMINI = "gemini"
    """Google's generateContent."""


class Auth(StrEnum):
    """How a provider is shown a key."""

    NONE = "none"
    BEARER = "bearer"
    """``Authorization: Bearer``; Bedrock's own API keys are shown so as well."""
    API_KEY = "x-api-key"
    GOOGLE = "x-goog-api-key"
    AZURE = "azure"
    """``api-key``, with ``api-version`` in the query where one is given."""
    BEDROCK = "bedrock"
    """AWS Signature Version 4 over the whole request."""
    VERTEX = "vertex"
    """``Authorization: Bearer`` with a short-lived token, from a variable or from a command."""


_Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Price(Strict):
    """What a million tokens cost, in the currency that budgets count in.

    ``cached`` (read from the provider's cache) and ``cache_write`` are the input's price where
    they are not given.
    """

    input: _Price
    output: _Price
    cached: _Price | None = None
    cache_write: _Price | None = None


_Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
_LOCAL = re.compile(r"https?://(localhost|127\.[0-9.]+|\[::1\])(:[0-9]+)?(/.*)?")


def _base_url(value: str) -> str:
    if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", value):
        raise ValueError(f"{value!r} is not an http(s) URL without user, query and fragment")
    return value.rstrip("/")


class Provider(Strict):
    """Somebody who serves models: a section ``[providers.NAME]`` of ``orch.toml``.

    Attributes:
        base_url: up to and without ``/responses``, ``/chat/completions``, ``/messages``,
            ``/models/NAME:generateContent``.
        dialects: what it speaks at that address.
        key_variable: the variable of the host's environment that holds the key (the secret key of
            Bedrock, the token of Vertex).
        key_id_variable: for Bedrock, the variable with the access key's id.
        session_variable: for Bedrock, the variable with a session token; it may be unset.
        token_command: for Vertex, what prints a fresh token.
        region: for Bedrock.
        api_version: for Azure.
        models: the models that may be named, beside those with a price; none means any.
        prices: by model.
        concurrency: requests in flight at once for one key, all attempts of this host together.
        proxy: the URL of an HTTP proxy on the way.
        ca_bundle: a file of certificates to trust in place of the usual ones.
    """

    base_url: Annotated[str, AfterValidator(_base_url)]
    dialects: Annotated[tuple[Dialect, ...], Field(min_length=1)]
    auth: Auth = Auth.BEARER
    key_variable: _Variable | None = None
    key_id_variable: _Variable = "AWS_ACCESS_KEY_ID"
    session_variable: _Variable = "AWS_SESSION_TOKEN"
    token_command: tuple[str, ...] = ()
    region: str = ""
    api_version: str = ""
    models: tuple[str, ...] = ()
    prices: dict[str, Price] = Field(default_factory=dict)
    concurrency: Annotated[int, Field(ge=1, le=1024)] = 32
    proxy: Annotated[str, Field(pattern=r"^https?://[^\s]+$")] | None = None
    ca_bundle: str | None = None

    @model_validator(mode="after")
    def _has_a_key(self) -> Self:
        if self.auth is Auth.NONE or self.key_variable or self.token_command:
            return self
        raise ValueError('a key is needed: key_variable = "NAME", or auth = "none"')

    @model_validator(mode="after")
    def _has_what_its_auth_needs(self) -> Self:
        if self.auth is Auth.BEDROCK and not self.region:
            raise ValueError("auth bedrock signs for a region: region is missing")
        if self.token_command and self.auth is not Auth.VERTEX:
            raise ValueError("token_command goes with auth vertex")
        return self

    @property
    def known(self) -> tuple[str, ...]:
        """The models it is known to serve; empty when any may be named."""
        return tuple(sorted({*self.models, *self.prices}))

    @property
    def local(self) -> bool:
        """Whether it is a server of this very host, which costs nothing by the token."""
        return _LOCAL.fullmatch(self.base_url) is not None


BUILTIN: Mapping[str, Mapping[str, object]] = {
    "openai": {
        "base_url": "https://api.openai.com/v1",
        "dialects": ("responses", "chat"),
        "key_variable": "OPENAI_API_KEY",
    },
    "anthropic": {
        "base_url": "https://api.anthropic.com/v1",
        "dialects": ("messages",),
        "auth": "x-api-key",
        "key_variable": "ANTHROPIC_API_KEY",
    },
    "google": {
        "base_url": "https://generativelanguage.googleapis.com/v1beta",
        "dialects": ("gemini",),
        "auth": "x-goog-api-key",
        "key_variable": "GEMINI_API_KEY",
    },
}
"""Providers that need no section of their own; one of the same name in orch.toml adds to it."""


def _free_name(name: str) -> str:
    if name in {LOCAL, RECORDED}:
        raise ValueError(f"{name}/... is orch's own; call the provider something else")
    return name


_ProviderName = Annotated[str, AfterValidator(_free_name)]


def read_providers(sections: Mapping[str, Any]) -> Mapping[str, Provider]:
    """Read the sections ``[providers.NAME]``, and add the usual providers.

    Raises:
        pydantic.ValidationError: one of them is not as it should be.
    """
    # all at once, so that a fault names its section
    every = TypeAdapter(dict[_ProviderName, Provider])
    if not isinstance(sections, dict):
        return every.validate_python(sections)
    names = {*BUILTIN, *sections}
    merged = {name: _merged(name, sections.get(name, {})) for name in names}
    return every.validate_python(merged)


def _merged(name: str, section: Any) -> Any:
    return {**BUILTIN.get(name, {}), **section} if isinstance(section, dict) else section


@dataclass(frozen=True, slots=True)
class ModelName:
    """``provider/name``; the name may hold slashes of its own."""

    provider: str
    name: str

    @classmethod
    def parse(cls, text: str) -> "ModelName":
        """Split ``text``.

        Raises:
            ValueError: it is not of that form.
        """
        provider, slash, name = text.partition("/")
        if not (slash and provider and name) or not text.isprintable():
            raise ValueError(f"model {text!r} is not of the form PROVIDER/NAME")
        return cls(provider, name)

    @override
    def __str__(self) -> str:
        return f"{self.provider}/{self.name}"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and cost. ``input`` includes the cached ones, ``output`` includes reasoning.

    ``estimated`` counts the tokens among them that no provider counted: a reply that was cut, or
    left by the agent before its end, is taken at four bytes a token.
    """

    requests: int = 0
    input: int = 0
    cached: int = 0
    cache_written: int = 0
    output: int = 0
    reasoning: int = 0
    estimated: int = 0
    cost: float = 0.0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            requests=self.requests + other.requests,
            input=self.input + other.input,
            cached=self.cached + other.cached,
            cache_written=self.cache_written + other.cache_written,
            output=self.output + other.output,
            reasoning=self.reasoning + other.reasoning,
            estimated=self.estimated + other.estimated,
            cost=self.cost + other.cost,
        )

    @property
    def tokens(self) -> int:
        """What a budget of tokens counts."""
        return self.input + self.output


def cost_of(usage: Usage, price: Price | None) -> float:
    """Say what ``usage`` costs; nothing where there is no price."""
    if price is None:
        return 0.0
    cached = price.input if price.cached is None else price.cached
    written = price.input if price.cache_write is None else price.cache_write
    plain = max(0, usage.input - usage.cached - usage.cache_written)
    parts = (
        (plain, price.input),
        (usage.cached, cached),
        (usage.cache_written, written),
        (usage.output, price.output),
    )
    return sum(tokens * each for tokens, each in parts) / PER


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's wish to use a tool; ``arguments`` is text, as a rule JSON."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply put together from its stream."""

    text: str = ""
    thought: str = ""
    calls: tuple[ToolCall, ...] = ()
    stop: str = ""
    model: str = ""


class Refusal(StrEnum):
    """Why the gateway itself answered, in place of a provider."""

    UNKNOWN_PATH = "unknown_path"
    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    NOT_ALLOWED = "not_allowed"
    OTHER_MODEL = "other_model"
    BUDGET = "budget"
    BUSY = "busy"
    UPSTREAM = "upstream"
    """The provider did not answer, or not with what can be passed on."""
    NOT_RECORDED = "not_recorded"


class Ended(StrEnum):
    """How the passing on of a reply ended."""

    WHOLE = "whole"
    INCOMPLETE = "incomplete"
    """It ended by itself without the sign of its dialect that it is all."""
    CUT = "cut"
    """The provider broke it off."""
    LEFT = "left"
    """The agent did not wait for its end."""
    TOO_LONG = "too_long"
    MALFORMED = "malformed"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and what it came to. ``seconds`` from its arrival to the end of the reply."""

    number: int
    dialect: Dialect | None
    path: str
    model: str
    status: int
    seconds: float
    usage: Usage = Usage()
    reply: Reply = Reply()
    refusal: Refusal | None = None
    message: str = ""
    ended: Ended = Ended.WHOLE
    tries: int = 1
    dropped: tuple[str, ...] = ()
    note: str = ""
