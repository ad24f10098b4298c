"""Which processes a container has, told as what changed since the look before."""

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.domain.process import ProcessFacts
from orchestrator.domain.telemetry import Changed, Ended, Started

AT_SIGHT = 1500
"""So many processes are listed as soon as they are seen; then those that are seen twice."""
AT_MOST = 3000
"""So many are listed at all, changes included: a run may start millions."""
_NS = 1_000_000_000

Key = tuple[int, int]


def key_of(process: ProcessFacts) -> Key | None:
    """Name a process for as long as the host runs; None when it is gone, or has ended."""
    if process.started_ns is None or process.ended:
        return None
    return process.pid, process.started_ns


def seconds(time_ns: int) -> float:
    """Return a time as rows have it."""
    return round(time_ns / _NS, 3)


@dataclass(frozen=True, slots=True)
class Differences:
    """What changed between two looks."""

    started: tuple[Started, ...]
    changed: tuple[Changed, ...]
    ended: tuple[Ended, ...]
    more: int

    def __bool__(self) -> bool:
        """Whether there is anything to list."""
        return bool(self.started or self.changed or self.ended)


@dataclass(slots=True)
class _Known:
    facts: ProcessFacts
    seen: float
    listed: bool


class ProcessWatch:
    """Compares each look with the one before.

    Args:
        listed: how many processes the file lists already.
        commands: whether what processes say of themselves may be kept.
    """

    def __init__(self, listed: int, *, commands: bool) -> None:
        self._listed = listed
        self._commands = commands
        self._known: dict[Key, _Known] = {}
        self.more = 0
        """How many processes were started that no row lists."""

    def look(self, processes: Iterable[ProcessFacts], at: float) -> Differences:
        """Take note of the processes there are ``at`` this moment."""
        now = {key: process for process in processes if (key := key_of(process)) is not None}
        pids = {pid for pid, _ in now}
        started, changed, ended = [], [], []
        for key in [key for key in self._known if key not in now]:
            gone = self._known.pop(key)
            if gone.listed:
                ended.append(_ended(gone))
            else:
                self.more += 1
        unlisted = 0
        for key, process in now.items():
            known = self._known.get(key)
            if known is None or not known.listed:
                fresh = known is None
                listed = self._may_list(AT_SIGHT if fresh else AT_MOST)
                if listed:
                    started.append(self._started(process, root=process.ppid not in pids))
                unlisted += not listed
            else:
                listed = True
                if self._differs(known.facts, process) and self._may_list(AT_MOST):
                    changed.append(self._changed(process))
            self._known[key] = _Known(process, at, listed)
        return Differences(tuple(started), tuple(changed), tuple(ended), unlisted)

    def still(self, at: float) -> None:
        """Take note that those of the look before are still there."""
        for known in self._known.values():
            known.seen = at

    def _may_list(self, most: int) -> bool:
        if self._listed >= most:
            return False
        self._listed += 1
        return True

    def _differs(self, before: ProcessFacts, now: ProcessFacts) -> bool:
        moved = before.ppid != now.ppid
        return moved or (self._commands and before.command != now.command)

    def _started(self, process: ProcessFacts, *, root: bool) -> Started:
        return Started(
            pid=process.pid,
            ppid=process.ppid or 0,
            started=seconds(process.started_ns or 0),
            root=root,
            inner=process.inner_pid,
            command=process.command if self._commands else None,
            user=process.user,
        )

    def _changed(self, process: ProcessFacts) -> Changed:
        return Changed(
            pid=process.pid,
            started=seconds(process.started_ns or 0),
            ppid=process.ppid or 0,
            command=process.command if self._commands else None,
        )


def _ended(gone: _Known) -> Ended:
    return Ended(
        pid=gone.facts.pid,
        started=seconds(gone.facts.started_ns or 0),
        last=gone.seen,
        cpu_s=gone.facts.cpu_s,
    )
