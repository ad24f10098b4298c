"""What an attempt has spent on its model, and when it may spend no more."""

import threading
from dataclasses import replace

from orchestrator.adapters.model_gateway.shape import RefusedError
from orchestrator.domain.model import Price, Refusal, Usage, cost_of
from orchestrator.domain.task import Budget


class Meter:
    """Counts usage against a budget; read from other threads.

    A request is admitted while something is left, so that the last one may go over by itself;
    what is asked at the same time may too.
    """

    def __init__(self, budget: Budget, prices: dict[str, Price]) -> None:
        self._budget = budget
        self._prices = prices
        self._lock = threading.Lock()
        self._used = Usage()

    @property
    def used(self) -> Usage:
        """What was used so far."""
        with self._lock:
            return self._used

    def admit(self) -> None:
        """Count one request.

        Raises:
            RefusedError: a budget is used up.
        """
        with self._lock:
            limits = (
                ("tokens", self._used.tokens, self._budget.tokens),
                ("cost", self._used.cost, self._budget.cost),
                ("requests", self._used.requests, self._budget.requests),
            )
            for name, used, limit in limits:
                if limit is not None and used >= limit:
                    raise RefusedError(
                        Refusal.BUDGET,
                        f"the budget of this attempt is used up: {name} {used:,.10g} of "
                        f"{limit:,.10g}; no further request will be answered",
                    )
            self._used += Usage(requests=1)

    def settle(self, usage: Usage, model: str) -> Usage:
        """Add what a request came to; return it with its cost."""
        with self._lock:
            priced = replace(usage, cost=cost_of(usage, self._prices.get(model)))
            self._used += priced
        return replace(priced, requests=1)
