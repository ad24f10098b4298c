"""What the gate keeps of GPUs in ``gate.json``; runs without any never load this.

Memory is bytes, times are seconds since the gate began to look.
"""

from pydantic import Field

from orchestrator.domain.device import DeviceLibrary, DeviceUse, Query
from orchestrator.domain.gate import Finding, PermittedHolder
from orchestrator.domain.schema import Strict


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


class DeviceRecord(Strict):
    """A device that was given to the run."""

    uuid: str
    model: str
    memory: int
    driver: str
    parent: str | None = None


class DeviceEvidence(Strict):
    """Everything the gate saw of GPUs in its last try.

    Attributes:
        asked: what was asked for by name; empty where any would do.
        waited_s: how long other runs or processes were waited for.
        tries: how often it was tried meanwhile.
        window_s: for how long a device had to be seen idle.
        library: which one told all this.
        permitted: who was permitted to be on the devices.
        devices: those that were given to the run.
        refusals: what spoke against those that were not.
        unsupported: what devices could not tell, by UUID; recorded, as none of it is required.
    """

    library: DeviceLibrary | None = None
    asked: tuple[str, ...] = ()
    window_s: float
    max_memory_used: int
    max_utilization: int
    permitted: tuple[PermittedHolder, ...] = ()
    devices: tuple[DeviceRecord, ...] = ()
    refusals: tuple[Finding, ...] = ()
    holders: tuple[HolderRecord, ...] = ()
    samples: tuple[SampleRecord, ...] = ()
    unsupported: dict[str, tuple[Query, ...]] = Field(default_factory=dict)
    waited_s: float = 0.0
    tries: int = 1
