"""A device probe that sees no GPU. The gate refuses a task that asks for more than it sees."""

from typing_extensions import override

from orchestrator.domain.device import Device, DeviceLibrary, DeviceSample
from orchestrator.errors import DeviceLostError
from orchestrator.ports import DeviceProbe


class NoDevices(DeviceProbe):
    """The probe of a host whose GPUs orch cannot prove to be idle."""

    @override
    def devices(self) -> tuple[Device, ...]:
        """Return none."""
        return ()

    @override
    def sample(self, uuid: str) -> DeviceSample:
        """Refuse: there is none."""
        raise DeviceLostError(f"no driver knows {uuid}")

    @override
    def library(self) -> DeviceLibrary | None:
        """Return none."""
        return None

    @override
    def close(self) -> None:
        """Nothing is open."""
