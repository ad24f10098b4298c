"""For how long a provider was away, as the host's own probe saw it.

An agent composes its requests, so that one of them fails says nothing: a request that fails only
makes the host look for itself. The time from that failure to the next answer counts as outage once
a probe has failed in it.
"""

import threading

from orchestrator.ports import Clock

_NS = 1_000_000_000


class Outage:
    """Adds up outages; read from other threads."""

    def __init__(self, clock: Clock, limit: float) -> None:
        self._clock = clock
        self._limit = limit
        self._lock = threading.Lock()
        self._since_ns: int | None = None
        self._why = ""
        self._past_ns = 0

    @property
    def suspected(self) -> bool:
        """Whether a request failed and nothing was answered since."""
        with self._lock:
            return self._since_ns is not None

    def suspect(self) -> None:
        """A request failed in a way that the provider's absence would explain."""
        with self._lock:
            if self._since_ns is None:
                self._since_ns = self._clock.boottime_ns()

    def prove(self, why: str) -> None:
        """The host's own probe failed as well."""
        with self._lock:
            self._why = why

    def over(self) -> None:
        """The provider answered."""
        with self._lock:
            self._past_ns += self._running_ns()
            self._since_ns, self._why = None, ""

    def seconds(self) -> float:
        """Proven outage so far."""
        with self._lock:
            return (self._past_ns + self._running_ns()) / _NS

    def failed(self) -> str | None:
        """Say that it was away for longer than the task allows; None while it was not."""
        away = self.seconds()
        with self._lock:
            if not self._why or away <= self._limit:
                return None
            return (
                f"the provider was away for {away:.0f} s, more than max_outage "
                f"({self._limit:.0f} s); the host's own probe: {self._why}"
            )

    def _running_ns(self) -> int:
        if self._since_ns is None or not self._why:
            return 0
        return self._clock.boottime_ns() - self._since_ns
