"""Before a command writes: deal with runs whose supervisor and whose watchdog are gone.

Nothing is judged while somebody supervises a run, nor where it belongs to another engine than the
one that answers. A replay that runs, or whose validation is still to be had, takes time: it is gone
on with in the background. docs/recovery.md has the whole table.
"""

from collections.abc import Iterator

from orchestrator.domain.attempt import RunKind
from orchestrator.domain.container import ContainerStatus
from orchestrator.domain.outcome import HostFact
from orchestrator.domain.records import PhasePlan, ReplayPlan
from orchestrator.domain.roles import Phase
from orchestrator.errors import InterruptedByOperator, OrchError, UsageError
from orchestrator.evidence import trial
from orchestrator.evidence.adoption import Adoption
from orchestrator.evidence.context import Context
from orchestrator.evidence.rooms import views_of
from orchestrator.evidence.taking import keep
from orchestrator.evidence.walk import remove_tree
from orchestrator.lifecycle.machine import INITIAL, Event, State, is_terminal
from orchestrator.pipeline import drive, strays
from orchestrator.pipeline.finish import ended_runs
from orchestrator.pipeline.versions import require_known
from orchestrator.ports import Container
from orchestrator.sandbox import INSTANCE_LABEL, PHASE_LABEL, RUN_LABEL
from orchestrator.storage.durable import free_ballast
from orchestrator.storage.journal import Journal, JournalView, read_journal
from orchestrator.storage.layout import AttemptFolder, ReplayFolder, RunFolder
from orchestrator.storage.records import load
from orchestrator.storage.supervisor import is_supervised, supervising
from receipts.errors import ReceiptError

VOLUMES = ("workspace", "out", "control", "scratch", "validate-out", trial.WORKSPACE, trial.OUT)
"""Folders of a run that may be volumes."""
_RESUMABLE = frozenset({State.RUNNING, State.COLLECTED})
HOSTS = ("host", "validate-host", trial.HOST)
"""Folders under a run's ``logs`` that the host writes for containers."""


def every_run(ctx: Context) -> Iterator[RunFolder]:
    """Go through all runs that were registered whole."""
    return (run for run in ctx.runs.runs() if run.plan.exists())


def reconcile(ctx: Context, sparing: RunFolder | None = None) -> None:
    """End, go on with or leave every run that nobody supervises; say what was done.

    A run folder that cannot be read is named and left as it is.

    Args:
        sparing: an attempt whose replays the caller goes on with itself.

    Raises:
        InterruptedByOperator: a person asked for a stop meanwhile.
    """
    ended = ended_runs(ctx)
    for folder in every_run(ctx):
        if folder.complete.exists() or is_supervised(folder.root):
            continue
        try:
            settle(ctx, folder, ended, sparing=sparing)
        except InterruptedByOperator:
            raise
        except (OrchError, ReceiptError, OSError, ValueError) as trouble:
            ctx.say(f"{folder.root}: {trouble}")
    _sweep(ctx)


def _sweep(ctx: Context) -> None:
    """Remove containers that nothing waits for; why the others stay, ``orch gc`` says."""
    for stray in strays.containers(ctx, every_run(ctx)):
        if not stray.kept:
            stray.container.remove()


def settle(
    ctx: Context,
    folder: RunFolder,
    ended: frozenset[str],
    adoption: Adoption | None = None,
    *,
    sparing: RunFolder | None = None,
) -> None:
    """Deal with one run that nobody supervises.

    Args:
        ended: ids of the runs whose end the campaign log holds.
        adoption: given by whoever took it over to stay with it; whoever only passes by lets the
            background go on with what takes time.
        sparing: see ``reconcile``.

    Raises:
        UsageError: it was to be taken over, and cannot be from here.
    """
    kind = drive.KINDS[type(folder)]
    require_known(folder)
    view = read_journal(folder.journal, kind)
    plan = load(folder.plan, strays.PLANS[type(folder)])
    if view.state is not None and is_terminal(kind, view.state):
        # A run that ended before any phase began has no receipts, and no marker.
        if plan.run_id not in ended or folder.receipts.exists():
            with supervising(folder.root):
                _let_go(ctx, folder)
                drive.finish(ctx, folder)
            ctx.say(f"{folder.root}: finished what was left to write")
        return
    if isinstance(folder, AttemptFolder) and drive.is_accepted(folder, view.state):
        with supervising(folder.root):
            _clear(ctx, folder, plan)
        state = drive.resume_attempt(ctx, folder, adoption or Adoption())
        ctx.say(f"{folder.root}: gone on with, {state}")
        return
    if why := _not_ours(ctx, plan):
        if adoption is not None:
            raise UsageError(
                f"{folder.root}: {why}",
                remedy=f"orch lifecycle {folder.root} tells where it stands",
            )
        ctx.say(f"{folder.root}: {why}")
    elif isinstance(folder, ReplayFolder) and view.state in _RESUMABLE:
        _go_on(ctx, folder, view, adoption, sparing)
    else:
        _end(ctx, folder, plan, adoption or Adoption())


def _not_ours(ctx: Context, plan: PhasePlan) -> str:
    """Say why a run is not to be judged from here; empty when it may be."""
    if ctx.engine_record().engine_id != plan.engine.engine_id:
        return f"belongs to engine {plan.engine.engine_id}, left alone"
    if strangers := _strangers(ctx, plan.run_id):
        return (
            f"left alone, its container {strangers[0].name} was made where this folder lay before "
            "it was copied or moved; move it back, or remove the container"
        )
    return ""


def _go_on(
    ctx: Context,
    folder: ReplayFolder,
    view: JournalView,
    adoption: Adoption | None,
    sparing: RunFolder | None,
) -> None:
    """Go on with a replay: here where that is asked for or quick, else in the background."""
    if adoption is None and takes_time(ctx, folder, view):
        if folder.attempt == sparing:
            return
        watchdog = ctx.guards.watch(folder.root, ())
        if watchdog is not None:
            ctx.say(
                f"{folder.root}: has no supervisor; process {watchdog} goes on with it in the "
                f"background; orch lifecycle {folder.root} follows it"
            )
            return
    state = take_over(ctx, folder, adoption or Adoption())
    ctx.say(f"{folder.root}: gone on with, {state}")


def take_over(ctx: Context, folder: ReplayFolder, adoption: Adoption) -> State:
    """Go on with a replay until it has ended; return its final state.

    Raises:
        InfrastructureError: the machine ended it; recorded as such.
        EngineUnavailableError: no engine answers; it has not ended.
        TaskPackError: its pack is not there as it was; what is collected waits for that.
    """
    try:
        return drive.resume_replay(ctx, folder, adoption)
    finally:
        if folder.complete.exists():
            _let_go(ctx, folder)


def takes_time(ctx: Context, folder: ReplayFolder, view: JournalView) -> bool:
    """Tell whether going on with a replay takes longer than to book how it ended."""
    started = view.last(Event.RUN_STARTED)
    if view.state is State.COLLECTED or view.last(Event.EXITED) is not None:
        return True
    if started is None or started.boot_id != ctx.clock.boot_id():
        return False
    run_id = load(folder.plan, ReplayPlan).run_id
    found = ctx.engine.find({**ctx.own(run_id), PHASE_LABEL: Phase.REPLAY.value})
    return any(c.state().status is not ContainerStatus.CREATED for c in found)


def _strangers(ctx: Context, run_id: str) -> tuple[Container, ...]:
    """Find a run's containers that were made from another place: a twin may be alive there."""
    found = ctx.engine.find({RUN_LABEL: run_id})
    return tuple(c for c in found if c.labels.get(INSTANCE_LABEL) != ctx.instance)


def _end(ctx: Context, folder: RunFolder, plan: PhasePlan, adoption: Adoption) -> None:
    """End a run that cannot be gone on with: its containers, its folders, its journal.

    What an agent left in its workspace is kept: nobody submitted it, and nothing of it is lost.
    """
    kind: RunKind = drive.KINDS[type(folder)]
    with supervising(folder.root):
        journal = Journal(folder.journal, kind, plan.run_id, ctx.clock)
        if journal.state is None:
            journal.append(Event.REGISTERED)
        free_ballast(folder.root / drive.BALLAST)  # room for the ending, and what is kept
        for container in ctx.engine.find(ctx.own(plan.run_id)):
            container.remove()
        kept = ""
        if isinstance(folder, AttemptFolder) and journal.state is State.EXPLORING:
            kept = _keep(ctx, folder, plan)
        _let_go(ctx, folder)
        if journal.state is not INITIAL[kind]:
            adoption.note(ctx, journal)
        notes = journal.view.all(Event.NOTED)
        if any(note.data.get("audit") == drive.LEFT_RUNNING for note in notes):
            message = f"a person left it running, and it cannot be gone on with{kept}"
            drive.book(ctx, journal, folder, Event.OPERATOR, message=message)
        else:
            message = f"orch was killed while it supervised this run{kept}"
            fact = HostFact.ORCHESTRATOR_FAILED.value
            drive.book(ctx, journal, folder, Event.INFRASTRUCTURE, fact=fact, message=message)
    ctx.say(f"{folder.root}: ended, {message}")


def _keep(ctx: Context, folder: AttemptFolder, plan: PhasePlan) -> str:
    """Keep the workspace of an exploration, where it is still there, and say so.

    What an earlier try has kept goes first.
    """
    if ctx.volumes.adopt(folder.workspace, plan.resources.disk) is None:
        return ""
    remove_tree(folder.root / "kept")
    kept = keep(folder, plan.resources.disk)
    return f"; what the agent left is in {kept.name}/"


def _clear(ctx: Context, folder: RunFolder, plan: PhasePlan) -> None:
    """Remove the containers of a run that will not be gone on with, and close its folders."""
    for container in ctx.engine.find(ctx.own(plan.run_id)):
        container.remove()
    _let_go(ctx, folder)


def _let_go(ctx: Context, folder: RunFolder) -> None:
    """Close the volumes and views that a supervisor which is gone left open."""
    for name in VOLUMES:
        left = ctx.volumes.adopt(folder.root / name)
        if left is not None:
            left.close()
    for host in HOSTS:
        ctx.views.close(views_of(folder.root / "logs" / host))


def unfinished_replay(ctx: Context, attempt: AttemptFolder) -> ReplayFolder | None:
    """Return a replay of this attempt that has no supervisor and is to be gone on with."""
    for folder in attempt.replays():
        if folder.complete.exists() or is_supervised(folder.root) or not folder.plan.exists():
            continue
        view = read_journal(folder.journal, RunKind.REPLAY)
        plan = load(folder.plan, ReplayPlan)
        if view.state in _RESUMABLE and not _not_ours(ctx, plan) and takes_time(ctx, folder, view):
            return folder
    return None
