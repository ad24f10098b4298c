"""Why a GPU may not be had, who may be on it all the same, and the gate's evidence of it.

Memory is bytes, times in evidence are seconds since the gate began to look.
"""

from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field, field_validator
from typing_extensions import override

from orchestrator.domain.device import DeviceUse, Query
from orchestrator.domain.quantity import Bytes
from orchestrator.domain.task import Strict


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
    """

    gpu: str = "auto"
    wait: float = 0.0


class PermittedHolder(Strict):
    """A program that may be on a GPU that is to be idle: monitoring, a display.

    Attributes:
        executable: the file that its process runs, absolute, links followed.
        memory: how many bytes of a device it may hold.
    """

    executable: str
    memory: Bytes

    @field_validator("executable")
    @classmethod
    def _is_absolute(cls, value: str) -> str:
        if not value.startswith("/"):
            raise ValueError(f"{value!r} is not an absolute path")
        return value


class GpuSettings(Strict):
    """The section ``[gpu]`` of ``orch.toml``."""

    permitted: tuple[PermittedHolder, ...] = ()


class HolderRecord(Strict):
    """A process that was seen on a device, as far as the host could tell."""

    uuid: str
    pid: int
    uses: tuple[DeviceUse, ...]
    memory: int | None
    command: str | None
    executable: str | None
    user: str | None
    container: str | None
    permitted: bool


class SampleRecord(Strict):
    """Looks at a device, one after the other, that saw the same.

    Attributes:
        first_s: when the first of them was.
        last_s: when the last was.
        count: how many there were.
        widest_s: the longest time between two of them, and before the first.
        power: lowest and highest, in watts; None where the driver does not tell.
        temperature: likewise, in degrees Celsius.
    """

    uuid: str
    first_s: float
    last_s: float
    count: int
    widest_s: float
    memory_used: int | None
    utilization: int | None
    pids: tuple[int, ...] = ()
    pending_remap: bool | None = None
    failed_remap: bool | None = None
    ecc_errors: int | None = None
    xids: tuple[int, ...] = ()
    mig: bool | None = None
    persistence: bool | None = None
    power: tuple[float, float] | None = None
    temperature: tuple[int, int] | None = None


class LibraryRecord(Strict):
    """Which library told all this."""

    path: str
    digest: str
    driver: str
    official: bool


class DeviceRecord(Strict):
    """A device that was given to the run."""

    uuid: str
    model: str
    memory: int
    driver: str
    parent: str | None = None
    unsupported: tuple[Query, ...] = ()


class RefusalRecord(Strict):
    """A device that was not given, and why."""

    uuid: str
    reason: Refusal
    sentence: str


class DeviceEvidence(Strict):
    """Everything the gate saw of GPUs in its last try.

    Attributes:
        asked: what was asked for by name; empty where any would do.
        waited_s: how long other runs or processes were waited for.
        tries: how often it was tried meanwhile.
        window_s: for how long a device had to be seen idle.
        unsupported: what devices could not tell, by UUID; recorded, as none of it is required.
    """

    library: LibraryRecord | None = None
    asked: tuple[str, ...] = ()
    window_s: float
    max_memory_used: int
    max_utilization: int
    permitted: tuple[PermittedHolder, ...] = ()
    devices: tuple[DeviceRecord, ...] = ()
    refusals: tuple[RefusalRecord, ...] = ()
    holders: tuple[HolderRecord, ...] = ()
    samples: tuple[SampleRecord, ...] = ()
    unsupported: dict[str, tuple[Query, ...]] = Field(default_factory=dict)
    waited_s: float = 0.0
    tries: int = 1
