"""Run one container to its end under a deadline, and say what was seen of the ending.

The loop knows four ways to stop: the container ended, the deadline passed, the operator asked, or
the phase itself has seen enough (``on_tick``). Exit facts are kept apart and none is inferred from
another; see ``domain.outcome`` for what is made of them.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from io import FileIO
from pathlib import Path
from typing import Any

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
from orchestrator.errors import ContainerLostError, InterruptedByOperator
from orchestrator.ports import Clock, Container, MemoryUse

TICK = 0.05
_SAMPLE_EVERY_NS = 250_000_000
_LAST_WAIT = 30.0
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


class CappedLog:
    """A sink that keeps the head and the tail of a container's output, within a byte budget.

    The first ``cap`` bytes of each stream go to its file as they come; of the rest the last
    ``tail`` bytes are kept and written at ``close`` behind a line that says how much is missing.
    A write that fails is remembered in ``error`` and the stream is dropped from there on, so that
    the container is never held up by our disk.
    """

    def __init__(
        self, folder: Path, *, cap: int = 8 * 1024**2, tail: int = 1024**2, mode: int = 0o644
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._cap, self._tail = cap, tail
        self._lock = threading.Lock()
        self._files = {
            stream: self._open(folder / f"{stream}.log", mode) for stream in ("stdout", "stderr")
        }
        self._written = dict.fromkeys(self._files, 0)
        self._kept = {stream: bytearray() for stream in self._files}
        self.seen = dict.fromkeys(self._files, 0)
        self.error: OSError | None = None

    @staticmethod
    def _open(path: Path, mode: int) -> FileIO:
        return FileIO(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, mode), "a"
        )

    def write(self, stream: str, data: bytes) -> None:
        """Take output; bounded in disk and memory whatever comes."""
        with self._lock:
            self.seen[stream] += len(data)
            if self.error is not None:
                return
            head = data[: max(0, self._cap - self._written[stream])]
            try:
                if head:
                    self._files[stream].write(head)
            except OSError as failure:
                self.error = failure
                return
            self._written[stream] += len(head)
            rest = data[len(head) :]
            if rest:
                kept = self._kept[stream]
                kept += rest[-self._tail :]
                del kept[: max(0, len(kept) - self._tail)]

    def close(self) -> None:
        """Write the kept tails and close the files."""
        with self._lock:
            for stream, file in self._files.items():
                kept = self._kept[stream]
                missing = self.seen[stream] - self._written[stream] - len(kept)
                try:
                    if missing > 0:
                        file.write(f"\n[orch: {missing} bytes left out]\n".encode())
                    if kept:
                        file.write(kept)
                except OSError as failure:
                    self.error = failure
                file.close()


@dataclass(slots=True)
class KillLedger:
    """Every signal we have sent to one container."""

    sent: list[str] = field(default_factory=list)

    def kill(self, container: Container, signal: str = "KILL") -> None:
        """Note the signal, then send it."""
        self.sent.append(signal)
        container.kill(signal)

    def killer(self, end: ContainerEnd | None) -> KilledBy:
        """Tell who sent a deadly signal, from what the engine saw and what we sent."""
        seen = [] if end is None else list(end.signals)
        for signal in self.sent:
            if signal in seen:
                seen.remove(signal)
        if self.sent:
            return KilledBy.ORCHESTRATOR
        return KilledBy.THIRD_PARTY if seen else KilledBy.NOBODY


@dataclass(frozen=True, slots=True)
class Ending:
    """How a supervised container ended."""

    facts: ExitFacts
    host_facts: frozenset[HostFact]
    contested: frozenset[Sign]
    started: str
    ended: str

    def as_data(self) -> dict[str, Any]:
        """Put it into the form that a journal keeps."""
        return {
            "exit": asdict(self.facts),
            "host_facts": sorted(fact.value for fact in self.host_facts),
            "contested": sorted(sign.value for sign in self.contested),
            "started": self.started,
            "ended": self.ended,
        }


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
    _memory: MemoryUse = _UNREAD
    _started_ns: int = 0
    _started_wall_ns: int = 0
    _started_utc: str = ""
    _oom_count: int | None = None
    _sampled_ns: int = 0
    _asked_ns: int | None = None
    _signs: set[Sign] = field(default_factory=set)

    def note(self, sign: Sign) -> None:
        """Mark the ending contested."""
        self._signs.add(sign)

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

    def run(self, on_tick: Callable[[], bool] = lambda: False) -> Ending:
        """Wait until the container has ended or must end; end it and return what was seen.

        ``on_tick`` is called several times a second; True means the phase is done with it.

        Raises:
            InterruptedByOperator: the operator asked twice; the container is left running.
        """
        try:
            reason, end, lost = self._wait(on_tick)
            if end is None and not lost:
                self._sample(force=True)
                self.kills.kill(self.container)
                end, lost = self._await_end()
        except BaseException:
            if not self.stop.leave:
                self.kills.kill(self.container)
                self.container.wait(_LAST_WAIT)
            raise
        return self.ending(reason, end, lost=lost)

    def _wait(self, on_tick: Callable[[], bool]) -> tuple[StopReason, ContainerEnd | None, bool]:
        while True:
            try:
                end = self.container.wait(TICK)
            except ContainerLostError:
                return StopReason.EXITED, None, True
            if end is not None:
                return StopReason.EXITED, end, False
            if on_tick():
                return StopReason.SUBMITTED, None, False
            if self.stop.leave:
                raise InterruptedByOperator(
                    f"left container {self.container.name} running",
                    remedy="orch status shows it; the next writing command deals with it",
                )
            if self._interrupt_is_due():
                return StopReason.OPERATOR, None, False
            if self.clock.boottime_ns() >= self.deadline_ns:
                return StopReason.DEADLINE, None, False
            if self.log.error is not None:
                return StopReason.HOST_FACT, None, False
            self._sample()

    def _interrupt_is_due(self) -> bool:
        """A first Ctrl-C counts once the operator has had time for the second."""
        if not self.stop.asked:
            return False
        now = self.clock.boottime_ns()
        if self._asked_ns is None:
            self._asked_ns = now
        return now - self._asked_ns >= self.interrupt_grace * _NS

    def settle(self) -> None:
        """Wait until a container that we have killed is down."""
        self._await_end()

    def _await_end(self) -> tuple[ContainerEnd | None, bool]:
        """Wait for the end we asked for; an engine that is away is waited for."""
        while True:
            try:
                end = self.container.wait(1.0)
            except ContainerLostError:
                return None, True
            if end is not None:
                return end, False
            if self.stop.leave:
                raise InterruptedByOperator(f"left container {self.container.name} being killed")

    def _sample(self, *, force: bool = False) -> None:
        now = self.clock.boottime_ns()
        if force or now - self._sampled_ns >= _SAMPLE_EVERY_NS:
            self._sampled_ns = now
            fresh = self.container.memory()
            if fresh.peak is not None:
                self._memory = fresh
            self.on_beat(
                Beat(
                    phase=self.phase,
                    spent=(now - self._started_ns) / _NS,
                    left=(self.deadline_ns - now) / _NS,
                    memory=self._memory.peak,
                )
            )

    def ending(self, reason: StopReason, end: ContainerEnd | None, *, lost: bool) -> Ending:
        """Put together what is known of the end."""
        duration_ns = self.clock.boottime_ns() - self._started_ns
        wall_ns = self.clock.wall_ns() - self._started_wall_ns
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
            # A counter still at zero was read before the end: it proves nothing about it.
            memory_limit_reached=True if reached else None,
        )
        host = set(
            host_facts_of(
                facts,
                container_known=not lost,
                witnessed=end is not None and end.witnessed,
                engine_restarted=end is not None and end.engine_restarted,
            )
        )
        if self.log.error is not None:
            host.add(HostFact.HOST_DISK_FULL)
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
            ended=self.clock.utc().isoformat(),
        )


def host_oom_kills(vmstat: Path = Path("/proc/vmstat")) -> int | None:
    """Read how many processes the kernel's OOM killer has ended since boot; None if unreadable."""
    try:
        rows = vmstat.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = (row.split()[1] for row in rows if row.startswith("oom_kill "))
    value = next(found, None)
    return None if value is None else int(value)
