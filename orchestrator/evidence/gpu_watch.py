"""Whose the processes on a run's GPUs are, and for how long somebody else was on one of them.

A process is foreign with positive proof alone: it is not in our container, and another control
group, or the host's own pid namespace, is named where it is. What cannot be told is unknown.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from orchestrator.domain.device import FATAL_XIDS, DeviceProcess, DeviceSample
from orchestrator.domain.gate import PermittedHolder, permission
from orchestrator.domain.outcome import HostFact, Sign
from orchestrator.domain.process import ProcessFacts
from orchestrator.domain.telemetry import (
    APPLICATION_XIDS,
    DeviceNews,
    DeviceState,
    Foreign,
    Gpu,
    Holder,
    Owner,
    Xid,
)
from orchestrator.errors import DeviceLostError, DeviceUnreadableError
from orchestrator.evidence.process_watch import Key, key_of, seconds
from orchestrator.ports import DeviceProbe, ProcessTable

MAX_HOLDERS = 32
"""So many processes of one GPU are listed in a row."""
_SHORT = 12


@dataclass(frozen=True, slots=True)
class Ours:
    """Our container and its processes.

    ``second_source`` lists their pids once more, from the engine; it is asked only where the
    control group of a process says nothing.
    """

    container: str
    processes: tuple[ProcessFacts, ...]
    second_source: Callable[[], Collection[int]]


def whose(process: ProcessFacts, ours: Ours, *, sees_host: bool) -> Owner:
    """Say whose a process is that a driver named by its pid.

    Args:
        process: what the host tells of that pid.
        ours: our container.
        sees_host: whether the pids we see are the host's own.
    """
    pid = process.pid
    if process.container == ours.container or any(it.pid == pid for it in ours.processes):
        return Owner.OURS
    # Some drivers name pids of an inner namespace: what has that pid on the host is no proof then.
    if not sees_host or any(it.inner_pid == pid for it in ours.processes):
        return Owner.UNKNOWN
    if key_of(process) is None:
        return Owner.UNKNOWN
    if process.container is None and process.cgroup in {None, "/"}:
        if pid in ours.second_source():
            return Owner.OURS
        # No container of ours lives in the host's own pid namespace.
        return Owner.FOREIGN if process.foreign_pids is False else Owner.UNKNOWN
    return Owner.FOREIGN


@dataclass(slots=True)
class _Span:
    first: float
    last: float


@dataclass(slots=True)
class Stamp:
    """When and of which container rows are."""

    utc: str
    at: float
    of: str


@dataclass(slots=True)
class GpuWatch:
    """Looks at a run's GPUs, and keeps what was found against them.

    Args:
        tolerance: for how long, in seconds, somebody else may be there in all.
        closed: set once nobody wants to know any more.
        permitted: who may be there besides.
        total: for how long somebody else was proven to be there already.
    """

    uuids: tuple[str, ...]
    probe: DeviceProbe
    table: ProcessTable
    tolerance: float
    closed: threading.Event
    permitted: tuple[PermittedHolder, ...] = ()
    total: float = 0.0
    host_facts: set[HostFact] = field(default_factory=set)
    signs: set[Sign] = field(default_factory=set)
    unusable: dict[str, str] = field(default_factory=dict)
    """Devices that nobody is to use before the host was restarted, and why."""
    _states: dict[str, DeviceState] = field(default_factory=dict)
    _spans: dict[tuple[str, Key], _Span] = field(default_factory=dict)
    _looked: float | None = None

    def look(
        self, ours: Ours, stamp: Stamp
    ) -> tuple[tuple[Gpu, ...], tuple[Foreign | Xid | DeviceNews, ...]]:
        """Look at every device once; return how it stands, and what is new."""
        gpus: list[Gpu] = []
        news: list[Foreign | Xid | DeviceNews] = []
        there: dict[tuple[str, Key], ProcessFacts] = {}
        sees_host = self.table.sees_host() if self.uuids else False
        for uuid in self.uuids:
            sample = None if self.closed.is_set() else self._sample(uuid, stamp, news)
            if sample is None:
                continue
            news += self._errors(sample, stamp)
            holders = []
            for process in sample.processes:
                facts = self.table.facts(process.pid)
                owner = whose(facts, ours, sees_host=sees_host)
                if owner is Owner.FOREIGN and self._permits(facts, process):
                    owner = Owner.PERMITTED
                key = key_of(facts)
                if owner is Owner.FOREIGN and key is not None:
                    there[uuid, key] = facts
                holders.append(_holder(process, facts, owner))
            gpus.append(_gpu(sample, holders))
        news += self._foreign(there, stamp)
        return tuple(gpus), tuple(news)

    def _permits(self, facts: ProcessFacts, process: DeviceProcess) -> bool:
        """Tell whether the host's own rules let a process be there, and hold what it holds."""
        rule = permission(self.permitted, facts)
        return rule is not None and (process.memory or 0) <= rule.memory

    def _sample(
        self, uuid: str, stamp: Stamp, news: list[Foreign | Xid | DeviceNews]
    ) -> DeviceSample | None:
        """Look at one device; a lost one is not looked at again."""
        if self._states.get(uuid) is DeviceState.LOST:
            return None
        sample, state, message = None, DeviceState.READABLE, ""
        try:
            sample = self.probe.sample(uuid)
        except DeviceLostError as lost:
            state, message = DeviceState.LOST, str(lost)
            self.host_facts.add(HostFact.DEVICE_LOST)
            self.unusable[uuid] = f"{HostFact.DEVICE_LOST.value}: {message}"
        except DeviceUnreadableError as silent:
            state, message = DeviceState.UNREADABLE, str(silent)
            self.signs.add(Sign.OBSERVATION_GAP)
        if self._states.get(uuid, DeviceState.READABLE) is not state:
            news.append(
                DeviceNews(
                    utc=stamp.utc,
                    at=stamp.at,
                    of=stamp.of,
                    uuid=uuid,
                    state=state,
                    message=message[:1000],
                )
            )
        self._states[uuid] = state
        return sample

    def _errors(self, sample: DeviceSample, stamp: Stamp) -> Iterator[Xid]:
        """Judge what the driver reported of a device."""
        if not sample.xids:
            return
        codes = frozenset(sample.xids)
        fatal = sorted(codes & FATAL_XIDS)
        if fatal:
            self.host_facts.add(HostFact.DEVICE_LOST)
            self.unusable[sample.uuid] = f"Xid {', '.join(map(str, fatal))}"
        if codes - FATAL_XIDS - APPLICATION_XIDS:
            self.signs.add(Sign.DEVICE_ERROR)
        yield Xid(
            utc=stamp.utc,
            at=stamp.at,
            of=stamp.of,
            uuid=sample.uuid,
            codes=tuple(sorted(codes))[:MAX_HOLDERS],
        )

    def _foreign(
        self, there: Mapping[tuple[str, Key], ProcessFacts], stamp: Stamp
    ) -> Iterator[Foreign]:
        """Add up for how long one and the same foreign process was seen at both ends."""
        before, self._looked = self._looked, stamp.at
        if before is not None and there.keys() & self._spans.keys():
            self.total = round(self.total + stamp.at - before, 3)
        self._spans = {
            place: _Span(self._spans[place].first if place in self._spans else stamp.at, stamp.at)
            for place in there
        }
        if there:
            self.signs.add(Sign.FOREIGN_GPU_USE)
        if self.total > self.tolerance or (there and not self.tolerance):
            self.host_facts.add(HostFact.FOREIGN_GPU_USE)
        for (uuid, (pid, started_ns)), facts in there.items():
            yield Foreign(
                utc=stamp.utc,
                at=stamp.at,
                of=stamp.of,
                uuid=uuid,
                pid=pid,
                started=seconds(started_ns),
                first=self._spans[uuid, (pid, started_ns)].first,
                last=stamp.at,
                total=self.total,
                command=facts.command,
                user=facts.user,
                container=facts.container,
                cgroup=facts.cgroup,
            )


def _holder(process: DeviceProcess, facts: ProcessFacts, owner: Owner) -> Holder:
    return Holder(
        pid=process.pid,
        use=process.use,
        owner=owner,
        container=None if facts.container is None else facts.container[:_SHORT],
        memory=process.memory,
    )


def _gpu(sample: DeviceSample, holders: list[Holder]) -> Gpu:
    return Gpu(
        uuid=sample.uuid,
        memory=sample.memory_used,
        utilization=sample.utilization,
        power=sample.power,
        temperature=sample.temperature,
        holders=tuple(holders[:MAX_HOLDERS]),
        more=max(0, len(holders) - MAX_HOLDERS),
    )
