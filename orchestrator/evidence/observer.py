"""When to look at a container: in a thread of its own, on the word of the watch over it.

A driver that hangs or a host that is slow never keeps a deadline waiting: the watch says when to
look, and waits for the last look alone, and for that not long. Nor does looking ever cost a run:
what it fails with is logged, and the run is marked as not seen throughout.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from orchestrator.domain.outcome import HostFact, Sign
from orchestrator.errors import StorageFullError
from orchestrator.evidence.telemetry import Findings, Look, Subject
from orchestrator.ports import Clock, Container, DeviceProbe, ProcessTable

LAST_LOOK = 15.0
"""Seconds that the last look, with the container ended, may take."""
_NS = 1_000_000_000
_FIRST_NS = _NS // 4
"""A young container is looked at after so long, then after twice as long, up to the rate."""
_BETWEEN_NS = _NS // 5
_LOG = logging.getLogger("orch")


class Observer:
    """Has one container looked at for as long as it runs; owned by the watch over it."""

    def __init__(
        self,
        subject: Subject,
        container: Container,
        clock: Clock,
        processes: ProcessTable,
        devices: DeviceProbe,
    ) -> None:
        self._look = Look(subject, container, clock, processes, devices)
        self._clock = clock
        self._every = subject.every
        self._changed = threading.Condition()
        self._worker: threading.Thread | None = None
        self._wanted: Callable[[], None] | None = None
        self._busy = False
        self._over = False
        self._failed: Findings | None = None
        self._wait_ns = _FIRST_NS
        self._due_ns = 0
        self._not_before_ns = 0

    def resume(self, started_ns: int) -> None:
        """Say that the container was started by another supervisor, at ``started_ns``."""
        self._look.resumed_ns = started_ns

    def tick(self, now_ns: int) -> None:
        """Have a look taken when one is due; never waits."""
        if now_ns >= self._due_ns and self._ask(self._look.periodic):
            self._due_ns = now_ns + self._wait_ns
            rate = int(max(self._every, self._look.every) * _NS)
            self._wait_ns = min(2 * self._wait_ns, rate)

    def nudge(self) -> None:
        """Have the processes looked at, now that some have begun or ended; any thread may."""
        now_ns = self._clock.boottime_ns()
        if now_ns >= self._not_before_ns and self._ask(self._look.processes):
            self._not_before_ns = now_ns + _BETWEEN_NS

    @property
    def host_facts(self) -> frozenset[HostFact]:
        """What was found by now that is the host's doing: the run must end for any of it."""
        return self._findings.host_facts

    def finish(self, timeout: float = LAST_LOOK) -> Findings:
        """Take the last look, with the container ended, and say what was found in all.

        A look that is not done after ``timeout`` seconds is missing, and said to be.
        """
        with self._changed:
            if not self._over:
                self._over = True
                self._hand_over(self._look.last)
            done = self._changed.wait_for(self._is_idle, timeout)
        self._look.close()
        found = self._findings
        return found if done else replace(found, signs=found.signs | {Sign.OBSERVATION_GAP})

    def leave(self) -> None:
        """Look no more: the container goes on, or its end is nobody's to tell."""
        with self._changed:
            self._over = True
            self._wanted = None
            self._changed.notify_all()
        self._look.close()

    def settle(self, timeout: float = LAST_LOOK) -> bool:
        """Wait until no look is under way; False when one still is after ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(self._is_idle, timeout)

    @property
    def _findings(self) -> Findings:
        found, failed = self._look.findings, self._failed
        if failed is None:
            return found
        return replace(
            found,
            host_facts=found.host_facts | failed.host_facts,
            signs=found.signs | failed.signs,
        )

    def _is_idle(self) -> bool:
        return self._failed is not None or (self._wanted is None and not self._busy)

    def _ask(self, look: Callable[[], None]) -> bool:
        """Hand a look to the thread, unless it still has one."""
        with self._changed:
            if self._over or not self._is_idle():
                return False
            self._hand_over(look)
            return True

    def _hand_over(self, look: Callable[[], None]) -> None:
        self._wanted = look
        if self._worker is None:
            self._worker = threading.Thread(target=self._work, name="telemetry", daemon=True)
            self._worker.start()
        self._changed.notify_all()

    def _work(self) -> None:
        """The thread: one look after the other, until one fails or the container is gone."""
        while (look := self._next()) is not None:
            failed = None
            try:
                look()
            except StorageFullError as full:
                _LOG.error("telemetry: %s", full)
                failed = Findings(host_facts=frozenset({HostFact.HOST_DISK_FULL}))
            except Exception:  # noqa: BLE001 - not swallowed: logged, and the run is marked
                _LOG.exception("telemetry failed; the run goes on without")
                failed = Findings(signs=frozenset({Sign.OBSERVATION_GAP}))
            with self._changed:
                self._busy, self._failed = False, failed
                self._changed.notify_all()
            if failed is not None:
                return

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._wanted is not None or self._over)
            look, self._wanted = self._wanted, None
            self._busy = look is not None
            return look
