"""Whether a container of somebody else was given a device: pure, and in doubt it was."""

from collections.abc import Sequence

from orchestrator.domain.container import DeviceClaim
from orchestrator.domain.device import Device
from orchestrator.domain.gate import Finding, Refusal
from orchestrator.sandbox import RUN_LABEL

_NODE = "/dev/nvidia"


def claimed(
    device: Device, listed: Sequence[Device], claims: Sequence[DeviceClaim], run_id: str
) -> Finding | None:
    """Return which container has a device; None when none but those of ``run_id`` can.

    Args:
        listed: every device of the host. The engine's tools count them as the driver's library
            does; what is not known by such a number may be any.
    """
    for claim in claims:
        if claim.labels.get(RUN_LABEL) != run_id and _covers(claim, device, listed):
            which = "every GPU" if claim.every else ", ".join(claim.devices)
            sentence = (
                f"container {claim.name} ({claim.container[:12]}) was given {which}, "
                f"so {device.uuid} may be in use"
            )
            return Finding(Refusal.RESERVED, device.uuid, sentence)
    return None


def _covers(claim: DeviceClaim, device: Device, listed: Sequence[Device]) -> bool:
    return claim.every or any(_means(name, device, listed) for name in claim.devices)


def _means(name: str, device: Device, listed: Sequence[Device]) -> bool:
    """Tell whether a name may be this device's; an instance is covered by its GPU's name too."""
    if name.startswith(("GPU-", "MIG-")):
        return name in {device.uuid, device.parent}
    if name.startswith(_NODE):
        minors = {other.minor for other in listed}
        return None in minors or name.removeprefix(_NODE) == str(device.minor)
    cut = any(other.parent is not None for other in listed)
    known = {str(other.index) for other in listed if other.index is not None}
    return cut or name not in known or name == str(device.index)
