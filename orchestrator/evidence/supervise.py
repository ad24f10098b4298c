"""Run one container to its end under a deadline, and say what was seen of the ending.

The loop stops for one of ``StopReason``: the container ended, the phase has seen enough
(``on_tick``), or it must be ended (``_must_end``): the deadline passed, a person asked, the host
failed it, a folder outgrew its size, or a supervisor before us had begun to. Exit facts are kept
apart and none is inferred from another; see ``domain.outcome`` for what is made of them.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Self

from orchestrator.domain.container import ContainerEnd
from orchestrator.domain.outcome import (
    ExitFacts,
    HostFact,
    KilledBy,
    Sign,
    StopReason,
    host_facts_of,
)
from orchestrator.domain.roles import Phase
from orchestrator.errors import (
    ContainerLeftRunning,
    ContainerLostError,
    EngineUnavailableError,
    InterruptedByOperator,
)
from orchestrator.evidence.capped_log import CappedLog
from orchestrator.evidence.host_signs import host_oom_kills
from orchestrator.evidence.kills import KillLedger
from orchestrator.evidence.observer import Observer
from orchestrator.ports import Clock, Container, MemoryUse
from orchestrator.sandbox import RUN_LABEL

TICK = 0.05
_SAMPLE_EVERY_NS = 250_000_000
_MEASURE_EVERY_NS = 1_000_000_000
_UNSEEN_NS = 60_000_000_000
"""A supervisor that looks no more often than this, stopped or starved, says so."""
_MEASURE_SHARE = 20
"""Looking through watched folders may take one part in so many of the time."""
_LAST_WAIT = 30.0
_KILL_AGAIN = 1.0
_UNREAD = MemoryUse(peak=None, limit_reached=None)
_CLOCK_STEP_NS = 2_000_000_000
_NS = 1_000_000_000


class StopRequest:
    """What the operator has asked for with Ctrl-C: once to stop cleanly, twice to leave at once."""

    def __init__(self) -> None:
        self._count = 0
        self._asked_at: int | None = None
        self.event = threading.Event()

    def ask(self) -> int:
        """Note one more request; return how many there were."""
        self._count += 1
        self.event.set()
        return self._count

    @property
    def asked(self) -> bool:
        """True after the first request."""
        return self._count > 0

    @property
    def leave(self) -> bool:
        """True after the second: leave the container for adoption."""
        return self._count > 1

    def check(self, before: str) -> None:
        """Start nothing more once a stop was asked for.

        Args:
            before: what would come next, for the message.

        Raises:
            InterruptedByOperator: it was.
        """
        if self.asked:
            raise InterruptedByOperator(f"stopped before {before}")


@dataclass(frozen=True, slots=True)
class Ending:
    """How a supervised container ended."""

    facts: ExitFacts
    host_facts: frozenset[HostFact]
    contested: frozenset[Sign]
    started: str
    ended: str

    @classmethod
    def unseen(cls, reason: StopReason, started: str, now: str) -> Self:
        """Describe the end of a container whose supervisor was gone by then."""
        facts = ExitFacts(
            exit_code=None, oom_killed=False, killed_by=KilledBy.ORCHESTRATOR, stop_reason=reason
        )
        return cls(facts, frozenset(), frozenset({Sign.OBSERVATION_GAP}), started, now)

    def as_data(self) -> dict[str, Any]:
        """Put it into the form that a journal keeps."""
        return {
            "exit": asdict(self.facts),
            "host_facts": sorted(fact.value for fact in self.host_facts),
            "contested": sorted(sign.value for sign in self.contested),
            "started": self.started,
            "ended": self.ended,
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """Read back what ``as_data`` gave."""
        facts = dict(data["exit"])
        facts["killed_by"] = KilledBy(facts["killed_by"])
        facts["stop_reason"] = StopReason(facts["stop_reason"])
        return cls(
            facts=ExitFacts(**facts),
            host_facts=frozenset(map(HostFact, data["host_facts"])),
            contested=frozenset(map(Sign, data["contested"])),
            started=data["started"],
            ended=data["ended"],
        )


@dataclass(frozen=True, slots=True)
class Beat:
    """Where a running container stands, in seconds and bytes; for a person to look at."""

    phase: Phase
    spent: float
    left: float
    memory: int | None


@dataclass(slots=True)
class Watch:
    """One container under supervision. ``deadline_ns`` counts on CLOCK_BOOTTIME."""

    phase: Phase
    container: Container
    clock: Clock
    deadline_ns: int
    stop: StopRequest
    log: CappedLog
    on_beat: Callable[[Beat], None]
    kills: KillLedger = field(default_factory=KillLedger)
    interrupt_grace: float = 3.0
    outgrown: Callable[[], bool] = lambda: False
    """Asked about once a second: whether a folder holds more than its size."""
    observer: Observer | None = None
    """Looks at the container as it runs, in a thread of its own; None where nobody does."""
    on_broken: Callable[[str, str], None] = lambda _uuid, _reason: None
    """Told of each GPU that was found broken, and why."""
    _measure_ns: int = 0
    _memory: MemoryUse = _UNREAD
    _started_ns: int = 0
    _started_wall_ns: int = 0
    _started_utc: str = ""
    _oom_count: int | None = None
    _sampled_ns: int = 0
    _asked_ns: int | None = None
    _signs: set[Sign] = field(default_factory=set)
    _failed: set[HostFact] = field(default_factory=set)

    def note(self, sign: Sign) -> None:
        """Mark the ending contested."""
        self._signs.add(sign)

    def fail(self, fact: HostFact) -> None:
        """Have the run end as the machine's doing, for what the host has seen elsewhere."""
        self._failed.add(fact)

    def begin(self) -> None:
        """Note the start; call right before the container is started."""
        self._started_ns = self.clock.boottime_ns()
        self._started_wall_ns = self.clock.wall_ns()
        self._started_utc = self.clock.utc().isoformat()
        self._oom_count = host_oom_kills()

    def resume(self, started: datetime, started_ns: int) -> None:
        """Take over a container that another supervisor started; what it saw in between is lost.

        Args:
            started: when, by the wall clock.
            started_ns: when, on CLOCK_BOOTTIME of this boot.
        """
        self._started_ns = started_ns
        self._started_wall_ns = int(started.timestamp() * _NS)
        self._started_utc = started.isoformat()
        self.note(Sign.OBSERVATION_GAP)
        if self.observer is not None:
            self.observer.resume(started_ns)

    def run(self, on_tick: Callable[[], bool] = lambda: False) -> Ending:
        """Wait until the container has ended or must end; end it and return what was seen.

        ``on_tick`` is called several times a second; True means the phase is done with it.

        Raises:
            ContainerLeftRunning: the operator asked twice.
        """
        try:
            reason, end, lost = self._wait(on_tick)
            if self.kills.begun is not None:  # a supervisor before us was about to end it
                reason = self.kills.begun.reason
            if end is None and not lost:
                self._read_memory()
                end, lost = self._kill(reason)
        except ContainerLeftRunning:
            self._look_no_more()
            raise
        except BaseException:
            self._look_no_more()
            failed = {HostFact.ORCHESTRATOR_FAILED}
            self.kills.kill(self.container, StopReason.HOST_FACT, failed)
            self.container.wait(_LAST_WAIT)
            raise
        self._read_memory()
        return self.ending(reason, end, lost=lost)

    def _wait(self, on_tick: Callable[[], bool]) -> tuple[StopReason, ContainerEnd | None, bool]:
        while True:
            try:
                end = self.container.wait(TICK)
            except ContainerLostError:
                return StopReason.EXITED, None, True
            self._notice_a_gap()
            if end is not None:
                return StopReason.EXITED, end, False
            if on_tick():
                return StopReason.SUBMITTED, None, False
            if self.stop.leave:
                raise self._left("running")
            reason = self._must_end()
            if reason is not None:
                return reason, None, False
            self._sample()

    def _notice_a_gap(self) -> None:
        if 0 < self._sampled_ns < self.clock.boottime_ns() - _UNSEEN_NS:
            self.note(Sign.OBSERVATION_GAP)

    def _must_end(self) -> StopReason | None:
        self._notice_a_gap()
        if self.kills.begun is not None:
            return self.kills.begun.reason
        if self._interrupt_is_due():
            return StopReason.OPERATOR
        now = self.clock.boottime_ns()
        if now >= self.deadline_ns:
            return StopReason.DEADLINE
        spoiled = self.observer is not None and self.observer.spoiled(now)
        if self.log.error is not None or spoiled or self._failed:
            return StopReason.HOST_FACT
        return StopReason.DISK_LIMIT if self._is_outgrown() else None

    def _interrupt_is_due(self) -> bool:
        """A first Ctrl-C counts once the operator has had time for the second."""
        if not self.stop.asked:
            return False
        now = self.clock.boottime_ns()
        if self._asked_ns is None:
            self._asked_ns = now
        return now - self._asked_ns >= self.interrupt_grace * _NS

    def _is_outgrown(self) -> bool:
        """Look through the watched folders, seldom enough that looking stays cheap."""
        began = self.clock.boottime_ns()
        if began < self._measure_ns:
            return False
        found = self.outgrown()
        ended = self.clock.boottime_ns()
        self._measure_ns = ended + max(_MEASURE_EVERY_NS, _MEASURE_SHARE * (ended - began))
        return found

    def settle(self) -> None:
        """Kill the container and wait until it is down: the exploration is over."""
        self._kill(StopReason.SUBMITTED)

    def _kill(self, reason: StopReason) -> tuple[ContainerEnd | None, bool]:
        """End the container, however long the engine is away: nobody else would."""
        while True:
            try:
                with suppress(EngineUnavailableError):
                    self.kills.kill(self.container, reason, self._facts())
                end = self.container.wait(_KILL_AGAIN)
            except ContainerLostError:
                return None, True
            if end is not None:
                return end, False
            if self.stop.leave:
                raise self._left("being killed")

    def _left(self, how: str) -> ContainerLeftRunning:
        run = self.container.labels.get(RUN_LABEL, "")[:8]
        return ContainerLeftRunning(
            f"left container {self.container.name} {how}",
            remedy=f"orch lifecycle {run} tells how it gets on",
        )

    def _facts(self) -> set[HostFact]:
        """Say what the host has seen while the container ran."""
        facts = set() if self.kills.begun is None else set(self.kills.begun.facts)
        facts |= self._observed() | self._failed
        if self.log.error is not None:
            facts.add(HostFact.HOST_DISK_FULL)
        return facts

    def _observed(self) -> frozenset[HostFact]:
        return frozenset() if self.observer is None else self.observer.host_facts

    def _look_no_more(self) -> None:
        if self.observer is not None:
            self.observer.leave()

    def _look_a_last_time(self) -> None:
        """See whether what the run stood on is still there: it may have died of that."""
        if self.observer is None:
            return
        found = self.observer.finish()
        self._signs |= found.signs
        for uuid, reason in found.unusable:
            self.on_broken(uuid, reason)

    def _read_memory(self) -> None:
        """Keep the latest counters; whether the engine is away is for ``wait`` to see."""
        try:
            fresh = self.container.memory()
        except (EngineUnavailableError, ContainerLostError):
            # A zero that was read earlier does not say that it stayed one.
            fresh = MemoryUse(self._memory.peak, self._memory.limit_reached or None)
        if fresh.peak is not None:
            self._memory = fresh

    def _sample(self) -> None:
        now = self.clock.boottime_ns()
        if self.observer is not None:
            self.observer.tick(now)
        if now - self._sampled_ns >= _SAMPLE_EVERY_NS:
            self._sampled_ns = now
            self._read_memory()
            self.on_beat(
                Beat(
                    phase=self.phase,
                    spent=(now - self._started_ns) / _NS,
                    left=(self.deadline_ns - now) / _NS,
                    memory=self._memory.peak,
                )
            )

    def ending(self, reason: StopReason, end: ContainerEnd | None, *, lost: bool) -> Ending:
        """Put together what is known of the end; a last look takes none of the run's time."""
        duration_ns = self.clock.boottime_ns() - self._started_ns
        wall_ns = self.clock.wall_ns() - self._started_wall_ns
        ended = self.clock.utc().isoformat()
        self._look_a_last_time()
        state = None if end is None else end.state
        reached = self._memory.limit_reached
        facts = ExitFacts(
            exit_code=None if state is None else state.exit_code,
            oom_killed=state is not None and state.oom_killed,
            killed_by=self.kills.killer(end),
            stop_reason=reason,
            started_at="" if state is None else state.started_at,
            finished_at="" if state is None else state.finished_at,
            duration_s=round(duration_ns / _NS, 3),
            memory_peak=self._memory.peak,
            memory_limit_reached=None if reached is None else reached > 0,
        )
        host = set(
            host_facts_of(
                facts,
                container_known=not lost,
                witnessed=end is not None and end.witnessed,
                engine_restarted=end is not None and end.engine_restarted,
            )
        )
        host |= self._facts()
        contested = set(self._signs)
        if abs(wall_ns - duration_ns) > _CLOCK_STEP_NS:
            contested.add(Sign.CLOCK_STEP)
        ooms = host_oom_kills()
        if not facts.oom_killed and None not in {ooms, self._oom_count} and ooms != self._oom_count:
            contested.add(Sign.HOST_OOM_COUNT)
        return Ending(
            facts=facts,
            host_facts=frozenset(host),
            contested=frozenset(contested),
            started=self._started_utc,
            ended=ended,
        )
