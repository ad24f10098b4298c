"""One look at this host's GPUs: what they do, who has them, and whether they are idle.

A look proves nothing over time: the gate watches a device for as long as the task says.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from orchestrator.domain.container import DeviceClaim
from orchestrator.domain.device import Device, DeviceProcess, DeviceSample
from orchestrator.domain.gate import WORTH_WAITING, PermittedHolder
from orchestrator.domain.process import ProcessFacts
from orchestrator.domain.quantity import human
from orchestrator.domain.task import GateSpec
from orchestrator.errors import DeviceLostError, DeviceUnreadableError, GateRefusedError
from orchestrator.evidence.claims import claimed
from orchestrator.evidence.idleness import Rule, Seen, problem
from orchestrator.ports import Clock, DeviceProbe, ProcessTable
from orchestrator.report import words
from orchestrator.storage.device_locks import DeviceLocks, Lease

_UNKNOWN = "-"


class State(StrEnum):
    """How a device stands, for a run that would like to have it."""

    IDLE = "idle"
    LEASED = "leased"
    """A run of orch has it."""
    BUSY = "busy"
    """Something else is on it, or in its memory."""
    UNFIT = "unfit"
    """It is lost, faulty, in a mode that cannot be used, or silent about what has to be known."""
    UNKNOWN = "unknown"
    """It could not be looked at."""


@dataclass(frozen=True, slots=True)
class GpuView:
    """One device at one moment.

    Attributes:
        number: its place in the list, which is no identity.
        sample: None where it could not be looked at.
        processes: what the host knows of the processes on it, by pid.
        lease: which run of orch has it.
        why: what keeps it from being idle, in one sentence; empty when nothing does.
    """

    HEADINGS: ClassVar = ("#", "device", "model", "memory", "use", "power", "temp", "state")
    PROCESS_HEADINGS: ClassVar = ("#", "pid", "use", "memory", "user", "container", "command")

    number: int
    device: Device
    state: State
    why: str
    sample: DeviceSample | None = None
    processes: Mapping[int, ProcessFacts] = field(default_factory=dict)
    lease: Lease | None = None

    def cells(self) -> tuple[str, ...]:
        """Give the row of the table of devices."""
        seen = self.sample
        used = None if seen is None else seen.memory_used
        return (
            str(self.number),
            self.device.uuid,
            self.device.model,
            f"{_size(used)} of {human(self.device.memory)}",
            _with_unit(None if seen is None else seen.utilization, "%"),
            _with_unit(None if seen is None else seen.power, "W"),
            _with_unit(None if seen is None else seen.temperature, "°C"),
            self.state,
        )

    def process_cells(self) -> tuple[tuple[str, ...], ...]:
        """Give the rows of the table of processes."""
        return tuple(map(self._process_cells, self._running()))

    def document(self) -> dict[str, Any]:
        """Give everything as JSON."""
        return {
            **asdict(self.device),
            "state": self.state,
            "why": self.why or None,
            "lease": None if self.lease is None else asdict(self.lease),
            "seen": None if self.sample is None else _seen(self.sample),
            "processes": [
                {
                    "pid": process.pid,
                    "use": process.use,
                    "memory": process.memory,
                    "command": facts.command,
                    "user": facts.user,
                    "container": facts.container,
                }
                for process in self._running()
                for facts in (self.processes[process.pid],)
            ],
        }

    def _running(self) -> tuple[DeviceProcess, ...]:
        return () if self.sample is None else self.sample.processes

    def _process_cells(self, process: DeviceProcess) -> tuple[str, ...]:
        facts = self.processes[process.pid]
        return (
            str(self.number),
            str(process.pid),
            process.use.value,
            _size(process.memory),
            facts.user or _UNKNOWN,
            words.short_digest(facts.container or _UNKNOWN),
            facts.command or _UNKNOWN,
        )


@dataclass(frozen=True, slots=True)
class Host:
    """Whom to ask about the devices of a host, and what is known of them besides.

    Attributes:
        permitted: which programs may be on a device that is to be idle.
        claims: which containers were given devices.
    """

    devices: DeviceProbe
    processes: ProcessTable
    locks: DeviceLocks
    clock: Clock
    permitted: tuple[PermittedHolder, ...] = ()
    claims: tuple[DeviceClaim, ...] = ()


def look(host: Host) -> tuple[GpuView, ...]:
    """Look at every device once.

    Raises:
        DeviceUnreadableError: the driver does not say which there are.
    """
    listed = host.devices.devices()
    return tuple(_view(host, listed, number) for number in range(len(listed)))


def _view(host: Host, listed: tuple[Device, ...], number: int) -> GpuView:
    device = listed[number]
    try:
        lease = host.locks.holder(device.uuid)
        mark = host.locks.mark(device.uuid, host.clock.boot_id())
        sample = host.devices.sample(device.uuid)
    except DeviceLostError as fault:
        return GpuView(number, device, State.UNFIT, str(fault))
    except (DeviceUnreadableError, GateRefusedError) as fault:
        return GpuView(number, device, State.UNKNOWN, str(fault))
    processes = {process.pid: host.processes.facts(process.pid) for process in sample.processes}
    found = problem(device, Seen(sample, processes), Rule(GateSpec(), host.permitted)) or claimed(
        device, listed, host.claims, run_id=""
    )
    if mark is not None:
        state, why = State.UNFIT, f"{device.uuid} is marked unusable: {mark.reason}"
    elif lease is not None:
        state, why = State.LEASED, f"{lease} has it since {words.utc(lease.since)}"
    elif found is None:
        state, why = State.IDLE, ""
    else:
        state = State.BUSY if found.reason in WORTH_WAITING else State.UNFIT
        why = found.sentence
    return GpuView(number, device, state, why, sample, processes, lease)


def _seen(sample: DeviceSample) -> dict[str, Any]:
    """Give what one look saw, without what stands elsewhere or takes more than one look."""
    facts = asdict(sample) | {"unsupported": sorted(sample.unsupported)}
    elsewhere = ("uuid", "boottime_ns", "processes", "xids")
    return {name: value for name, value in facts.items() if name not in elsewhere}


def _size(count: int | None) -> str:
    return _UNKNOWN if count is None else human(count)


def _with_unit(value: float | None, unit: str) -> str:
    return _UNKNOWN if value is None else f"{value:.0f} {unit}"
