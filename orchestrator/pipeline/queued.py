"""A job of the queue as a run: how each kind is planned and registered, and how it ended."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from orchestrator.domain.attempt import Series, TerminationReason
from orchestrator.domain.outcome import Verdict
from orchestrator.domain.queue import EXITS, REFUSED, Job, JobEnding, JobKind, JobRequest
from orchestrator.domain.records import PhasePlan
from orchestrator.domain.roles import Phase
from orchestrator.errors import (
    DeviceUnreadableError,
    EngineUnavailableError,
    Exit,
    GateRefusedError,
    InterruptedByOperator,
    OrchError,
    ResourcesBusyError,
    TaskPackError,
    UsageError,
)
from orchestrator.evidence.context import Context
from orchestrator.evidence.image_workspace import with_workspace
from orchestrator.lifecycle.machine import Event, State
from orchestrator.pipeline import drive, jobs, plans, register
from orchestrator.pipeline.agents import verify_package
from orchestrator.pipeline.plans import pack_of
from orchestrator.storage.journal import JournalView, read_journal
from orchestrator.storage.layout import AttemptFolder, ReplayFolder, RunFolder, ScoringFolder
from orchestrator.storage.ledger import Claim as Resources
from orchestrator.storage.pack import load_pack
from orchestrator.storage.queue_claim import Claim


@dataclass(frozen=True, slots=True)
class Task:
    """A job that is planned and not yet registered; ``register`` returns what drives it, too."""

    run_id: str
    register: Callable[[], tuple[RunFolder, Callable[[], State]]]


def _explore(ctx: Context, _claim: Claim, request: JobRequest) -> Task:
    pack = load_pack(Path(request.task))
    if pack.digest != request.task_digest:
        raise TaskPackError(
            f"{request.task} is {pack.digest}, the job was added for {request.task_digest}",
            remedy="restore the pack, or add the job anew: orch queue add",
        )
    pack, plan = jobs.plan_explore(
        ctx,
        pack.source,
        agent=request.agent,
        model=request.model,
        effort=request.effort,
        official=request.official,
    )
    verify_package(ctx, plan)
    _require_room(ctx, plan, Phase.EXPLORE)
    agent = jobs.ready(ctx, pack, plan)

    def registered() -> tuple[AttemptFolder, Callable[[], State]]:
        folder = register.register_attempt(ctx, plan)
        return folder, lambda: drive.drive_attempt(ctx, folder, pack, agent)

    return Task(plan.run_id, registered)


def _replay(ctx: Context, claim: Claim, request: JobRequest) -> Task:
    attempt = _attempt_of(ctx, claim.job)
    pack = with_workspace(ctx.engine, ctx.assets, pack_of(attempt))
    series = Series(claim.job.series)
    if request.members is not None:
        jobs.declare(ctx, attempt, request.members)
    again = claim.attempted.again or None
    plan = plans.plan_replay(
        ctx, attempt, pack, series=series, again=again, official=request.official
    )
    _require_room(ctx, plan, Phase.REPLAY)

    def registered() -> tuple[ReplayFolder, Callable[[], State]]:
        folder = register.register_replay(ctx, attempt, plan)
        return folder, lambda: drive.drive_replay(ctx, folder, pack)

    return Task(plan.run_id, registered)


def _score(ctx: Context, claim: Claim, request: JobRequest) -> Task:
    attempt = _attempt_of(ctx, claim.job)
    replayed, pack = ReplayFolder(attempt.root / claim.job.replay), pack_of(attempt)
    plan = plans.plan_scoring(ctx, replayed, pack, reference_run=False, official=request.official)
    _require_room(ctx, plan, Phase.SCORE)

    def registered() -> tuple[ScoringFolder, Callable[[], State]]:
        folder = register.register_scoring(ctx, replayed, plan)
        return folder, lambda: drive.drive_scoring(ctx, folder, pack)

    return Task(plan.run_id, registered)


PLANNERS: Mapping[JobKind, Callable[[Context, Claim, JobRequest], Task]] = MappingProxyType(
    {JobKind.EXPLORE: _explore, JobKind.REPLAY: _replay, JobKind.SCORE: _score}
)
"""How a job of each kind is planned; nothing is registered by that."""


def _require_room(ctx: Context, plan: PhasePlan, phase: Phase) -> None:
    """Refuse what other runs of orch have at the moment, before anything is registered for it.

    Whatever else speaks against the run its gate says, with the evidence.

    Raises:
        ResourcesBusyError: they have it.
    """
    need = plan.resources
    ask = Resources(plan.run_id, phase, need.cpus, need.memory, 0, ctx.runs.root)
    try:
        ctx.ledger.reserve(ask).release()
    except ResourcesBusyError:
        raise
    except GateRefusedError:
        return
    count = 0 if plan.gpu is None else plan.gpu.counts.get(phase, 0)
    if plan.gpu is None or not count:
        return
    with suppress(DeviceUnreadableError):
        named = plan.gpu.asked or tuple(device.uuid for device in ctx.devices.devices())
        holders = {uuid: ctx.ledger.devices.holder(uuid) for uuid in named}
        taken = [f"{uuid} by {holder}" for uuid, holder in holders.items() if holder is not None]
        if taken and len(named) - len(taken) < count:
            raise ResourcesBusyError(
                f"gpu busy: {', '.join(taken)}", remedy="orch gpus shows who has what"
            )


def _attempt_of(ctx: Context, job: Job) -> AttemptFolder:
    """Find the attempt that a job is about.

    Raises:
        UsageError: its row does not say which.
    """
    if not job.config or not job.attempt:
        raise UsageError(
            f"{job.job} does not say which attempt it is about",
            remedy="add it anew: orch queue add --replay ATTEMPT",
        )
    return AttemptFolder(ctx.runs.config(job.config).root / job.attempt)


def place(folder: RunFolder) -> tuple[str, str, str]:
    """Say where a run lies, as a row does: attempt, replay, and a note for what has no column."""
    match folder:
        case AttemptFolder():
            return folder.root.name, "", ""
        case ReplayFolder():
            return folder.attempt.root.name, folder.root.name, ""
        case ScoringFolder():
            return folder.replay.attempt.root.name, folder.replay.root.name, folder.root.name


_VERDICTS: Mapping[State, Verdict] = MappingProxyType(
    {
        State.SUBMITTED: Verdict.BEHAVIOR,
        State.NO_CANDIDATE: Verdict.BEHAVIOR,
        State.SCORED: Verdict.BEHAVIOR,
        State.INVALID: Verdict.BEHAVIOR,
        State.UNSCORABLE: Verdict.BEHAVIOR,
        State.TERMINAL_BEHAVIOR: Verdict.BEHAVIOR,
        State.SCORE_FAILED: Verdict.INFRASTRUCTURE,
        State.TERMINAL_INFRASTRUCTURE: Verdict.INFRASTRUCTURE,
        State.TERMINAL_OPERATOR: Verdict.OPERATOR,
    }
)


def ending_of(folder: RunFolder) -> JobEnding | None:
    """Read how a run ended from its journal; None when it has not, or is not committed yet.

    Raises:
        TaskPackError: the journal is damaged.
    """
    view = read_journal(folder.journal, drive.KINDS[type(folder)])
    verdict = None if view.state is None else _VERDICTS.get(view.state)
    if verdict is None or (verdict is Verdict.BEHAVIOR and not folder.complete.exists()):
        return None
    data = view.records[-1].data
    return JobEnding(
        verdict,
        outcome=_outcome(folder, view),
        exit=EXITS[verdict],
        note=str(data.get("message", "")),
        busy=data.get("fact") == drive.RESOURCES_BUSY,
    )


def _outcome(folder: RunFolder, view: JournalView) -> str:
    """Name an ending in a word: termination reason, host fact or last event."""
    last = view.records[-1]
    if last.event is Event.INFRASTRUCTURE:
        return str(last.data.get("fact", ""))
    if last.event is Event.OPERATOR:
        return TerminationReason.OPERATOR_INTERRUPT
    if isinstance(folder, AttemptFolder):
        ended = view.last(Event.CAPTURED) or view.last(Event.DECLINED)
        return "" if ended is None else str(ended.data.get("reason", ""))
    return last.event


_PASSING = (ResourcesBusyError, EngineUnavailableError)
"""What says nothing of a job: it passes, and would spoil every job of the queue meanwhile."""


def refused(refusal: OrchError) -> JobEnding:
    """Class what kept a job from being registered, by whose doing it was."""
    operator = {Exit.USAGE, Exit.TASK_PACK, Exit.INTERRUPTED}
    verdict = Verdict.OPERATOR if refusal.exit_code in operator else Verdict.INFRASTRUCTURE
    stopped = isinstance(refusal, InterruptedByOperator)
    return JobEnding(
        verdict,
        outcome=TerminationReason.OPERATOR_INTERRUPT if stopped else REFUSED,
        exit=refusal.exit_code,
        note=str(refusal),
        busy=isinstance(refusal, _PASSING),
    )
