"""Before a command writes: deal with runs whose supervisor is gone.

Nothing is judged while a supervisor lives, nor for a run that belongs to another engine than the
one that answers. A replay that still runs within its deadline is left alone; ``orch replay`` of its
attempt takes it over.
"""

from collections.abc import Iterator

from orchestrator.domain.attempt import RunKind
from orchestrator.domain.container import ContainerStatus
from orchestrator.domain.outcome import HostFact
from orchestrator.domain.records import PhasePlan, ReplayPlan
from orchestrator.domain.roles import Phase
from orchestrator.errors import InfrastructureError, InterruptedByOperator, OrchError
from orchestrator.evidence.context import Context
from orchestrator.evidence.rooms import views_of
from orchestrator.lifecycle.machine import Event, State, is_terminal
from orchestrator.pipeline import drive, strays
from orchestrator.pipeline.finish import ended_runs
from orchestrator.pipeline.plans import pack_of
from orchestrator.ports import Container
from orchestrator.sandbox import INSTANCE_LABEL, PHASE_LABEL, RUN_LABEL
from orchestrator.storage.journal import Journal, JournalView, read_journal
from orchestrator.storage.layout import AttemptFolder, ReplayFolder
from orchestrator.storage.records import load
from orchestrator.storage.supervisor import is_supervised, supervising
from receipts.errors import ReceiptError

VOLUMES = ("workspace", "out", "control", "scratch", "validate-out")
"""Folders of a run that may be volumes."""
HOSTS = ("host", "validate-host")
"""Folders under a run's ``logs`` that the host writes for containers."""


def every_run(ctx: Context) -> Iterator[drive.RunFolder]:
    """Go through all runs that were registered whole."""
    for config in ctx.runs.configs():
        for attempt in config.attempts():
            yield from (run for run in _below(attempt) if run.plan.exists())


def _below(attempt: AttemptFolder) -> Iterator[drive.RunFolder]:
    yield attempt
    for replay in attempt.replays():
        yield replay
        yield from replay.scorings()


def reconcile(ctx: Context) -> None:
    """End, collect or leave every run that nobody supervises; say what was done.

    A run folder that cannot be read is named and left as it is.

    Raises:
        InterruptedByOperator: a person asked for a stop meanwhile.
    """
    ended = ended_runs(ctx)
    for folder in every_run(ctx):
        if folder.complete.exists() or is_supervised(folder.root):
            continue
        try:
            _reconcile(ctx, folder, ended)
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


def _reconcile(ctx: Context, folder: drive.RunFolder, ended: frozenset[str]) -> None:
    kind = drive.KINDS[type(folder)]
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
    if isinstance(folder, AttemptFolder) and (
        view.state is State.CAPTURED or drive.is_accepted(folder, view.state)
    ):
        with supervising(folder.root):
            _clear(ctx, folder, plan)
        ctx.say(f"{folder.root}: gone on with, {drive.resume_attempt(ctx, folder)}")
        return
    now = ctx.engine_record()
    if now.engine_id != plan.engine.engine_id:
        ctx.say(f"{folder.root}: belongs to engine {plan.engine.engine_id}, left alone")
        return
    if strangers := _strangers(ctx, plan.run_id):
        ctx.say(
            f"{folder.root}: left alone, its container {strangers[0].name} was made where this "
            "folder lay before it was copied or moved; move it back, or remove the container"
        )
        return
    if isinstance(folder, ReplayFolder) and view.state in {State.RUNNING, State.COLLECTED}:
        if now.boot_id == plan.engine.boot_id and is_running(ctx, folder, view):
            ctx.say(
                f"{folder.root}: still runs without a supervisor; "
                f"orch replay {folder.attempt.root} goes on with it"
            )
            return
        try:
            state = drive.resume_replay(ctx, folder, pack_of(folder.attempt))
        except InfrastructureError:
            _let_go(ctx, folder)
            raise
        _let_go(ctx, folder)
        ctx.say(f"{folder.root}: gone on with, {state}")
        return
    _end(ctx, folder, plan)


def _strangers(ctx: Context, run_id: str) -> tuple[Container, ...]:
    """Find a run's containers that were made from another place: a twin may be alive there."""
    found = ctx.engine.find({RUN_LABEL: run_id})
    return tuple(c for c in found if c.labels.get(INSTANCE_LABEL) != ctx.instance)


def is_running(ctx: Context, folder: ReplayFolder, view: JournalView) -> bool:
    """Tell whether a replay's container still runs and may."""
    started = view.last(Event.RUN_STARTED)
    if started is None or view.last(Event.EXITED) is not None:
        return False
    labels = {
        **ctx.own(load(folder.plan, ReplayPlan).run_id),
        PHASE_LABEL: Phase.REPLAY.value,
    }
    in_time = ctx.clock.boottime_ns() < int(started.data["deadline_boottime_ns"])
    running = {ContainerStatus.RUNNING, ContainerStatus.PAUSED}
    return in_time and any(c.state().status in running for c in ctx.engine.find(labels))


def _end(ctx: Context, folder: drive.RunFolder, plan: PhasePlan) -> None:
    """End a run that cannot be gone on with: its containers, its folders, its journal."""
    kind: RunKind = drive.KINDS[type(folder)]
    with supervising(folder.root):
        _clear(ctx, folder, plan)
        journal = Journal(folder.journal, kind, plan.run_id, ctx.clock)
        if journal.state is None:
            journal.append(Event.REGISTERED)
        notes = journal.view.all(Event.NOTED)
        if any(note.data.get("audit") == drive.LEFT_RUNNING for note in notes):
            message = "a person left it running, and it cannot be gone on with"
            drive.book(ctx, journal, folder, Event.OPERATOR, message=message)
        else:
            message = "orch was killed while it supervised this run"
            fact = HostFact.ORCHESTRATOR_FAILED.value
            drive.book(ctx, journal, folder, Event.INFRASTRUCTURE, fact=fact, message=message)
    ctx.say(f"{folder.root}: ended, {message}")


def _clear(ctx: Context, folder: drive.RunFolder, plan: PhasePlan) -> None:
    """Remove the containers of a run that will not be gone on with, and close its folders."""
    for container in ctx.engine.find(ctx.own(plan.run_id)):
        container.remove()
    _let_go(ctx, folder)


def _let_go(ctx: Context, folder: drive.RunFolder) -> None:
    """Close the volumes and views that a supervisor which is gone left open."""
    for name in VOLUMES:
        left = ctx.volumes.adopt(folder.root / name)
        if left is not None:
            left.close()
    for host in HOSTS:
        ctx.views.close(views_of(folder.root / "logs" / host))


def unfinished_replay(ctx: Context, attempt: AttemptFolder) -> ReplayFolder | None:
    """Return a replay of this attempt that runs without a supervisor, to go on with."""
    for folder in attempt.replays():
        if folder.complete.exists() or is_supervised(folder.root) or not folder.plan.exists():
            continue
        view = read_journal(folder.journal, RunKind.REPLAY)
        if view.state is State.RUNNING and is_running(ctx, folder, view):
            return folder
    return None
