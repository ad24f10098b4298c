"""Plan which GPUs a run may have; a run without any never asks the driver."""

from orchestrator.domain.gate import STAND_IN
from orchestrator.domain.records import GpuPlan
from orchestrator.domain.roles import Phase
from orchestrator.domain.task import TaskSpec
from orchestrator.errors import DeviceUnreadableError, UsageError
from orchestrator.evidence.context import Context


def plan_gpus(ctx: Context, task: TaskSpec, phases: tuple[Phase, ...]) -> GpuPlan | None:
    """Say which GPUs the phases of a run may have; None where none of them gets one.

    What the operator asked for by index is a UUID from here on.

    Raises:
        UsageError: the operator asked for other devices, or another number of them, than can be,
            or named some for this very run, which gets none in any phase.
        DeviceUnreadableError: an index was given, and the driver does not answer.
    """
    counts = {phase: task.resources(phase).gpus for phase in phases}
    most = max(counts.values(), default=0)
    if not most:
        if ctx.asked.typed and not any(task.resources(phase).gpus for phase in Phase):
            raise UsageError(f"--gpu: {task.name} asks for no GPU", remedy="leave --gpu out")
        return None
    asked = _resolved(ctx, ctx.asked.gpu)
    if asked and len(asked) != most:
        raise UsageError(
            f"--gpu names {len(asked)} GPU(s), {task.name} asks for {most}",
            remedy="name as many, with commas between, or give --gpu auto",
        )
    return GpuPlan(counts=counts, asked=asked, qualify=task.gpu, gate=task.gate)


def _resolved(ctx: Context, asked: str) -> tuple[str, ...]:
    from orchestrator.evidence.devices import resolve  # noqa: PLC0415 - GPUs only

    listed = ctx.devices.devices() if any(n.isdecimal() for n in asked.split(",")) else ()
    try:
        return resolve(asked, listed)
    except ValueError as wrong:
        raise UsageError(f"--gpu: {wrong}", remedy="orch gpus lists them") from wrong


def gpu_relaxations(ctx: Context, gpu: GpuPlan | None) -> tuple[str, ...]:
    """List what keeps a run with these GPUs from being official."""
    if gpu is None:
        return ()
    try:
        library = ctx.devices.library()
    except DeviceUnreadableError:
        return ()  # the gate refuses, and says why
    return () if library is None or library.official else (STAND_IN,)
