"""How a request is shown to be ours: one function per kind of authentication."""

import asyncio
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import httpx
from typing_extensions import override

from orchestrator.adapters.model_gateway.secrets import Vault
from orchestrator.adapters.model_gateway.sigv4 import AwsKey, signed_headers
from orchestrator.domain.model import Auth, Provider
from orchestrator.errors import UsageError
from orchestrator.ports import Clock

_TOKEN_LASTS_NS = 300 * 1_000_000_000
_COMMAND_WALL = 60.0
_SERVICE = "bedrock"
_SIGNED = ("content-type",)

_HEADERS: Mapping[Auth, tuple[str, str]] = {
    Auth.BEARER: ("authorization", "Bearer {}"),
    Auth.VERTEX: ("authorization", "Bearer {}"),
    Auth.API_KEY: ("x-api-key", "{}"),
    Auth.GOOGLE: ("x-goog-api-key", "{}"),
    Auth.AZURE: ("api-key", "{}"),
}


@dataclass(frozen=True, slots=True)
class Key:
    """What the host's environment holds for a provider; kept in this process's memory alone."""

    secret: str = ""
    key_id: str = ""
    session: str = ""

    @override
    def __repr__(self) -> str:
        return "Key(...)"


def read_key(name: str, provider: Provider, variable: Callable[[str], str | None]) -> Key:
    """Read a provider's key from the variables it names.

    Raises:
        UsageError: one that is needed is not set.
    """

    def needed(of: str) -> str:
        value = (variable(of) or "").strip()
        if not value:
            raise UsageError(
                f"provider {name}: no key: the variable {of} is not set",
                remedy=f"export {of}=... in this shell; it stays on the host",
            )
        if not value.isascii() or not value.isprintable():
            raise UsageError(f"provider {name}: {of} holds what cannot be a key", remedy="set it")
        return value

    if provider.auth is Auth.BEDROCK and provider.key_variable:
        session = (variable(provider.session_variable) or "").strip()
        return Key(needed(provider.key_variable), needed(provider.key_id_variable), session)
    if provider.auth is Auth.NONE or provider.token_command or not provider.key_variable:
        return Key()
    return Key(needed(provider.key_variable))


class Signer:
    """Adds a provider's key to requests."""

    def __init__(self, provider: Provider, key: Key, vault: Vault, clock: Clock) -> None:
        self._provider = provider
        self._key = key
        self._vault = vault
        self._clock = clock
        self._token = ""
        self._made_ns = 0
        for secret in (key.secret, key.session):
            vault.add(secret)

    @property
    def identity(self) -> str:
        """What tells this key from another, for the limiter; a secret itself."""
        command = " ".join(self._provider.token_command)
        return self._key.key_id or self._key.secret or command or self._provider.base_url

    async def sign(self, request: httpx.Request) -> None:
        """Add the key to a request that is complete but for it.

        Raises:
            TokenError: the command that prints a token failed.
        """
        auth = self._provider.auth
        if auth is Auth.BEDROCK:
            request.headers.update(self._aws(request))
        elif auth in _HEADERS:
            name, form = _HEADERS[auth]
            request.headers[name] = form.format(await self._secret())

    def forget(self) -> None:
        """Take the next token afresh: the provider refused the last."""
        self._token = ""

    def _aws(self, request: httpx.Request) -> dict[str, str]:
        return signed_headers(
            AwsKey(self._key.key_id, self._key.secret, self._key.session),
            method=request.method,
            url=str(request.url),
            headers={name: request.headers[name] for name in _SIGNED if name in request.headers},
            body=request.content,
            region=self._provider.region,
            service=_SERVICE,
            now=self._clock.utc(),
        )

    async def _secret(self) -> str:
        if not self._provider.token_command:
            return self._key.secret
        now = self._clock.boottime_ns()
        if not self._token or now - self._made_ns > _TOKEN_LASTS_NS:
            token = await asyncio.to_thread(_printed, self._provider.token_command)
            self._vault.add(token)
            self._token, self._made_ns = token, now
        return self._token


class TokenError(Exception):
    """The command that prints a token did not."""


def _printed(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            timeout=_COMMAND_WALL,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TokenError(f"{command[0]} printed no token: {type(error).__name__}") from error
    token = done.stdout.decode("utf-8", "replace").strip()
    if done.returncode != 0 or not token or not (token.isascii() and token.isprintable()):
        raise TokenError(f"{command[0]} printed no token: exit {done.returncode}")
    return token
