"""Gateways of this host: a thread with a loop and a unix socket for each attempt with a model."""

import asyncio
import contextlib
import os
import secrets
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import stamina.instrumentation
from typing_extensions import override

from orchestrator.adapters.local_models import InstalledModel, LocalModels
from orchestrator.adapters.model_gateway.app import GatewayApp
from orchestrator.adapters.model_gateway.auth import Key, Signer, read_key
from orchestrator.adapters.model_gateway.choosing import (
    choose,
    open_recording,
    provider_of,
    recorded_prices,
)
from orchestrator.adapters.model_gateway.limiter import KeyLimiter
from orchestrator.adapters.model_gateway.local import LocalSource
from orchestrator.adapters.model_gateway.meter import Meter
from orchestrator.adapters.model_gateway.outage import Outage
from orchestrator.adapters.model_gateway.policy import Policy
from orchestrator.adapters.model_gateway.record import Recorder
from orchestrator.adapters.model_gateway.secrets import Vault
from orchestrator.adapters.model_gateway.serving import BACKLOG, AgentServer
from orchestrator.adapters.model_gateway.source import Source
from orchestrator.adapters.model_gateway.upstream import Patience, Upstream
from orchestrator.domain.model import LOCAL, RECORDED, ModelName, Provider, Usage
from orchestrator.domain.task import Budget
from orchestrator.errors import InfrastructureError, OrchError
from orchestrator.ports import Clock
from orchestrator.ports.models import Gateway, GatewaySession, ModelChoice, ModelGateway

_LONGEST_PATH = 100
_SOCKETS = "sockets"
_SOCKET = "model.sock"
_START_WALL = 30.0
_CLOSE_WALL = 10.0


class HostModelGateway(ModelGateway):
    """Opens gateways with the providers of ``orch.toml``.

    Args:
        providers: by name.
        host: the host folder; sockets and the limits per key live below it.
        clock: for budgets of time.
        variable: reads a variable of the host's environment.
        local: the models that this host can run itself.
    """

    def __init__(
        self,
        providers: Mapping[str, Provider],
        host: Path,
        clock: Clock,
        variable: Callable[[str], str | None],
        *,
        patience: Patience | None = None,
        local: LocalModels | None = None,
    ) -> None:
        self._providers = providers
        self._host = host
        self._clock = clock
        self._variable = variable
        self._patience = patience or Patience()
        self._local = local

    @override
    def choose(self, model: str, effort: str, budget: Budget) -> ModelChoice:
        return choose(self._providers, self._variable, model, effort, budget, self._local)

    @override
    def open(self, session: GatewaySession) -> Gateway:
        named = ModelName.parse(session.choice.model)
        provider, key, local = None, Key(), None
        if named.provider == LOCAL and self._local is not None:
            local = self._local.verified(named.name)
        elif named.provider != RECORDED:
            provider = provider_of(self._providers, named)
            key = read_key(named.provider, provider, self._variable)
        return _OpenGateway(session, provider, key, self._host, self._clock, self._patience, local)


class _OpenGateway(Gateway):
    """One attempt's gateway."""

    def __init__(
        self,
        session: GatewaySession,
        provider: Provider | None,
        key: Key,
        host: Path,
        clock: Clock,
        patience: Patience,
        local: InstalledModel | None,
    ) -> None:
        self._session = session
        self._provider = provider
        self._host = host
        self._clock = clock
        self._patience = patience
        self._local = local
        self._vault = Vault()
        self._signer = Signer(provider, key, self._vault, clock) if provider else None
        self._outage = Outage(clock, session.max_outage)
        if provider is not None:
            prices = provider.prices
        else:
            prices = {} if local else recorded_prices(session.choice)
        self._meter = Meter(session.budget, prices)
        self._fault: BaseException | None = None
        self._recorder = Recorder(session.record, session.choice, prices, self._vault, clock)
        self._folder = socket_folder(host)
        self._listener = _listen(self._folder / _SOCKET, session.owner)
        self._app: GatewayApp | None = None
        self._server: AgentServer | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="model-gateway", daemon=True)
        self._thread.start()
        if not self._started.wait(_START_WALL) or self._fault is not None:
            self.close()
            if isinstance(self._fault, OrchError):
                raise self._fault
            raise InfrastructureError("the model gateway did not start") from self._fault

    @property
    @override
    def socket(self) -> Path:
        return self._folder / _SOCKET

    @override
    def usage(self) -> Usage:
        return self._meter.used

    @override
    def arrived(self) -> int:
        return 0 if self._app is None else self._app.arrived

    @override
    def outage(self) -> float:
        return self._outage.seconds()

    @override
    def failed(self) -> str | None:
        if self._fault is not None:
            raise self._fault
        return self._outage.failed()

    @override
    def close(self) -> None:
        if self._server is not None:
            self._server.should_exit = True
        self._thread.join(_CLOSE_WALL)
        self._recorder.close()
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            (self._folder / _SOCKET).unlink()
            self._folder.rmdir()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - told by failed(), on another thread
            self._fault = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        source = self._source()
        self._app = GatewayApp(
            Policy(self._session),
            source,
            self._meter,
            self._recorder,
            self._vault,
            self._clock,
            self._on_fault,
        )
        self._server = AgentServer(self._app, self._listener, self._started)
        try:
            await self._server.serve()
            self._fault = self._fault or self._server.accept_fault()
        finally:
            await source.close()

    def _source(self) -> Source:
        if self._local is not None:
            return LocalSource(self._local, self._session.choice.name, self._clock)
        if self._provider is None or self._signer is None:
            return open_recording(self._session.choice)
        stamina.instrumentation.set_on_retry_hooks(())  # tries are in the record
        limiter = KeyLimiter(
            self._host, self._signer.identity, self._provider.concurrency, self._clock
        )
        limiter.prepare()
        return Upstream(self._provider, self._signer, limiter, self._outage, self._patience)

    def _on_fault(self, fault: Exception) -> None:
        self._fault = fault


def socket_folder(host: Path) -> Path:
    """Make a short folder of our own for one socket; a socket's path holds some 100 bytes.

    Raises:
        InfrastructureError: no folder of this host would do.
    """
    _sweep(host / _SOCKETS)
    name = secrets.token_hex(4)
    for parent in (host / _SOCKETS, Path(tempfile.gettempdir())):
        folder = parent / f"orch-{name}"
        if len(os.fsencode(folder / _SOCKET)) > _LONGEST_PATH:
            continue
        try:
            if parent.name == _SOCKETS and not parent.is_dir():
                parent.mkdir(parents=True, exist_ok=True)
                parent.chmod(0o1777)
            folder.mkdir(mode=0o700)
        except PermissionError:
            continue
        return folder
    raise InfrastructureError(
        f"{host} is no place for a socket: too long a path, or not writable",
        remedy="name a short folder: ORCH_HOST=/run/lock/orch",
    )


def _sweep(parent: Path) -> None:
    """Remove sockets that nobody listens at any more: a gateway that was killed left them."""
    for path in parent.glob(f"orch-*/{_SOCKET}"):
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            probe.setblocking(False)  # noqa: FBT003 - its name is positional in the library
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
                path.parent.rmdir()


def _listen(path: Path, owner: tuple[int, int]) -> socket.socket:
    """Listen for the agent alone: the folder is closed to others, the socket is the agent's.

    It gets its name once it listens, so that one which refuses is dead.
    """
    listener = socket.socket(socket.AF_UNIX)
    unfinished = path.with_name("new.sock")
    listener.bind(str(unfinished))
    unfinished.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(unfinished, *owner)
    listener.listen(BACKLOG)
    unfinished.rename(path)
    listener.setblocking(False)  # noqa: FBT003 - its name is positional in the library
    return listener
