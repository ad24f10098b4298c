"""Which containers that carry our label nothing waits for, and why every other one stays."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from orchestrator.domain.records import AttemptPlan, PhasePlan, ReplayPlan, ScoringPlan
from orchestrator.errors import OrchError
from orchestrator.evidence.context import Context
from orchestrator.pipeline.versions import require_known
from orchestrator.ports import Container
from orchestrator.sandbox import BOOT_LABEL, DEADLINE_LABEL, INSTANCE_LABEL, RUN_LABEL
from orchestrator.storage.layout import AttemptFolder, ReplayFolder, RunFolder, ScoringFolder
from orchestrator.storage.records import load

PLANS: dict[type[RunFolder], type[PhasePlan]] = {
    AttemptFolder: AttemptPlan,
    ReplayFolder: ReplayPlan,
    ScoringFolder: ScoringPlan,
}


@dataclass(frozen=True, slots=True)
class Stray:
    """A container under our label. ``kept`` says why it stays; empty when it may go."""

    container: Container
    run: RunFolder | None
    kept: str


def containers(ctx: Context, folders: Iterable[RunFolder]) -> Iterator[Stray]:
    """Judge every container that orch made on this engine, whoever's orch.

    It may go when its run has ended, or when its time is over and no run is its own. While a plan
    cannot be read no run is unknown: a container may be that one's.

    Args:
        folders: every run of this runs folder.
    """
    made = [c for c in ctx.engine.find({}) if INSTANCE_LABEL in c.labels]
    if not made:
        return
    runs: dict[str, RunFolder] = {}
    unreadable = ""
    for folder in folders:
        try:
            require_known(folder)
            runs[load(folder.plan, PLANS[type(folder)]).run_id] = folder
        except (OrchError, OSError) as fault:
            unreadable = str(fault)
    for container in made:
        run = runs.get(container.labels.get(RUN_LABEL, ""))
        yield Stray(container, run, _kept(ctx, container, run, unreadable))


def _kept(ctx: Context, container: Container, run: RunFolder | None, unreadable: str) -> str:
    labels = container.labels
    if labels[INSTANCE_LABEL] != ctx.instance:
        return "of another runs folder"
    if run is not None:
        return "" if run.complete.exists() else "its run has not ended"
    if unreadable:
        return f"it may be that run's: {unreadable}"
    if labels.get(BOOT_LABEL) != ctx.clock.boot_id():
        return "of another host, or of this one before it was restarted"
    deadline = labels.get(DEADLINE_LABEL, "")
    if not (deadline.isascii() and deadline.isdigit()):
        return "its labels do not say until when it may run"
    return "" if ctx.clock.boottime_ns() >= int(deadline) else "its time is not over"
