"""The one way out of an agent's container: to its model, through the host."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from orchestrator.domain.model import Dialect, Exchange, Usage
from orchestrator.domain.task import Budget, ProviderTool

MAX_RECORD = 512 * 1024**2
"""Bytes to which the file of an attempt's exchanges may grow."""


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model that can be talked to: what ``--model`` and ``--effort`` came to.

    Attributes:
        model: as the operator named it, ``provider/name`` or ``recorded/FILE``.
        name: what requests must name.
        effort: what requests must name; empty leaves it to the provider.
        dialects: what the provider speaks.
        upstream: where it is, for the receipt; empty for a recording and a local model.
        stands_in: what the model is in place of a provider's, which is why a run with it is never
            official; empty for a provider's.
    """

    model: str
    name: str
    effort: str
    dialects: tuple[Dialect, ...]
    upstream: str
    stands_in: str = ""


@dataclass(frozen=True, slots=True)
class GatewaySession:
    """What one attempt may ask of its model.

    Attributes:
        run_id: whose it is.
        choice: from ``ModelGateway.choose``.
        record: the file that takes every exchange.
        owner: uid and gid of the agent, who alone may connect.
        budget: of the task; what is None is not limited.
        max_outage: seconds that the provider may stay away.
        auxiliary: other models that the agent may name, each with the model that is asked.
        tools: what the provider may do on the model's behalf.
        on_exchange: told of every exchange once it has ended, on a thread of the gateway.
    """

    run_id: str
    choice: ModelChoice
    record: Path
    owner: tuple[int, int]
    budget: Budget = field(default_factory=Budget)
    max_outage: float = 1800.0
    auxiliary: Mapping[str, str] = field(default_factory=dict)
    tools: frozenset[ProviderTool] = frozenset()
    on_exchange: Callable[[Exchange], None] = lambda _: None


class Gateway(Protocol):
    """An attempt's own gateway, open until it is closed."""

    @property
    def socket(self) -> Path:
        """The unix socket to bind into the container. HTTP/1.1."""
        ...

    def usage(self) -> Usage:
        """What was used so far."""
        ...

    def arrived(self) -> int:
        """How many requests have come, whatever became of them."""
        ...

    def outage(self) -> float:
        """Seconds for which the provider was away, as the host's own probe saw."""
        ...

    def failed(self) -> str | None:
        """Say that the provider stayed away for too long; None while it did not.

        Raises:
            StorageFullError: exchanges can no longer be recorded.
        """
        ...

    def close(self) -> None:
        """End what is in flight and let go of everything. Calling it twice is fine."""
        ...


class ModelGateway(Protocol):
    """Opens gateways."""

    def choose(self, model: str, effort: str, budget: Budget) -> ModelChoice:
        """Check that ``model`` can be asked with ``effort`` under ``budget``.

        Raises:
            UsageError: no such provider or model (near names are given), no key in the variable
                (which is named), or a cost budget without prices.
        """
        ...

    def open(self, session: GatewaySession) -> Gateway:
        """Serve one attempt from now on.

        Raises:
            UsageError: the key has gone since.
            InfrastructureError: the host would not give a socket.
        """
        ...
