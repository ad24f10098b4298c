"""A gateway before a mock provider, and a client as an agent would be one."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from orchestrator.adapters.model_gateway.gateway import HostModelGateway
from orchestrator.adapters.model_gateway.upstream import Patience
from orchestrator.adapters.system_clock import SystemClock
from orchestrator.domain.model import Dialect, Exchange, Provider
from orchestrator.domain.task import Budget, ProviderTool
from orchestrator.ports import Clock
from orchestrator.ports.models import Gateway, GatewaySession
from tests.mock_models.server import MockModels

KEY = "sk-planted-0123456789abcdef"
MODEL = "mock-1"
OWNER = (65534, 65534)
SOON = Patience(attempts=3, total=20.0, first=0.01, longest=0.05, probe_every=0.02)


def provider(models: MockModels, **changed: Any) -> Provider:
    facts = {
        "base_url": models.base_url,
        "dialects": tuple(Dialect),
        "key_variable": "MOCK_KEY",
        "models": (MODEL,),
    }
    return Provider.model_validate(facts | changed)


@dataclass
class Line:
    """An agent's end of a gateway."""

    gateway: Gateway
    http: httpx.Client
    record: Path
    exchanges: list[Exchange] = field(default_factory=list)

    def post(self, path: str, body: Any, **more: Any) -> httpx.Response:
        return self.http.post(path, json=body, **more)


@contextmanager
def line(
    models: MockModels | None,
    folder: Path,
    *,
    effort: str = "",
    budget: Budget | None = None,
    auxiliary: Mapping[str, str] | None = None,
    tools: frozenset[ProviderTool] = frozenset(),
    max_outage: float = 1800.0,
    patience: Patience = SOON,
    clock: Clock | None = None,
    model: str = f"mock/{MODEL}",
    record: str = "exchanges.jsonl",
    keys: Mapping[str, str] | None = None,
    watched: bool = True,
    longest_wait: float = SOON.longest,
    **changed: Any,
) -> Iterator[Line]:
    """Open a gateway to ``models`` and connect to it."""
    providers = {} if models is None else {"mock": provider(models, **changed)}
    variables = {"MOCK_KEY": KEY, **(keys or {})}
    host = HostModelGateway(
        providers,
        folder / "host",
        clock or SystemClock(),
        variables.get,
        patience=replace(patience, longest=longest_wait),
    )
    limits = budget or Budget()
    heard: list[Exchange] = []
    session = GatewaySession(
        run_id="0" * 32,
        choice=host.choose(model, effort, limits),
        record=folder / record,
        owner=OWNER,
        budget=limits,
        max_outage=max_outage,
        auxiliary=auxiliary or {},
        tools=tools,
        on_exchange=heard.append,
    )
    gateway = host.open(session)
    transport = httpx.HTTPTransport(uds=str(gateway.socket), verify=False)
    try:
        with httpx.Client(transport=transport, base_url="http://orch", timeout=30) as http:
            yield Line(gateway, http, session.record, heard)
        if watched:
            gateway.failed()
    finally:
        gateway.close()
