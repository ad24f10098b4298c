"""Why a GPU may not be had, and who may be on it all the same. Memory is bytes."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from typing_extensions import override

from orchestrator.domain.process import ProcessFacts


class Refusal(StrEnum):
    """Why the gate refuses a device."""

    LEASED = "gpu_leased"
    """Another run of this host has it."""
    RESERVED = "gpu_reserved"
    """Another container was given it."""
    PROCESS = "gpu_process"
    """A process is on it that is no permitted holder, or one that holds more than it may."""
    MEMORY = "gpu_memory_in_use"
    """More of its memory is held than permitted holders account for."""
    UTILIZED = "gpu_utilized"
    REMAP = "gpu_remap"
    """A row of its memory waits to be remapped, or could not be."""
    XID = "gpu_fatal_xid"
    MIG = "gpu_mig_mode"
    """It is a GPU in MIG mode; its instances are given, never the whole."""
    CANNOT_TELL = "gpu_cannot_tell"
    """The driver does not tell what has to be known; unknown is never idle."""
    GAP = "gpu_observation_gap"
    """It was not looked at often enough to say."""
    LOST = "gpu_lost"
    UNREADABLE = "gpu_unreadable"
    UNUSABLE = "gpu_unusable"
    """It was lost in an earlier run since the host was started."""
    ABSENT = "gpu_absent"
    UNQUALIFIED = "gpu_unqualified"
    """It is not what the task asks for."""
    NOT_SEEN = "gpu_not_seen"
    """A container that was given it sees another set of devices."""
    STAND_IN = "gpu_stand_in"
    """The driver's library is a stand-in, and the plan does not say so."""


STAND_IN = "the GPU driver's library is a stand-in"
"""The relaxation of a run whose devices are told of by something else than the driver."""

PASSING = frozenset({Refusal.LEASED, Refusal.RESERVED, Refusal.PROCESS, Refusal.UTILIZED})
"""Somebody else has the device now, and will have done with it."""
WORTH_WAITING = PASSING | {Refusal.MEMORY}


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason against one device, with the sentence that says so."""

    reason: Refusal
    uuid: str
    sentence: str

    @override
    def __str__(self) -> str:
        return f"{self.reason}: {self.sentence}"


@dataclass(frozen=True, slots=True)
class Asked:
    """What the operator asked for besides the task.

    Attributes:
        gpu: ``auto``, or devices by UUID or by index as listed, with commas between.
        wait: how long to wait for what somebody else has, in seconds.
        typed: whether ``gpu`` was said of this very run, not of all that a shell or a queue runs.
    """

    gpu: str = "auto"
    wait: float = 0.0
    typed: bool = False


@dataclass(frozen=True, slots=True)
class PermittedHolder:
    """A program that may be on a GPU that is to be idle: monitoring, a display.

    Attributes:
        executable: the file that its process runs, absolute, links followed.
        memory: how many bytes of a device it may hold.
    """

    executable: str
    memory: int


def permission(
    permitted: Iterable[PermittedHolder], process: ProcessFacts
) -> PermittedHolder | None:
    """Return what permits a process to be on a GPU, by the file that it runs."""
    return next((it for it in permitted if it.executable == process.executable), None)
