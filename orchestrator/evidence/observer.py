"""When to look at a container: in a thread of its own, on the word of the watch over it.

A driver that hangs or a host that is slow never keeps a deadline waiting: the watch says when to
look, and waits for the last look alone, and for that not long. Nor does looking ever cost a run:
what it fails with is logged, and the run is marked as not seen throughout.
"""

import logging
import threading
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Self

from orchestrator.domain.gate import PermittedHolder
from orchestrator.domain.outcome import HostFact, Sign
from orchestrator.domain.roles import Phase
from orchestrator.domain.task import TaskSpec
from orchestrator.errors import StorageFullError
from orchestrator.ports import Clock, Container, DeviceProbe, ProcessTable
from orchestrator.storage.layout import NumberedFolder
from orchestrator.storage.ledger import Reservation

if TYPE_CHECKING:
    from orchestrator.evidence.telemetry import Look

LAST_LOOK = 15.0
"""Seconds that the last look, with the container ended, may take."""
_NS = 1_000_000_000
_FIRST_NS = _NS // 4
"""A young container is looked at after so long, then after twice as long, up to the rate."""
_BETWEEN_NS = _NS // 10
_SHARE = 20
"""Looking for processes that come and go may take one part in so many of the time."""
_LOST_NS = 10 * _NS
_LOG = logging.getLogger("orch")


@dataclass(frozen=True, slots=True)
class Subject:
    """Which container is looked at, how often, and where what is seen goes.

    Attributes:
        every: seconds from look to look.
        tolerance: seconds for which somebody else may be on a GPU of the run.
        gpus: the UUIDs of the run's devices.
        watchful: whether processes are looked for as soon as others are there than before, so that
            what an agent ran, and what it left running, is known.
        commands: whether command lines may be kept: those of an evaluator may hold its data.
        permitted: who else may be on a GPU of the run.
    """

    phase: Phase
    path: Path
    every: float
    tolerance: float
    gpus: tuple[str, ...] = ()
    watchful: bool = False
    commands: bool = True
    permitted: tuple[PermittedHolder, ...] = ()

    @classmethod
    def of(
        cls,
        phase: Phase,
        folder: NumberedFolder,
        task: TaskSpec,
        held: Reservation | None = None,
    ) -> Self:
        """Look at a phase's container by the task's own rules, and at the GPUs that it has."""
        return cls(
            phase=phase,
            path=folder.telemetry,
            every=task.telemetry.every,
            tolerance=task.gate.foreign_tolerance,
            gpus=() if held is None else held.gpus[: task.resources(phase).gpus],
            watchful=phase is Phase.EXPLORE,
            commands=phase is not Phase.SCORE,
        )


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found against the host, and the devices that nobody is to use from now on."""

    host_facts: frozenset[HostFact] = frozenset()
    signs: frozenset[Sign] = frozenset()
    unusable: tuple[tuple[str, str], ...] = ()


class Wish(StrEnum):
    """What is to be looked at."""

    ALL = "all"
    PROCESSES = "processes"
    LAST = "last"


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
        self._subject = subject
        self._container = container
        self._clock = clock
        self._processes = processes
        self._devices = devices
        self._resumed_ns: int | None = None
        self._look: Look | None = None
        self._closed = threading.Event()
        self._changed = threading.Condition()
        self._worker: threading.Thread | None = None
        self._wanted: Wish | None = None
        self._busy = False
        self._over = False
        self._failed: Findings | None = None
        self._wait_ns = _FIRST_NS
        self._due_ns = 0
        self._spoiled_ns: int | None = None
        self._not_before_ns = 0

    def resume(self, started_ns: int) -> None:
        """Say that the container was started by another supervisor, at ``started_ns``."""
        self._resumed_ns = started_ns

    def tick(self, now_ns: int) -> None:
        """Have a look taken when one is due; never waits."""
        if now_ns >= self._due_ns and self._ask(Wish.ALL):
            self._due_ns = now_ns + self._wait_ns
            thinned = 0.0 if self._look is None else self._look.every
            rate_ns = int(max(self._subject.every, thinned) * _NS)
            self._wait_ns = min(2 * self._wait_ns, rate_ns)
        elif self._subject.watchful and now_ns >= self._not_before_ns:
            self._ask(Wish.PROCESSES)

    @property
    def host_facts(self) -> frozenset[HostFact]:
        """What was found by now that is the host's doing."""
        return self._findings.host_facts

    def spoiled(self, now_ns: int) -> bool:
        """Tell whether the run must be ended for what was found.

        One whose GPU is lost gets a moment to die of that by itself: how it does is worth knowing.
        """
        facts = self.host_facts
        if not facts:
            return False
        if self._spoiled_ns is None:
            self._spoiled_ns = now_ns
        grace_ns = _LOST_NS if facts == {HostFact.DEVICE_LOST} else 0
        return now_ns - self._spoiled_ns >= grace_ns

    def finish(self) -> Findings:
        """Take the last look, with the container ended, and say what was found in all.

        A look that is not done after ``LAST_LOOK`` seconds is missing, and said to be.
        """
        with self._changed:
            if not self._over:
                self._over = True
                self._hand_over(Wish.LAST)
            done = self._changed.wait_for(self._is_idle, LAST_LOOK)
            self._wanted = None
        self._close()
        found = self._findings
        return found if done else replace(found, signs=found.signs | {Sign.OBSERVATION_GAP})

    def leave(self) -> None:
        """Look no more: the container goes on, or its end is nobody's to tell."""
        with self._changed:
            self._over = True
            self._wanted = None
            self._changed.notify_all()
        self._close()

    def settle(self, timeout: float = LAST_LOOK) -> bool:
        """Wait until no look is under way; False when one still is after ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(self._is_idle, timeout)

    def _close(self) -> None:
        """Let nothing more be written, also by a look that hangs."""
        self._closed.set()
        if self._look is not None:
            self._look.close()

    @property
    def _findings(self) -> Findings:
        found = Findings() if self._look is None else self._look.findings
        failed = self._failed
        if failed is None:
            return found
        return replace(
            found,
            host_facts=found.host_facts | failed.host_facts,
            signs=found.signs | failed.signs,
        )

    def _is_idle(self) -> bool:
        return self._failed is not None or (self._wanted is None and not self._busy)

    def _ask(self, wish: Wish) -> bool:
        """Hand a wish to the thread, unless it still has one."""
        with self._changed:
            if self._over or self._failed is not None or not self._is_idle():
                return False
            self._hand_over(wish)
            return True

    def _hand_over(self, wish: Wish) -> None:
        self._wanted = wish
        if self._worker is None:
            self._worker = threading.Thread(target=self._work, name="telemetry", daemon=True)
            self._worker.start()
        self._changed.notify_all()

    def _work(self) -> None:
        """The thread: one look after the other, until one fails or the container is gone."""
        while (wish := self._next()) is not None:
            failed = None
            try:
                self._take(wish)
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

    def _next(self) -> Wish | None:
        with self._changed:
            self._changed.wait_for(lambda: self._wanted is not None or self._over)
            wish, self._wanted = self._wanted, None
            self._busy = wish is not None
            return wish

    def _take(self, wish: Wish) -> None:
        """Take one look. What it takes is loaded here, while the watch waits for the container."""
        from orchestrator.evidence.telemetry import Look  # noqa: PLC0415

        if self._look is None:
            self._look = Look(
                self._subject,
                self._container,
                self._clock,
                self._processes,
                self._devices,
                self._closed,
                self._resumed_ns,
            )
        match wish:
            case Wish.ALL:
                self._look.periodic()
            case Wish.PROCESSES:
                began_ns = self._clock.boottime_ns()
                self._look.processes()
                ended_ns = self._clock.boottime_ns()
                self._not_before_ns = ended_ns + max(_BETWEEN_NS, _SHARE * (ended_ns - began_ns))
            case Wish.LAST:
                self._look.last()
