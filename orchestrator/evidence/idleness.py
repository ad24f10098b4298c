"""Is a GPU idle? Judged over a window of samples, purely: the gate brings what it saw.

Unknown is never idle. A device counts as idle once every sample of an unbroken window was: no
process but permitted holders, memory and utilisation within the task's bounds, healthy. What is
left of a run before (its memory, the utilisation that the driver averages over a second) gets a
moment to go; the window begins after it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from orchestrator.domain.device import (
    FATAL_XIDS,
    MIG_QUERIES,
    QUERIES,
    Device,
    DeviceSample,
    Need,
    Query,
)
from orchestrator.domain.gate import Finding, PermittedHolder, Refusal, permission
from orchestrator.domain.process import ProcessFacts
from orchestrator.domain.quantity import human
from orchestrator.domain.task import GateSpec

SAMPLE_EVERY = 0.5
MAX_GAP = 1.0
"""A window with a longer time between two samples begins again, in seconds."""
_SETTLE = 5.0
_WINDOWS, _ALLOWANCE = 3, 10.0
_DRAINING = frozenset({Refusal.PROCESS, Refusal.MEMORY, Refusal.UTILIZED})
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at a device, with what the host knows of the processes on it, by pid."""

    sample: DeviceSample
    processes: Mapping[int, ProcessFacts]


@dataclass(frozen=True, slots=True)
class Rule:
    """When a device counts as idle: the task's bounds, and this host's permitted holders."""

    bounds: GateSpec
    permitted: tuple[PermittedHolder, ...] = ()

    def holder(self, facts: ProcessFacts) -> PermittedHolder | None:
        """Return what permits a process to be there, by the file that it runs."""
        return permission(self.permitted, facts)


def problem(device: Device, seen: Seen, rule: Rule) -> Finding | None:
    """Say what speaks against a device's being idle, from one look; the gravest first."""
    return next(_problems(device, seen, rule), None)


def _problems(device: Device, seen: Seen, rule: Rule) -> Iterator[Finding]:
    sample, uuid, bounds = seen.sample, device.uuid, rule.bounds
    if fatal := sorted(FATAL_XIDS & set(sample.xids)):
        codes = ", ".join(map(str, fatal))
        yield Finding(Refusal.XID, uuid, f"{uuid} reported Xid {codes}: it needs a reset or repair")
    if sample.failed_remap or sample.pending_remap:
        what = "could not be remapped" if sample.failed_remap else "waits for a reset"
        yield Finding(Refusal.REMAP, uuid, f"a faulty row of the memory of {uuid} {what}")
    if sample.mig and device.parent is None:
        sentence = f"{uuid} is in MIG mode: only its instances can be given"
        yield Finding(Refusal.MIG, uuid, sentence)
    if untold := sorted(_untold(device, sample)):
        what = ", ".join(untold)
        yield Finding(Refusal.CANNOT_TELL, uuid, f"the driver does not tell {what} of {uuid}")
    yield from _held(uuid, seen, rule)
    if sample.utilization is not None and sample.utilization > bounds.max_utilization:
        sentence = (
            f"{uuid} is used by {sample.utilization} %, the task allows {bounds.max_utilization} %"
        )
        yield Finding(Refusal.UTILIZED, uuid, sentence)


def _untold(device: Device, sample: DeviceSample) -> frozenset[Query]:
    """Name what has to be known of a device and is not."""
    table = QUERIES if device.parent is None else MIG_QUERIES
    silent = set(sample.unsupported)
    if sample.memory_used is None:
        silent.add(Query.MEMORY)
    if sample.utilization is None:
        silent.add(Query.UTILIZATION)
    return frozenset(query for query in silent if table[query] is Need.REQUIRED)


def _held(uuid: str, seen: Seen, rule: Rule) -> Iterator[Finding]:
    """Find processes that may not be there, then memory that permitted ones do not account for."""
    accounted = 0
    for pid, memory in _memory_by_pid(seen.sample).items():
        facts = seen.processes.get(pid, ProcessFacts(pid))
        permitted = rule.holder(facts)
        if permitted is None:
            yield Finding(Refusal.PROCESS, uuid, f"{uuid} is used by {describe(facts)}")
        elif memory is not None and memory > permitted.memory:
            sentence = (
                f"{describe(facts)} holds {human(memory)} of {uuid}, "
                f"and is permitted {human(permitted.memory)}"
            )
            yield Finding(Refusal.PROCESS, uuid, sentence)
        # One whose share the driver does not tell holds at most what it may.
        accounted += (0 if permitted is None else permitted.memory) if memory is None else memory
    used = seen.sample.memory_used
    if used is not None and used - accounted > rule.bounds.max_memory_used:
        sentence = (
            f"{used - accounted} bytes ({human(used - accounted)}) of {uuid} are held and no "
            f"process accounts for them; the task allows {rule.bounds.max_memory_used} bytes"
        )
        yield Finding(Refusal.MEMORY, uuid, sentence)


def _memory_by_pid(sample: DeviceSample) -> dict[int, int | None]:
    """Return what each process holds; one with two uses is listed under both with all of it."""
    found: dict[int, int | None] = {}
    for process in sample.processes:
        known = found.get(process.pid)
        told = (known, process.memory)
        found[process.pid] = max((m for m in told if m is not None), default=None)
    return found


def describe(facts: ProcessFacts) -> str:
    """Name a process for people, with whatever could be found out about it."""
    known = [
        f"pid {facts.pid}",
        *([facts.command] if facts.command else []),
        *([f"user {facts.user}"] if facts.user else []),
        *([f"container {facts.container[:12]}"] if facts.container else []),
    ]
    return ", ".join(known)


class Window:
    """What was seen of one device since it became ours; ``complete`` once it was idle enough."""

    def __init__(self, device: Device, rule: Rule) -> None:
        self.device = device
        self._rule = rule
        self._first_ns: int | None = None
        self._began_ns: int | None = None
        self._last_ns = 0

    @property
    def complete(self) -> bool:
        """Whether it was idle all through a window that goes on until the last sample."""
        whole_ns = self._rule.bounds.idle_for * _NS
        return self._began_ns is not None and self._last_ns - self._began_ns >= whole_ns

    def add(self, seen: Seen, *, patient: bool) -> Finding | None:
        """Take one more look into account; return what is wrong with the device, once it counts.

        Args:
            patient: let what is left of a run before go away first.
        """
        now_ns, idle_for = seen.sample.boottime_ns, self._rule.bounds.idle_for
        first_ns = now_ns if self._first_ns is None else self._first_ns
        gap_ns, self._first_ns, self._last_ns = now_ns - self._last_ns, first_ns, now_ns
        found = problem(self.device, seen, self._rule)
        if found is not None:
            self._began_ns = None
            settles = patient and found.reason in _DRAINING
            return None if settles and now_ns - first_ns < min(_SETTLE, idle_for) * _NS else found
        if self._began_ns is None or gap_ns > MAX_GAP * _NS:
            self._began_ns = now_ns
        if not self.complete and now_ns - first_ns > (_WINDOWS * idle_for + _ALLOWANCE) * _NS:
            sentence = (
                f"{self.device.uuid} could not be looked at once in {MAX_GAP:g} s "
                f"for {idle_for:g} s together"
            )
            return Finding(Refusal.GAP, self.device.uuid, sentence)
        return None
