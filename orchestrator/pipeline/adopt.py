"""Take over one run whose supervisor is gone: what a watchdog starts in that one's place."""

from contextlib import nullcontext
from pathlib import Path

from orchestrator.errors import GateRefusedError, UsageError
from orchestrator.evidence.adoption import Adopter, Adoption
from orchestrator.evidence.context import Context
from orchestrator.pipeline import jobs, reconcile
from orchestrator.pipeline.finish import ended_runs
from orchestrator.storage.layout import ReplayFolder, run_folder
from orchestrator.storage.ledger import Reservation
from orchestrator.storage.supervisor import keeping


def adopt(
    ctx: Context, root: Path, lock: int, *, since_ns: int, descriptors: tuple[int, ...]
) -> None:
    """Take the run at ``root`` to its end, as the command that started it would have.

    Args:
        lock: the run's supervisor lock, open and held, inherited.
        since_ns: when the last supervisor was gone, on CLOCK_BOOTTIME.
        descriptors: what that one had reserved, open, inherited.

    Raises:
        UsageError: it cannot be gone on with from here, and nothing was judged.
        InfrastructureError: the machine ended it; recorded as such.
    """
    folder = run_folder(root)
    if folder is None:
        raise UsageError(f"{root} is no run", remedy="orch status lists runs")
    with keeping(root, lock), _inherited(ctx, descriptors) or nullcontext() as held:
        if not folder.complete.exists():
            adoption = Adoption(Adopter.WATCHDOG, since_ns, held)
            reconcile.settle(ctx, folder, ended_runs(ctx), adoption)
    if isinstance(folder, ReplayFolder) and folder.complete.exists():
        jobs.go_on(ctx, folder)


def _inherited(ctx: Context, descriptors: tuple[int, ...]) -> Reservation | None:
    """Take over what was reserved; None when it was given back before its holder died."""
    try:
        return ctx.ledger.inherit(descriptors)
    except GateRefusedError:
        return None
