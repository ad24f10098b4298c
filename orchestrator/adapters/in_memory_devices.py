"""GPUs that exist in memory only: for tests and rehearsals. What is run on them is never official.

A host without a GPU is ``InMemoryDevices(clock)``. Hands that are not orch's move the rest::

    devices = InMemoryDevices(clock)
    devices.put(Device("GPU-a", "NVIDIA H100", 80 << 30, "570.86.15"))   # idle, tells everything
    devices.change("GPU-a", memory_used=11 << 30)        # fields of DeviceSample, from now on
    devices.script("GPU-a", {"utilization": 90}, {})     # the next looks, one each, then as before
    devices.report("GPU-a", 79)                          # an Xid, told once
    devices.lose("GPU-a")
    devices.remove("GPU-a")
    devices.refuse("NVML says NoPermission")             # until mend()
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from typing_extensions import override

from orchestrator.domain.device import Device, DeviceLibrary, DeviceSample, Query
from orchestrator.errors import DeviceLostError, DeviceUnreadableError
from orchestrator.ports import Clock, DeviceProbe

_NO_DIGEST = "sha256:" + "0" * 64


class InMemoryDevices(DeviceProbe):
    """A device probe whose devices do what they are told."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._devices: dict[str, Device] = {}
        self._facts: dict[str, DeviceSample] = {}
        self._scripts: dict[str, deque[Mapping[str, Any]]] = {}
        self._xids: dict[str, dict[int, None]] = {}
        self._lost: set[str] = set()
        self._refusal = ""
        self._driver: str | None = None

    def put(self, device: Device, **facts: Any) -> None:
        """Add an idle device; ``facts`` are fields of ``DeviceSample``."""
        self._driver = device.driver
        self._devices[device.uuid] = device
        self._facts[device.uuid] = _idle(device)
        self._scripts[device.uuid] = deque()
        self._xids[device.uuid] = {}
        self.change(device.uuid, **facts)

    def change(self, uuid: str, **facts: Any) -> None:
        """Let every further look at a device see ``facts``."""
        self._facts[uuid] = replace(self._facts[uuid], **facts)

    def script(self, uuid: str, *looks: Mapping[str, Any]) -> None:
        """Let the next looks at a device see these facts, one look each, and none after them."""
        self._scripts[uuid].extend(looks)

    def report(self, uuid: str, xid: int) -> None:
        """Let the driver report an error of a device."""
        self._xids[uuid][xid] = None

    def lose(self, uuid: str) -> None:
        """Let a device fall off the bus."""
        self._lost.add(uuid)

    def remove(self, uuid: str) -> None:
        """Let the driver not know a device any more."""
        del self._devices[uuid]

    def order(self, *uuids: str) -> None:
        """List the devices in this order."""
        self._devices = {uuid: self._devices[uuid] for uuid in uuids}

    def refuse(self, reason: str) -> None:
        """Let the driver answer nothing but this, until ``mend``."""
        self._refusal = reason

    def mend(self) -> None:
        """Let the driver answer again."""
        self._refusal = ""

    @override
    def devices(self) -> tuple[Device, ...]:
        """List what was put here and not lost or removed."""
        self._answer()
        boards = list(dict.fromkeys(d.parent or d.uuid for d in self._devices.values()))
        found = tuple(
            replace(device, index=boards.index(device.parent or device.uuid))
            for device in self._devices.values()
            if not self._is_lost(device)
        )
        if self._devices and not found:
            raise DeviceUnreadableError("the driver has lost every GPU: GpuIsLost")
        return found

    @override
    def sample(self, uuid: str) -> DeviceSample:
        """Show what the device was told to be."""
        self._answer()
        device = self._devices.get(uuid)
        if device is None:
            raise DeviceLostError(f"the driver does not know {uuid}")
        if self._is_lost(device):
            raise DeviceLostError(f"the driver has lost {uuid}")
        script = self._scripts[uuid]
        xids, self._xids[uuid] = tuple(self._xids[uuid]), {}
        seen = replace(self._facts[uuid], boottime_ns=self._clock.boottime_ns(), xids=xids)
        return replace(seen, **script.popleft()) if script else seen

    @override
    def library(self) -> DeviceLibrary | None:
        """Name no file."""
        self._answer()
        if self._driver is None:
            return None
        return DeviceLibrary("in memory", _NO_DIGEST, self._driver, official=False)

    @override
    def close(self) -> None:
        """Nothing is open."""

    def _answer(self) -> None:
        if self._refusal:
            raise DeviceUnreadableError(self._refusal)

    def _is_lost(self, device: Device) -> bool:
        return not self._lost.isdisjoint({device.uuid, device.parent})


def _idle(device: Device) -> DeviceSample:
    """Describe a data-centre card, or an instance of one, on which nothing runs."""
    instance = device.parent is not None
    return DeviceSample(
        uuid=device.uuid,
        boottime_ns=0,
        memory_used=0,
        memory_total=device.memory,
        utilization=None if instance else 0,
        processes=(),
        pending_remap=False,
        failed_remap=False,
        ecc_errors=0,
        mig=instance,
        persistence=True,
        power=70.0,
        temperature=31,
        unsupported=frozenset({Query.UTILIZATION} if instance else ()),
    )
