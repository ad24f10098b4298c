"""GPUs as the driver names them, and what one look at a device has seen. Plain values.

Devices are identified by UUID alone: an index is the order in which a library happened to list
them. Memory is bytes, power watts, temperature degrees Celsius, utilisation per cent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, or one MIG instance of it (then ``parent`` is the UUID of the GPU it is cut from).

    A GPU in MIG mode that is not cut into instances stands for itself; nothing can run on it.
    ``minor`` is the number of its device node, ``/dev/nvidia<minor>``, where the driver tells it.
    ``index`` is where the driver counted it when it was listed, GPUs that are left out included: no
    identity, but what others may mean by a number.
    """

    uuid: str
    model: str
    memory: int
    driver: str
    parent: str | None = None
    minor: int | None = None
    index: int | None = None


class Query(StrEnum):
    """One thing a driver can be asked about a device."""

    MEMORY = "memory"
    UTILIZATION = "utilization"
    COMPUTE = "compute_processes"
    GRAPHICS = "graphics_processes"
    MPS = "mps_processes"
    MIG_MODE = "mig_mode"
    REMAP = "pending_remap"
    ECC = "ecc_errors"
    XID = "xid_events"
    PERSISTENCE = "persistence_mode"
    POWER = "power"
    TEMPERATURE = "temperature"


class Need(StrEnum):
    """What an answer of "not supported" to a query means."""

    REQUIRED = "required"
    """Unknown is never idle: the gate refuses."""
    RECORDED = "recorded"
    """The evidence says that this device cannot tell."""


QUERIES: Mapping[Query, Need] = MappingProxyType(
    {
        Query.MEMORY: Need.REQUIRED,
        Query.UTILIZATION: Need.REQUIRED,
        Query.COMPUTE: Need.REQUIRED,
        Query.GRAPHICS: Need.RECORDED,
        Query.MPS: Need.RECORDED,
        Query.MIG_MODE: Need.RECORDED,
        Query.REMAP: Need.RECORDED,
        Query.ECC: Need.RECORDED,
        Query.XID: Need.RECORDED,
        Query.PERSISTENCE: Need.RECORDED,
        Query.POWER: Need.RECORDED,
        Query.TEMPERATURE: Need.RECORDED,
    }
)
"""The one table of what the gate asks. Desktop cards answer a few of these with "not supported"."""

MIG_QUERIES: Mapping[Query, Need] = MappingProxyType({**QUERIES, Query.UTILIZATION: Need.RECORDED})
"""The same for a MIG instance, whose utilisation no driver tells."""

FATAL_XIDS: frozenset[int] = frozenset({48, 64, 79, 95})
"""Double-bit ECC, failed row remap, fallen off the bus, uncontained ECC: the device is done for."""


class DeviceUse(StrEnum):
    """What a process does on a device."""

    COMPUTE = "compute"
    GRAPHICS = "graphics"
    MPS = "mps"


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """A process on a device. ``pid`` is as the driver says it; ``memory`` None when it does not."""

    pid: int
    use: DeviceUse
    memory: int | None


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """One look at one device. None means the driver cannot tell; ``unsupported`` says which.

    Attributes:
        memory_used: by NVML's second memory structure, which leaves out what the driver reserves.
        pending_remap: a row remap, or a page retirement, waits for a reset.
        failed_remap: a row could not be remapped: the GPU is due for repair.
        ecc_errors: uncorrected memory errors since the driver was loaded.
        xids: errors that the driver reported since the look before, each code once.
        mig: MIG mode is on.

    Of a MIG instance, memory, utilisation and processes are its own; everything else is its GPU's.
    """

    uuid: str
    boottime_ns: int
    memory_used: int | None
    memory_total: int | None
    utilization: int | None
    processes: tuple[DeviceProcess, ...]
    pending_remap: bool | None = None
    failed_remap: bool | None = None
    ecc_errors: int | None = None
    xids: tuple[int, ...] = ()
    mig: bool | None = None
    persistence: bool | None = None
    power: float | None = None
    temperature: int | None = None
    unsupported: frozenset[Query] = frozenset()


@dataclass(frozen=True, slots=True)
class DeviceLibrary:
    """Which library answered: its file, that file's ``sha256:...``, and the driver behind it.

    ``official`` is False for a stand-in: no result of it ever is.
    """

    path: str
    digest: str
    driver: str
    official: bool = True
