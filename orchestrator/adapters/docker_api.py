"""The wire to a Docker-compatible engine: the SDK's transport, and every one of its exceptions.

Nothing of ``docker``, ``requests`` or ``urllib3`` leaves this module; its neighbours see plain
JSON, byte streams and ``orchestrator.errors``. Paths and bodies: Docker Engine API reference.
"""

import json
import os
import socket
import struct
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from types import MappingProxyType
from typing import IO, Any, cast

import requests
import urllib3
from docker import APIClient
from docker.constants import MINIMUM_DOCKER_API_VERSION
from docker.errors import DockerException

from orchestrator.adapters.docker_dialect import Dialect, dialect_of
from orchestrator.adapters.engine_process import START_REMEDY, incarnation_of
from orchestrator.errors import ContainerLostError, EngineUnavailableError, InfrastructureError

DEFAULT_ADDRESS = "unix:///var/run/docker.sock"

FRAME = struct.Struct(">BxxxL")  # stream, three zero bytes, length
_STREAMS = {1: "stdout", 2: "stderr"}
_BROKEN = (requests.RequestException, urllib3.exceptions.HTTPError, DockerException, OSError)


class ConflictError(InfrastructureError):
    """The engine refused because of the state a container is in."""


Query = Mapping[str, object]
Body = Mapping[str, Any] | None
_NONE: Query = MappingProxyType({})

_ERROR_OF_STATUS: Mapping[int, type[InfrastructureError]] = {
    requests.codes.not_found: ContainerLostError,
    requests.codes.conflict: ConflictError,
}
_ERROR_OF_CAUSE: Mapping[str, type[InfrastructureError]] = {
    "container state improper": ConflictError,  # Podman's, with status 500
}


class Stream:
    """A response that goes on, such as a container's output. Any thread may ``close`` it.

    It ends where its connection ends. Why it ended, only the engine can say: ask it.
    """

    def __init__(self, response: requests.Response) -> None:
        self._response = response

    def objects(self) -> Generator[dict[str, Any], None, None]:
        """Yield JSON objects, one a line."""
        with self._to_its_end():
            for line in self._response.iter_lines():
                yield json.loads(line)

    def frames(self) -> Generator[tuple[str, bytes], None, None]:
        """Yield ``(stdout or stderr, bytes)``; format: Engine API, "Attach to a container"."""
        raw = self._response.raw
        with self._to_its_end():
            while len(header := raw.read(FRAME.size)) == FRAME.size:
                kind, length = FRAME.unpack(header)
                yield _STREAMS.get(kind, "stderr"), raw.read(length)

    @contextmanager
    def _to_its_end(self) -> Iterator[None]:
        try:
            yield
        except _BROKEN:
            return
        finally:
            self._response.close()

    def interrupt(self) -> None:
        """End it from another thread: whoever reads it sees its end."""
        try:
            self._response.raw.shutdown()
        except (ValueError, RuntimeError, OSError):
            return  # it has ended already

    def close(self) -> None:
        """Drop the connection."""
        self._response.close()


class DockerApi:
    """Calls of one engine. Safe to use from several threads.

    Args:
        address: as in ``DOCKER_HOST``; None means the default socket.
        timeout: seconds without an answer after which a call counts as unanswered.
    """

    def __init__(self, address: str | None, *, timeout: int = 60) -> None:
        self.address = address or DEFAULT_ADDRESS
        self._timeout = timeout

    @cached_property
    def version(self) -> dict[str, Any]:
        """The engine's ``/version``."""
        with self._reaching():
            client = self._client_of(MINIMUM_DOCKER_API_VERSION)
            try:
                return client.version(api_version=False)
            finally:
                client.close()

    @cached_property
    def dialect(self) -> Dialect:
        """How this kind of engine wants to be spoken to."""
        return dialect_of(self.version)

    @cached_property
    def _client(self) -> APIClient:
        spoken = self.version["ApiVersion"]
        with self._reaching():
            return self._client_of(spoken)

    def _client_of(self, spoken: str) -> APIClient:
        try:
            return APIClient(self.address, spoken, self._timeout)
        except ValueError as fault:
            raise EngineUnavailableError(
                f"{self.address} is no address of a container engine: {fault}",
                remedy=START_REMEDY,
            ) from fault

    def incarnation(self) -> str:
        """Say which process answers now; "" when unknowable.

        Raises:
            EngineUnavailableError: none does.
        """
        return incarnation_of(self.address)

    def call(self, method: str, path: str, *, query: Query = _NONE, body: Body = None) -> Any:
        """Make one call and return the JSON it answers with, None for an empty answer.

        Raises:
            EngineUnavailableError: no answer, or none within the time limit.
            ContainerLostError: the engine does not know what the path names.
            ConflictError: the state of the container forbids it.
            InfrastructureError: any other refusal.
        """
        response = self._send(method, path, query, body, read_timeout=self._timeout)
        return response.json() if response.content else None

    def stream(self, method: str, path: str, *, query: Query = _NONE, body: Body = None) -> Stream:
        """Make one call whose answer goes on for as long as it takes; errors as ``call``."""
        return Stream(self._send(method, path, query, body, read_timeout=None))

    @contextmanager
    def download(self, path: str) -> Iterator[IO[bytes]]:
        """Open what a GET answers with as a file; errors as ``call``, also while it is read."""
        response = self._send("GET", path, _NONE, None, read_timeout=self._timeout, stream=True)
        with response, self._reaching():
            yield cast("IO[bytes]", response.raw)

    def hijack(self, exec_id: str, *, tty: bool) -> socket.socket:
        """Start an exec and return the socket that its input and output go through."""
        with self._reaching():
            wire = self._client.exec_start(exec_id, tty=tty, socket=True)
            if not isinstance(wire, socket.SocketIO):
                raise InfrastructureError(f"no terminal over {self.address}: not a plain socket")
            connection = socket.socket(fileno=os.dup(wire.fileno()))
            wire.close()
        connection.settimeout(None)
        return connection

    def close(self) -> None:
        """Drop idle connections."""
        if "_client" in self.__dict__:
            self._client.close()

    def _send(
        self,
        method: str,
        path: str,
        query: Query,
        body: Body,
        *,
        read_timeout: int | None,
        stream: bool = False,
    ) -> requests.Response:
        client = self._client
        with self._reaching():
            response = client.request(
                method,
                f"{client.base_url}/v{client.api_version}{path}",
                params={key: _spell(value) for key, value in query.items()},
                json=body,
                stream=stream or read_timeout is None,
                timeout=(self._timeout, read_timeout),
            )
        if response.ok:
            return response
        with response:
            said = response.text.strip()
        told = _refusal(said)
        by_cause = _ERROR_OF_CAUSE.get(told.get("cause", ""), InfrastructureError)
        error = _ERROR_OF_STATUS.get(response.status_code, by_cause)
        raise error(f"{method} {path}: {told['message']}")

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except _BROKEN as error:
            raise EngineUnavailableError(
                f"the container engine at {self.address} does not answer: {error}",
                remedy=START_REMEDY,
            ) from error


def _spell(value: object) -> str:
    """Spell a query value as the engine wants it: text as it is, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def _refusal(answer: str) -> dict[str, str]:
    """Read why the engine refused: a ``message`` always, a ``cause`` from Podman."""
    try:
        told = json.loads(answer)
        return {"message": str(told["message"]), "cause": str(told.get("cause", ""))}
    except (ValueError, LookupError, TypeError, AttributeError):
        return {"message": answer}
