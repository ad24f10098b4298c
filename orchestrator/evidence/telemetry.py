"""What one look at a running container sees, and what of it counts against the host.

``evidence.observer`` says when to look.
"""

import threading
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.domain.outcome import HostFact, Sign
from orchestrator.domain.process import ProcessFacts
from orchestrator.domain.telemetry import (
    AnyRow,
    Begin,
    End,
    Gap,
    GapReason,
    Gpu,
    HostLoad,
    Processes,
    Sample,
    Use,
)
from orchestrator.errors import OrchError
from orchestrator.evidence.gpu_watch import GpuWatch, Ours, Stamp
from orchestrator.evidence.observer import Findings, Subject
from orchestrator.evidence.process_watch import ProcessWatch
from orchestrator.evidence.telemetry_log import TelemetryLog, foreign_total, listed_processes
from orchestrator.ports import Clock, Container, ContainerUse, DeviceProbe, ProcessTable
from orchestrator.storage.durable import storage_faults

_NS = 1_000_000_000
_LATE = 3
"""A look that comes so many times later than it should is a gap."""
_SHORT = 12
_SEALED = 0o600


@dataclass(slots=True)
class Look:
    """Looks at one container. One thread does; ``findings`` and ``every`` are for others to read.

    Attributes:
        closed: set once nothing more is to be written, whoever is still looking.
        resumed_ns: when another supervisor started the container; None when this one did.
        findings: what was found against the host so far.
        every: seconds from one periodic row to the next.
    """

    subject: Subject
    container: Container
    clock: Clock
    table: ProcessTable
    probe: DeviceProbe
    closed: threading.Event
    resumed_ns: int | None = None
    findings: Findings = field(default_factory=Findings)
    every: float = 0.0
    _log: TelemetryLog | None = None
    _processes: ProcessWatch | None = None
    _gpus: GpuWatch | None = None
    _use: ContainerUse = field(default_factory=ContainerUse)
    _pids: frozenset[int] = frozenset()
    _young: bool = False
    _looked: float | None = None
    _late: bool = False

    def periodic(self) -> None:
        """Look at everything."""
        stamp = self._stamp()
        self._note_gap(stamp)
        fresh = self.container.use()
        self._use = self._use if fresh.cpu_s is None and fresh.memory is None else fresh
        gpus = self._look_around(stamp)
        self._add(
            Sample(
                utc=stamp.utc,
                at=stamp.at,
                of=stamp.of,
                use=_use(self._use),
                host=host_load(),
                gpus=gpus,
            )
        )
        self._judge()

    def processes(self) -> None:
        """Look at the processes alone, if there are others than at the look before.

        One that has just been started may be about to run something else, and is seen twice.
        """
        stamp = self._stamp()
        if self._young or self.table.pids_of(self.container.id) != self._pids:
            self._look_at_processes(stamp)
        elif self._processes is not None:
            self._processes.still(stamp.at)

    def last(self) -> None:
        """Look once more at what is left with the container ended, and close the file."""
        stamp = self._stamp()
        gpus = self._look_around(stamp)
        self._add(
            End(
                utc=stamp.utc,
                at=stamp.at,
                of=stamp.of,
                use=_use(self._use),
                host=host_load(),
                gpus=gpus,
                dropped=self._dropped(),
            )
        )
        self.close()
        self._judge()

    def close(self) -> None:
        """Close the file for good."""
        self.closed.set()
        if self._log is not None:
            self._log.close()

    def _stamp(self) -> Stamp:
        """Say when this look is; the first one opens the file."""
        stamp = Stamp(
            utc=self.clock.utc().isoformat(timespec="milliseconds"),
            at=round(self.clock.boottime_ns() / _NS, 3),
            of=self.container.id[:_SHORT],
        )
        if self._log is None:
            self._begin(stamp)
        return stamp

    def _begin(self, stamp: Stamp) -> None:
        subject = self.subject
        mode = 0o644 if subject.commands else _SEALED
        with storage_faults(subject.path):
            self._log = log = TelemetryLog(subject.path, subject.every, mode=mode)
        if self.closed.is_set():
            log.close()
        self.every = log.every
        before, log.before = log.before, ()
        self._processes = ProcessWatch(listed_processes(before), commands=subject.commands)
        self._gpus = GpuWatch(
            subject.gpus,
            self.probe,
            self.table,
            subject.tolerance,
            self.closed,
            subject.permitted,
            foreign_total(before, stamp.of),
        )
        log.add(
            Begin(
                utc=stamp.utc,
                at=stamp.at,
                of=stamp.of,
                phase=subject.phase,
                container=self.container.id,
                boot_id=self.clock.boot_id(),
                every=subject.every,
                gpus=subject.gpus,
            )
        )
        if self.resumed_ns is not None:
            seen = (row.at for row in before if row.of == stamp.of)
            self._add_gap(stamp, max((self.resumed_ns / _NS, *seen)), GapReason.RESUMED)

    def _note_gap(self, stamp: Stamp) -> None:
        before, self._looked = self._looked, stamp.at
        if before is not None and stamp.at - before > _LATE * self.every:
            self._add_gap(stamp, before, GapReason.LATE)
            self._late = True

    def _add_gap(self, stamp: Stamp, since: float, why: GapReason) -> None:
        seconds = round(max(0.0, stamp.at - since), 3)
        self._add(Gap(utc=stamp.utc, at=stamp.at, of=stamp.of, seconds=seconds, why=why))

    def _look_around(self, stamp: Stamp) -> tuple[Gpu, ...]:
        """Look at the processes, and at whose those on the GPUs are."""
        ours = Ours(self.container.id, self._look_at_processes(stamp), self._listed_by_engine)
        if self._gpus is None or not self.subject.gpus:
            return ()
        gpus, news = self._gpus.look(ours, stamp)
        for row in news:
            self._add(row)
        return gpus

    def _look_at_processes(self, stamp: Stamp) -> tuple[ProcessFacts, ...]:
        found = self.table.of_container(self.container.id)
        self._pids = frozenset(process.pid for process in found)
        if self._processes is not None:
            changes = self._processes.look(found, stamp.at)
            self._young = bool(changes.started)
            if changes:
                self._add(
                    Processes(
                        utc=stamp.utc,
                        at=stamp.at,
                        of=stamp.of,
                        started=changes.started,
                        changed=changes.changed,
                        ended=changes.ended,
                        more=changes.more,
                    )
                )
        return found

    def _listed_by_engine(self) -> Collection[int]:
        """Ask the engine for the container's pids; one that does not answer proves nothing."""
        with suppress(OrchError):
            return {process.pid for process in self.container.processes()}
        return ()

    def _add(self, row: AnyRow) -> None:
        if self._log is not None:
            self._log.add(row)
            self.every = self._log.every

    def _dropped(self) -> dict[str, int]:
        """Count what found no room."""
        rows = {} if self._log is None else dict(self._log.dropped)
        more = 0 if self._processes is None else self._processes.more
        return {**rows, "process": more} if more else rows

    def _judge(self) -> None:
        """Put together what was found so far, for others to read."""
        gpus = self._gpus
        facts = set() if gpus is None else set(gpus.host_facts)
        signs = set() if gpus is None else set(gpus.signs)
        if self._log is not None and self._log.error is not None:
            facts.add(HostFact.HOST_DISK_FULL)
        if self._late and self.subject.gpus:
            signs.add(Sign.OBSERVATION_GAP)
        unusable = () if gpus is None else tuple(sorted(gpus.unusable.items()))
        self.findings = Findings(frozenset(facts), frozenset(signs), unusable)


def host_load(proc: Path = Path("/proc")) -> HostLoad:
    """Read how the host stands; ``proc`` is for tests."""
    load = _text(proc / "loadavg").split()
    memory = dict(line.split(":", 1) for line in _text(proc / "meminfo").splitlines())
    available = memory.get("MemAvailable", "").split()
    return HostLoad(
        load=float(load[0]) if load else None,
        memory_available=int(available[0]) * 1024 if available else None,
        cpu_pressure=_pressure(proc / "pressure/cpu"),
        memory_pressure=_pressure(proc / "pressure/memory"),
        io_pressure=_pressure(proc / "pressure/io"),
    )


def _pressure(file: Path) -> float | None:
    """Source: kernel documentation, accounting/psi."""
    words = _text(file).partition("\n")[0].split()
    found = (word.removeprefix("avg10=") for word in words if word.startswith("avg10="))
    value = next(found, None)
    return None if value is None else float(value)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii")
    except OSError:
        return ""


def _use(use: ContainerUse) -> Use:
    return Use(
        cpu_s=None if use.cpu_s is None else round(use.cpu_s, 3),
        memory=use.memory,
        memory_peak=use.memory_peak,
        pids=use.pids,
    )
