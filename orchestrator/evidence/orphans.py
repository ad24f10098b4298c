"""What an experiment left running beside a later one, found in the rows of an exploration.

An orphan is a process that outlived its parent: the kernel gives it another, inside a container its
first process. It counts where the agent began something else while it still ran: both then used
the same machine, and what was measured of the later one was measured beside it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from orchestrator.domain.telemetry import AnyRow, Processes, Started
from orchestrator.evidence.telemetry_log import read_telemetry
from orchestrator.lifecycle.machine import Event
from orchestrator.storage.journal import Journal

AUDIT = "orphan_overlap"
MOST = 20
"""So many are named at most, those that ran beside others for the longest."""

_Key = tuple[int, float]


@dataclass(frozen=True, slots=True)
class Orphan:
    """A process that went on beside a later one. Times are seconds on CLOCK_BOOTTIME.

    Attributes:
        orphaned: when its parent was first seen to be gone.
        overlap: for how many seconds at least the later one ran beside it.
        beside: the later one's command line.
        others: how many more later ones it ran beside.
        cpu_s: CPU seconds it had used when it was last seen, where that is known.
    """

    pid: int
    command: str
    started: float
    orphaned: float
    overlap: float
    beside: str
    beside_pid: int
    others: int
    cpu_s: float | None


@dataclass(slots=True)
class _Life:
    """What rows tell of one process.

    ``parent`` is the one that it outlived; None where that was gone before it was first seen.
    """

    entry: Started
    ppid: int
    last: float
    command: str
    orphaned: float | None = None
    parent: "_Life | None" = None
    cpu_s: float | None = None


@dataclass(slots=True)
class _Container:
    """The processes of one container, as its rows tell of them."""

    lives: dict[_Key, _Life] = field(default_factory=dict)
    by_pid: dict[int, _Life] = field(default_factory=dict)
    init: Started | None = None
    alive: dict[_Key, _Life] = field(default_factory=dict)

    def note(self, row: Processes) -> None:
        """Go on from what the rows before told."""
        for gone in row.ended:
            life = self.alive.pop((gone.pid, gone.started), None)
            if life is not None:
                life.last, life.cpu_s = gone.last, gone.cpu_s
        for entry in row.started:
            key = (entry.pid, entry.started)
            life = _Life(entry, entry.ppid, row.at, entry.command or "")
            self.alive[key] = self.by_pid[entry.pid] = self.lives.setdefault(key, life)
            if entry.inner == 1:
                self.init = entry
        for entry in row.started:  # listed anew where another supervisor went on
            self._change(self.by_pid[entry.pid], entry.ppid, entry.command, row.at)
            if self._was_adopted(entry) and self.by_pid[entry.pid].orphaned is None:
                self.by_pid[entry.pid].orphaned = row.at
        for change in row.changed:
            known = self.lives.get((change.pid, change.started))
            if known is not None:
                self._change(known, change.ppid, change.command, row.at)

    def _was_adopted(self, entry: Started) -> bool:
        """Tell one whose parent had gone at first sight from what the container itself runs."""
        init = self.init
        return init is not None and entry.ppid == init.pid and entry.user != init.user

    def _change(self, life: _Life, ppid: int, command: str | None, at: float) -> None:
        life.command = command or life.command
        if ppid != life.ppid and not life.entry.root and life.orphaned is None:
            life.orphaned, life.parent = at, self.by_pid.get(life.ppid)
        life.ppid = ppid

    def beside(self, orphan: _Life) -> list[_Life]:
        """Find what was begun after the experiment of an orphan was over: the top of each tree."""
        experiment = self._experiment(orphan)
        over = max((life.last for life in experiment), default=orphan.entry.started)
        found = (
            life
            for life in self.lives.values()
            if life.entry.started >= over
            and self._is_top(life, over)
            and _overlap(orphan, life) > 0
        )
        return [
            life
            for life in found
            if not any(it.orphaned is not None or it in experiment for it in self._line(life))
        ]

    def _experiment(self, orphan: _Life) -> list[_Life]:
        """Say what an orphan was part of.

        Where its parent was never seen, that may be whatever came from outside and ran at its
        start: an agent inside the container among it, which then is never over.
        """
        if orphan.parent is not None:
            return [orphan.parent]
        began = orphan.entry.started
        return [
            life
            for life in self.lives.values()
            if life.entry.root
            and life.entry.inner != 1
            and life.entry.started <= began <= life.last
        ]

    def _is_top(self, life: _Life, since: float) -> bool:
        parent = self.by_pid.get(life.entry.ppid)
        return life.entry.root or parent is None or parent.entry.started < since

    def _line(self, life: _Life) -> Iterator[_Life]:
        """Walk from a process to its parents, as they were when it was first seen."""
        seen: set[_Key] = set()
        at: _Life | None = life
        while at is not None and (key := (at.entry.pid, at.entry.started)) not in seen:
            seen.add(key)
            yield at
            at = None if at.entry.root else self.by_pid.get(at.entry.ppid)


def note_orphans(journal: Journal, telemetry: Path) -> None:
    """Write down what an exploration, by its telemetry, left running beside later commands."""
    for orphan in orphans(read_telemetry(telemetry).rows):
        journal.append(Event.NOTED, audit=AUDIT, **asdict(orphan))


def orphans(rows: Iterable[AnyRow]) -> tuple[Orphan, ...]:
    """Find them, the longest overlap first; pure."""
    containers: dict[str, _Container] = {}
    for row in rows:
        container = containers.setdefault(row.of, _Container())
        for life in container.alive.values():
            life.last = row.at
        if isinstance(row, Processes):
            container.note(row)
    found: list[Orphan] = []
    for container in containers.values():
        for life in container.lives.values():
            if life.orphaned is not None:
                found += _found(life, container.beside(life))
    found.sort(key=lambda it: (-it.overlap, it.started, it.pid))
    return tuple(found[:MOST])


def _overlap(orphan: _Life, later: _Life) -> float:
    began = max(orphan.orphaned or 0.0, later.entry.started)
    return round(min(orphan.last, later.last) - began, 3)


def _found(life: _Life, beside: list[_Life]) -> Iterator[Orphan]:
    if not beside or life.orphaned is None:
        return
    longest = max(beside, key=lambda later: _overlap(life, later))
    yield Orphan(
        pid=life.entry.pid,
        command=life.command,
        started=life.entry.started,
        orphaned=life.orphaned,
        overlap=_overlap(life, longest),
        beside=longest.command,
        beside_pid=longest.entry.pid,
        others=len(beside) - 1,
        cpu_s=life.cpu_s,
    )
