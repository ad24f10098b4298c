"""Where replies come from: a provider, or a recording."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from orchestrator.adapters.model_gateway.fingerprint import Fingerprint
from orchestrator.adapters.model_gateway.language import Endpoint
from orchestrator.domain.model import Dialect


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that has passed. ``path`` is the agent's, ``suffix`` the provider's."""

    dialect: Dialect
    model: str
    endpoint: Endpoint
    path: str
    suffix: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    stream: bool
    fingerprint: Fingerprint


@dataclass(slots=True)
class Answer:
    """The beginning of a reply; ``chunks`` is all of its body.

    ``chunks`` raises ``BrokenOffError`` where the provider broke off, and ``TooLongError`` where it
    does not come to an end.
    """

    status: int
    content_type: str
    chunks: AsyncIterator[bytes]
    headers: Mapping[str, str] = field(default_factory=dict)
    tries: int = 1
    note: str = ""


class BrokenOffError(Exception):
    """A reply ended before its end."""


class Source(Protocol):
    """Answers what has passed the gateway."""

    def ask(self, ask: Ask) -> AbstractAsyncContextManager[Answer]:
        """Get a reply; leaving the context lets go of it.

        Raises:
            RefusedError: there is none to be had, in words for the agent.
        """
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...
