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
        self._past = Usage()
        self._open: dict[int, Usage] = {}

    @property
    def used(self) -> Usage:
        """What was used so far."""
        with self._lock:
            return self._sum()

    def admit(self, number: int) -> None:
        """Count request ``number``.

        Raises:
            RefusedError: a budget is used up.
        """
        with self._lock:
            so_far = self._sum()
            limits = (
                ("tokens", so_far.tokens, self._budget.tokens),
                ("cost", so_far.cost, self._budget.cost),
                ("requests", so_far.requests, self._budget.requests),
            )
            for name, used, limit in limits:
                if limit is not None and used >= limit:
                    raise RefusedError(
                        Refusal.BUDGET,
                        f"the budget of this attempt is used up: {name} {used:,.10g} of "
                        f"{limit:,.10g}; no further request will be answered",
                    )
            self._open[number] = Usage(requests=1)

    def charge(self, number: int, usage: Usage, model: str) -> Usage:
        """Say what request ``number`` has come to so far; return it with its cost."""
        priced = replace(usage, requests=1, cost=cost_of(usage, self._prices.get(model)))
        with self._lock:
            if number in self._open:
                self._open[number] = priced
        return priced

    def close(self, number: int) -> None:
        """Request ``number`` comes to no more."""
        with self._lock:
            self._past += self._open.pop(number, Usage())

    def _sum(self) -> Usage:
        return sum(self._open.values(), self._past)
