"""Exit facts, host facts, and the one table that makes a verdict of them.

A class needs positive evidence. Host facts come first; without one, whatever the command ended
with (75, 124, 137, its own memory, its own full disk) is the candidate's behaviour.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Verdict(StrEnum):
    """Whose doing an ending was."""

    BEHAVIOR = "terminal_behavior"
    INFRASTRUCTURE = "terminal_infrastructure"
    OPERATOR = "terminal_operator"


class StopReason(StrEnum):
    """Why the run is not running any more."""

    EXITED = "exited"
    DEADLINE = "deadline"
    OPERATOR = "operator"
    SUBMITTED = "submitted"
    DISK_LIMIT = "disk_limit"
    HOST_FACT = "host_fact"


class KilledBy(StrEnum):
    """Who sent the signal that ended it, from our own ledger and the engine's event stream."""

    NOBODY = "nobody"
    ORCHESTRATOR = "orchestrator"
    THIRD_PARTY = "third_party"


@dataclass(frozen=True, slots=True)
class ExitFacts:
    """What was seen of an ending; none of the fields is inferred from another.

    ``memory_limit_reached`` is from the cgroup's own counters; None when unreadable.
    """

    exit_code: int | None
    oom_killed: bool
    killed_by: KilledBy
    stop_reason: StopReason
    started_at: str = ""
    finished_at: str = ""
    duration_s: float = 0.0
    memory_peak: int | None = None
    memory_limit_reached: bool | None = None


class HostFact(StrEnum):
    """Positive evidence that the machine ended or spoiled a run."""

    DEVICE_LOST = "gpu_lost"
    CONTAINER_LOST = "container_lost"
    ENGINE_RESTARTED = "daemon_restarted"
    HOST_REBOOTED = "host_rebooted"
    HOST_DISK_FULL = "disk_full"
    HOST_OUT_OF_MEMORY = "host_out_of_memory"
    KILLED_BY_THIRD_PARTY = "killed_by_third_party"
    ORCHESTRATOR_FAILED = "orchestrator_failed"
    FOREIGN_GPU_USE = "foreign_gpu_use"
    PROVIDER_OUTAGE = "provider_outage"
    """The model's provider stayed away for longer than the task allows."""


class Sign(StrEnum):
    """A host sign below the bar of infrastructure: the result stands, marked ``contested``."""

    HOST_OOM_COUNT = "host_oom_count"
    CLOCK_STEP = "clock_step"
    OBSERVATION_GAP = "observation_gap"
    CAPTURED_AFTER_KILL = "captured_after_kill"
    FOREIGN_GPU_USE = "foreign_gpu_use"
    """Somebody else was on a GPU of the run, for no longer than the task tolerates."""
    DEVICE_ERROR = "gpu_error"
    """The driver reported an error of a GPU that is neither fatal nor a program's own."""


_BY_STOP: Mapping[StopReason, Verdict] = MappingProxyType(
    {
        StopReason.EXITED: Verdict.BEHAVIOR,
        StopReason.DEADLINE: Verdict.BEHAVIOR,
        StopReason.SUBMITTED: Verdict.BEHAVIOR,
        StopReason.DISK_LIMIT: Verdict.BEHAVIOR,
        StopReason.OPERATOR: Verdict.OPERATOR,
        StopReason.HOST_FACT: Verdict.INFRASTRUCTURE,
    }
)


def verdict(exit_facts: ExitFacts, host_facts: frozenset[HostFact]) -> Verdict:
    """Class an ending: host facts first, then who stopped it, else the candidate's behaviour."""
    if host_facts:
        return Verdict.INFRASTRUCTURE
    return _BY_STOP[exit_facts.stop_reason]


def host_facts_of(
    exit_facts: ExitFacts, *, container_known: bool, witnessed: bool, engine_restarted: bool
) -> frozenset[HostFact]:
    """Derive the host facts that follow from how a container ended."""
    facts: set[HostFact] = set()
    if not container_known:
        facts.add(HostFact.CONTAINER_LOST)
    if engine_restarted and not witnessed:
        facts.add(HostFact.ENGINE_RESTARTED)
    if container_known and not witnessed and not engine_restarted:
        facts.add(HostFact.CONTAINER_LOST)
    if exit_facts.killed_by is KilledBy.THIRD_PARTY:
        facts.add(HostFact.KILLED_BY_THIRD_PARTY)
    if exit_facts.oom_killed and exit_facts.memory_limit_reached is False:
        facts.add(HostFact.HOST_OUT_OF_MEMORY)
    return frozenset(facts)
