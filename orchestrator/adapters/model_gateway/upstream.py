"""Asking a provider over HTTP: the key, patience with its failures, and the host's own probe."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import stamina
from typing_extensions import override

from orchestrator.adapters.model_gateway.auth import Signer, TokenError
from orchestrator.adapters.model_gateway.limiter import KeyLimiter
from orchestrator.adapters.model_gateway.outage import Outage
from orchestrator.adapters.model_gateway.shape import RefusedError
from orchestrator.adapters.model_gateway.source import Answer, Ask, BrokenOffError, Source
from orchestrator.adapters.model_gateway.trust import certificates
from orchestrator.adapters.model_gateway.vertex import vertex_messages
from orchestrator.adapters.model_gateway.wire import MAX_ERROR, TooLongError, read_reply
from orchestrator.domain.model import Auth, Dialect, Provider, Refusal

_THROTTLED = 429
_UNAUTHORIZED = 401
_SERVER = 500
_AGAIN = frozenset({_THROTTLED, 500, 502, 503, 504, 529})
_PASSED_ON = ("x-request-id", "request-id", "retry-after")
_TIMEOUTS = httpx.Timeout(30.0, read=600.0, write=120.0, pool=None)
_PROBE_TIMEOUTS = httpx.Timeout(10.0)
_PROBE_HEADERS: Mapping[Dialect, Mapping[str, str]] = {
    Dialect.MESSAGES: {"anthropic-version": "2023-06-01"}
}


@dataclass(frozen=True, slots=True)
class Patience:
    """How a failing provider is met. All in seconds, but for ``attempts``.

    Together they stay below the time after which agents give a request up by themselves.
    """

    attempts: int = 8
    total: float = 120.0
    first: float = 1.0
    longest: float = 30.0
    probe_every: float = 10.0
    probe: float = 30.0
    """For a probe's answer to begin."""
    head: float = 600.0
    """For a reply to begin, whatever comes before it: a provider may say 103 without end."""
    failure: float = 30.0
    """For a failure to be said to its end."""
    reply: float = 3600.0
    """For a reply to end, whatever comes in it: a stream may be comments without end."""


class _AgainError(Exception):
    """The provider answered that it cannot now."""

    def __init__(self, response: httpx.Response, body: bytes) -> None:
        super().__init__(f"HTTP {response.status_code}")
        self.response = response
        self.body = body
        self.after = _seconds(response.headers.get("retry-after", ""))


class Upstream(Source):
    """One provider, for one attempt."""

    def __init__(
        self,
        provider: Provider,
        signer: Signer,
        limiter: KeyLimiter,
        outage: Outage,
        patience: Patience,
    ) -> None:
        self._provider = provider
        self._signer = signer
        self._limiter = limiter
        self._outage = outage
        self._patience = patience
        self._client = httpx.AsyncClient(
            timeout=_TIMEOUTS,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
            verify=certificates(provider),
            proxy=provider.proxy,
            trust_env=False,
            follow_redirects=False,
        )
        self._probing: asyncio.Task[None] | None = None

    @override
    @asynccontextmanager
    async def ask(self, ask: Ask) -> AsyncIterator[Answer]:
        async with self._limiter.slot():
            try:
                response, tries = await self._persist(ask)
            except _AgainError as error:
                # Its own last word, after all that patience.
                yield _answer(error.response, _one(error.body), self._patience.attempts)
                return
            except httpx.HTTPError as error:
                raise RefusedError(
                    Refusal.UPSTREAM, f"the provider does not answer ({type(error).__name__})"
                ) from error
            except TokenError as error:
                raise RefusedError(Refusal.UPSTREAM, str(error)) from error
            try:
                yield _answer(response, _chunks(response, self._patience.reply), tries)
            finally:
                await response.aclose()

    @override
    async def close(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)
        await self._client.aclose()

    async def _persist(self, ask: Ask) -> tuple[httpx.Response, int]:
        """Ask until there is an answer, or patience ends."""
        patience = self._patience
        tries = stamina.retry_context(
            on=self._wait_for,
            attempts=patience.attempts,
            timeout=patience.total,
            wait_initial=patience.first,
            wait_max=patience.longest,
            wait_jitter=patience.first,
        )
        async for attempt in tries:
            with attempt:
                return await self._once(ask), attempt.num
        raise AssertionError("stamina ends by returning or raising")

    def _wait_for(self, error: Exception) -> bool | float:
        """Tell whether, or after how long, to ask again."""
        if isinstance(error, _AgainError):
            if error.after is None:
                return True
            return error.after if error.after <= self._patience.longest else False
        return isinstance(error, httpx.TransportError)

    async def _once(self, ask: Ask) -> httpx.Response:
        request = self._request(ask)
        await self._signer.sign(request)
        try:
            async with asyncio.timeout(self._patience.head):
                response = await self._client.send(request, stream=True)
        except TimeoutError as error:
            self._look()
            raise httpx.ReadTimeout("no reply has begun") from error
        except httpx.TransportError:
            self._look()
            raise
        if response.status_code >= _SERVER:
            self._look()
        else:
            self._outage.over()
        if response.status_code == _UNAUTHORIZED and self._provider.token_command:
            self._signer.forget()
        if response.status_code in _AGAIN:
            again = _AgainError(response, await _short(response, self._patience.failure))
            if response.status_code == _THROTTLED and again.after is not None:
                self._limiter.pause(min(again.after, self._patience.longest))
            raise again
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise RefusedError(
                Refusal.UPSTREAM, "the provider packs its replies although it was asked not to"
            )
        return response

    def _request(self, ask: Ask) -> httpx.Request:
        query, suffix, body = dict(ask.query), ask.suffix, ask.body
        if self._provider.auth is Auth.VERTEX and ask.dialect is Dialect.MESSAGES:
            suffix, body = vertex_messages(ask)
        if self._provider.auth is Auth.AZURE and self._provider.api_version:
            query["api-version"] = self._provider.api_version
        return self._client.build_request(
            ask.endpoint.method,
            self._provider.base_url + suffix,
            params=query or None,
            content=body,
            headers={
                **ask.headers,
                "content-type": "application/json",
                "accept": "text/event-stream" if ask.stream else "application/json",
                "accept-encoding": "identity",
                "user-agent": "orch",
            },
        )

    def _look(self) -> None:
        """Have the host look for itself whether the provider is there."""
        self._outage.suspect()
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._probe_until_it_answers())

    async def _probe_until_it_answers(self) -> None:
        while self._outage.suspected:
            why = await self._probe()
            if not why:
                self._outage.over()
                return
            self._outage.prove(why)
            await asyncio.sleep(self._patience.probe_every)

    async def _probe(self) -> str:
        """Ask for the list of models, which needs no agent's words; say why it failed."""
        headers = _PROBE_HEADERS.get(self._provider.dialects[0], {})
        try:
            request = self._client.build_request(
                "GET",
                self._provider.base_url + "/models",
                headers={**headers, "accept-encoding": "identity", "user-agent": "orch"},
                timeout=_PROBE_TIMEOUTS,
            )
            await self._signer.sign(request)
            async with asyncio.timeout(self._patience.probe):
                response = await self._client.send(request, stream=True)
            await response.aclose()
        except (httpx.HTTPError, TimeoutError) as error:
            return type(error).__name__
        except TokenError as error:
            return str(error)
        return f"HTTP {response.status_code}" if response.status_code >= _SERVER else ""


def _answer(response: httpx.Response, chunks: AsyncIterator[bytes], tries: int) -> Answer:
    return Answer(
        status=response.status_code,
        content_type=response.headers.get("content-type", "application/octet-stream"),
        chunks=chunks,
        headers={n: response.headers[n] for n in _PASSED_ON if n in response.headers},
        tries=tries,
    )


async def _chunks(response: httpx.Response, longest: float) -> AsyncIterator[bytes]:
    now = asyncio.get_running_loop().time
    until = now() + longest
    try:
        async for chunk in response.aiter_raw():
            if now() > until:
                raise TooLongError
            yield chunk
    except httpx.HTTPError as error:
        raise BrokenOffError(type(error).__name__) from error


async def _one(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _short(response: httpx.Response, longest: float) -> bytes:
    """Read the body of a failure, which is short or not worth reading."""
    try:
        async with asyncio.timeout(longest):
            return await read_reply(response.aiter_raw(), MAX_ERROR)
    except (TooLongError, TimeoutError, httpx.HTTPError):
        return b""
    finally:
        await response.aclose()


def _seconds(header: Any) -> float | None:
    """Read a Retry-After in seconds; the form with a date is as good as none."""
    text = str(header).strip()
    if not text.replace(".", "", 1).isdecimal():
        return None
    return float(text)
