"""A device probe that sees no GPU. The gate refuses a task that asks for more than it sees."""

from typing_extensions import override

from orchestrator.ports import Device, DeviceProbe


class NoDevices(DeviceProbe):
    """The probe of a host whose GPUs orch cannot prove to be idle."""

    @override
    def devices(self) -> tuple[Device, ...]:
        """Return none."""
        return ()
