"""Which GPUs a run may have: as many as can be proven idle and owned, or it does not start."""

from orchestrator.domain.records import PhasePlan
from orchestrator.errors import GateRefusedError
from orchestrator.evidence.context import Context


def require_devices(ctx: Context, plan: PhasePlan) -> str:
    """Check that the host has the GPUs a plan asks for; say what was found.

    Raises:
        GateRefusedError: it has fewer; nothing was started.
    """
    wanted = plan.resources.gpus
    if wanted == 0:
        return "none asked for"
    found = len(ctx.devices.devices())
    if wanted > found:
        raise GateRefusedError(
            f"the task asks for {wanted} GPU(s), {found} can be proven idle and owned here",
            remedy="run it on a host whose GPUs orch can gate; orch doctor says what it sees",
        )
    return f"{wanted} asked for, {found} seen"
