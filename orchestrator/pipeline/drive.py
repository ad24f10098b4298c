"""Drive a run from where its journal stands to its end, one phase after the other.

``OrchError`` raised by a phase is the machine's (or the operator's) doing and becomes the run's
terminal event; a candidate's doing arrives as an ordinary outcome.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from orchestrator.domain.attempt import Entry, RunKind, TerminationReason
from orchestrator.domain.outcome import HostFact
from orchestrator.domain.records import AttemptPlan, PhasePlan, ReplayPlan, ScoringPlan
from orchestrator.domain.roles import Phase
from orchestrator.errors import (
    AgentUnstartedError,
    AssetMismatchError,
    ContainerLeftRunning,
    ContainerLostError,
    EngineUnavailableError,
    GateRefusedError,
    InfrastructureError,
    InterruptedByOperator,
    ResourcesBusyError,
    StorageFullError,
    TaskPackError,
)
from orchestrator.evidence.adoption import Adoption, adoptions
from orchestrator.evidence.context import Context, Outcome
from orchestrator.evidence.oneshot import scratch_size
from orchestrator.evidence.ownership import named
from orchestrator.evidence.taking import accepted
from orchestrator.lifecycle.machine import Event, State, is_terminal
from orchestrator.phases import explore, gate, replay, score, submit, validate
from orchestrator.pipeline.finish import finish_attempt, finish_replay, finish_scoring
from orchestrator.pipeline.plans import pack_of, require_same_pack
from orchestrator.ports import Agent
from orchestrator.sandbox import PHASE_LABEL
from orchestrator.storage.campaign import CampaignEvent
from orchestrator.storage.durable import free_ballast, make_ballast, remove_unfinished
from orchestrator.storage.journal import Journal, read_journal
from orchestrator.storage.layout import AttemptFolder, ReplayFolder, RunFolder, ScoringFolder
from orchestrator.storage.ledger import Reservation
from orchestrator.storage.pack import Pack
from orchestrator.storage.records import load
from orchestrator.storage.supervisor import supervising

KINDS: dict[type[RunFolder], RunKind] = {
    AttemptFolder: RunKind.ATTEMPT,
    ReplayFolder: RunKind.REPLAY,
    ScoringFolder: RunKind.SCORING,
}
BALLAST = ".ballast"
LEFT_RUNNING = "left_running"
"""The note of a person who left a container to run on."""
RESOURCES_BUSY = "resources_busy"
"""Booked where somebody else had what a run asks for: nothing failed, and waiting helps."""


def drive_attempt(ctx: Context, folder: AttemptFolder, pack: Pack, agent: Agent) -> State:
    """Explore and submit; return the attempt's final state.

    Raises:
        InfrastructureError: the machine ended it; recorded as such.
        InterruptedByOperator: a person did; recorded, unless the container was left running.
    """
    plan = load(folder.plan, AttemptPlan)
    with _supervised(ctx, folder, plan) as journal:
        if journal.state is State.REGISTERED:
            _append(journal, explore.run(ctx, plan, pack, agent, folder, journal))
        if journal.state is State.CAPTURED:
            _submit(folder, plan, journal)
    return _ended(journal, folder)


def drive_entered(ctx: Context, folder: AttemptFolder, entered: Outcome) -> State:
    """Take an attempt that enters half-way (a patch, checkpoints) to its submission."""
    plan = load(folder.plan, AttemptPlan)
    with _supervised(ctx, folder, plan) as journal:
        _append(journal, entered)
        _submit(folder, plan, journal)
    return _ended(journal, folder)


def resume_attempt(ctx: Context, folder: AttemptFolder, adoption: Adoption) -> State:
    """Submit what was captured, or at least accepted, by a supervisor that is gone.

    Raises:
        InfrastructureError: its bytes are not the proven ones any more; recorded as its ending.
    """
    plan = load(folder.plan, AttemptPlan)
    with _supervised(ctx, folder, plan) as journal:
        adoption.note(ctx, journal)
        if journal.state is State.EXPLORING:
            started = journal.view.last(Event.EXPLORE_STARTED)
            assert started is not None  # noqa: S101 - the state is exploring
            _append(journal, accepted(folder, started.ts, ctx.now()))
        _submit(folder, plan, journal)
    return _ended(journal, folder)


def _submit(folder: AttemptFolder, plan: AttemptPlan, journal: Journal) -> None:
    """Go from captured to submitted; checkpoints that are handed in have no tree to check."""
    if plan.entry is Entry.CHECKPOINT:
        journal.append(Event.SUBMITTED)
    else:
        _append(journal, submit.run(folder))


def drive_replay(ctx: Context, folder: ReplayFolder, pack: Pack) -> State:
    """Gate, run, collect and validate; return the replay's final state.

    Raises:
        InfrastructureError: the machine ended it, a refusing gate included; recorded as such.
        InterruptedByOperator: a person did.
    """
    plan = load(folder.plan, ReplayPlan)
    need = plan.resources
    with _supervised(ctx, folder, plan) as journal:
        journal.append(Event.GATE_STARTED)
        # Workspace, /out, the collected copy of what /out may hold, and validators' output.
        phases = (Phase.REPLAY, Phase.VALIDATE)
        disk = 3 * need.disk + scratch_size(pack.spec, Phase.VALIDATE)
        with gate.passed(ctx, plan, phases, folder.gate, disk) as held:
            ctx.guard(folder.root, held)
            journal.append(Event.GATE_PASSED, **named(held))
            replay.run(ctx, plan, pack, folder, journal, held)
            collected = journal.view.last(Event.COLLECTED)
            if journal.state is State.COLLECTED and collected is not None:
                _append(journal, validate.run(ctx, plan, pack, folder, collected.data, held))
    return _ended(journal, folder)


def resume_replay(ctx: Context, folder: ReplayFolder, adoption: Adoption) -> State:
    """Go on with a replay whose supervisor is gone, from where its journal stands.

    The container is seen to its end whatever became of the pack, which validation alone reads.

    Raises:
        TaskPackError: the pack is not the attempt's any more; what is collected waits for it.
        InfrastructureError: it cannot be gone on with; recorded as its ending.
    """
    plan = load(folder.plan, ReplayPlan)
    with _supervised(ctx, folder, plan) as journal, adoption.held or nullcontext():
        match journal.state:
            case State.RUNNING:
                with adoption.reserved(ctx, plan, folder.root, journal) as held:
                    replay.resume(ctx, plan, folder, journal, adoption, held)
            case State.QUEUED | State.GATING:
                raise InfrastructureError("orch ended before the run had started")
            case _:
                adoption.note(ctx, journal)
        if journal.state is State.COLLECTED:
            _validate_again(ctx, plan, folder, journal, adoption.held)
    return _ended(journal, folder)


def _validate_again(
    ctx: Context,
    plan: ReplayPlan,
    folder: ReplayFolder,
    journal: Journal,
    held: Reservation | None,
) -> None:
    """Validate what is collected already; what an earlier validation left is cleared first."""
    pack = pack_of(folder.attempt)
    require_same_pack(load(folder.attempt.plan, AttemptPlan), pack)
    collected = journal.view.last(Event.COLLECTED)
    assert collected is not None  # noqa: S101 - the state is collected
    ended = {**ctx.own(plan.run_id), PHASE_LABEL: Phase.VALIDATE.value}
    for container in ctx.engine.find(ended):
        container.remove()
    validate.clear(ctx, folder)
    if held is not None:
        _append(journal, validate.run(ctx, plan, pack, folder, collected.data, held))
        return
    evidence = folder.gate_again
    disk = scratch_size(pack.spec, Phase.VALIDATE)
    with gate.passed(ctx, plan, (Phase.VALIDATE,), evidence, disk) as fresh:
        ctx.guard(folder.root, fresh)
        _append(journal, validate.run(ctx, plan, pack, folder, collected.data, fresh))


def drive_checkpoints(
    ctx: Context, folder: ReplayFolder, pack: Pack, enter: Callable[[], Outcome]
) -> State:
    """Enter existing checkpoints into a replay, and take it through validation."""
    plan = load(folder.plan, ReplayPlan)
    with _supervised(ctx, folder, plan) as journal:
        _append(journal, entered := enter())
        disk = scratch_size(pack.spec, Phase.VALIDATE)
        with gate.passed(ctx, plan, (Phase.VALIDATE,), folder.gate, disk) as held:
            ctx.guard(folder.root, held)
            _append(journal, validate.run(ctx, plan, pack, folder, entered.data, held))
    return _ended(journal, folder)


def drive_scoring(ctx: Context, folder: ScoringFolder, pack: Pack) -> State:
    """Score every accepted checkpoint; return the scoring's final state.

    Raises:
        InfrastructureError: an evaluation crashed or the machine failed; ``score_failed``.
        InterruptedByOperator: a person stopped it.
    """
    plan = load(folder.plan, ScoringPlan)
    with _supervised(ctx, folder, plan) as journal:
        journal.append(Event.GATE_STARTED)
        disk = scratch_size(pack.spec, Phase.SCORE)
        with gate.passed(ctx, plan, (Phase.SCORE,), folder.gate, disk) as held:
            ctx.guard(folder.root, held)
            journal.append(Event.GATE_PASSED, **named(held))
            crashes = crashes_before(folder, plan)
            outcome = score.run(ctx, plan, pack, folder, journal, held, crashes)
            _append(journal, outcome)
            ctx.campaign.append(
                CampaignEvent.HEAD,
                run_id=plan.run_id,
                event=outcome.event.value,
                seq=journal.view.records[-1].seq,
                head=journal.head,
            )
    return _ended(journal, folder)


def crashes_before(folder: ScoringFolder, plan: ScoringPlan) -> dict[str, int]:
    """Count each checkpoint's crashes in earlier numbered tries by the same evaluator."""
    found: dict[str, int] = {}
    for earlier in folder.replay.scorings():
        if earlier.root == folder.root or not earlier.plan.exists():
            continue
        if load(earlier.plan, ScoringPlan).evaluator_digest != plan.evaluator_digest:
            continue
        for record in read_journal(earlier.journal, RunKind.SCORING).all(Event.NOTED):
            name = record.data.get("checkpoint")
            if record.data.get("crash") and isinstance(name, str):
                found[name] = found.get(name, 0) + 1
    return found


def finish(ctx: Context, folder: RunFolder) -> State:
    """Mint and commit a run whose journal has ended; return its state.

    Raises:
        StorageFullError: no space for the receipts; the next writing command finishes it.
    """
    match folder:
        case AttemptFolder():
            finish_attempt(ctx, folder)
        case ReplayFolder():
            finish_replay(ctx, folder)
        case ScoringFolder():
            finish_scoring(ctx, folder)
    free_ballast(folder.root / BALLAST)
    for place in (folder.root, folder.receipts):
        remove_unfinished(place)
    state = read_journal(folder.journal, KINDS[type(folder)]).state
    assert state is not None  # noqa: S101 - it was registered
    return state


def _append(journal: Journal, outcome: Outcome) -> None:
    journal.append(outcome.event, **outcome.data)


def _ended(journal: Journal, folder: RunFolder) -> State:
    """Return how a run ended, where the candidate's doing ended it."""
    last = journal.view.records[-1]
    message = str(last.data.get("message", ""))
    match last.event:
        case Event.INFRASTRUCTURE:
            raise InfrastructureError(message, remedy=f"try again: {_next(folder)}")
        case Event.OPERATOR:
            again = ' --again "REASON"' if isinstance(folder, ReplayFolder) else ""
            raise InterruptedByOperator(message, remedy=f"start anew: {_next(folder)}{again}")
        case _:
            return _state(journal)


def _next(folder: RunFolder) -> str:
    """Name the command that gives a run another number."""
    match folder:
        case AttemptFolder():
            return "orch explore"
        case ReplayFolder():
            return f"orch replay {folder.attempt.root}{load(folder.plan, ReplayPlan).option}"
        case ScoringFolder():
            return f"orch score {folder.replay.root}{load(folder.plan, ScoringPlan).option}"


def _state(journal: Journal) -> State:
    assert journal.state is not None  # noqa: S101 - it was registered
    return journal.state


@contextmanager
def _supervised(ctx: Context, folder: RunFolder, plan: PhasePlan) -> Iterator[Journal]:
    """Be a run's one supervisor; commit its ending, also the one that an exception makes.

    A container that was left running on purpose stays the run's: no ending is booked then. An
    error of our own is the machine's doing too, never the candidate's.

    Raises:
        UsageError: another process supervises it; nothing was touched.
    """
    with supervising(folder.root):
        journal = Journal(folder.journal, KINDS[type(folder)], plan.run_id, ctx.clock)
        ballast = folder.root / BALLAST
        try:
            make_ballast(ballast)
            yield journal
        except ContainerLeftRunning:
            journal.append(Event.NOTED, audit=LEFT_RUNNING)
            raise
        except InterruptedByOperator as stop:
            book(ctx, journal, folder, Event.OPERATOR, message=str(stop))
            raise
        except Exception as failure:
            if isinstance(failure, StorageFullError):
                free_ballast(ballast)
            fact = _FACTS.get(type(failure), HostFact.ORCHESTRATOR_FAILED.value)
            message = str(failure) or type(failure).__name__
            known = journal.state is State.CAPTURED  # then only the disk can keep it from its end
            if is_accepted(folder, journal.state) and (
                not known or isinstance(failure, StorageFullError)
            ):
                ctx.say("a submission was accepted before; it is completed in the background")
                raise
            if _is_begun(journal) and isinstance(failure, TaskPackError):
                raise
            if _is_begun(journal) and passes(journal, failure):
                ctx.guard(folder.root, None)
                ctx.say(f"{folder.root} is not ended by that; it is gone on with in the background")
                raise
            book(ctx, journal, folder, Event.INFRASTRUCTURE, fact=fact, message=message)
            raise
        finish(ctx, folder)


def _is_begun(journal: Journal) -> bool:
    return journal.state in _HAD and journal.view.last(Event.RUN_STARTED) is not None


def passes(journal: Journal, failure: Exception) -> bool:
    """Tell whether a replay that was begun can still come to its end after a failure.

    The command that was run for hours is not run again because a disk was full, or a validator's
    container removed, when it had ended already.
    """
    if isinstance(failure, _PASSING):
        return True
    ended = journal.view.last(Event.COLLECTED) or journal.view.last(Event.EXITED)
    if ended is None or not isinstance(failure, _MENDABLE):
        return False
    later = (record for record in journal.view.records if record.seq > ended.seq)
    return len(adoptions(later)) < _TRIES


def is_accepted(folder: RunFolder, state: State | None) -> bool:
    """Tell whether an attempt has a submission that was accepted and is not submitted yet.

    Of an exploration it may be one that its journal does not know of yet.
    """
    if not isinstance(folder, AttemptFolder):
        return False
    return state is State.CAPTURED or (state is State.EXPLORING and folder.submission.exists())


_FACTS: dict[type[Exception], str] = {
    GateRefusedError: "gate_refused",
    ResourcesBusyError: RESOURCES_BUSY,
    AssetMismatchError: "asset_mismatch",
    AgentUnstartedError: "agent_unstarted",
    ContainerLostError: HostFact.CONTAINER_LOST.value,
    EngineUnavailableError: "engine_unavailable",
    StorageFullError: HostFact.HOST_DISK_FULL.value,
    InfrastructureError: "infrastructure",
}

_HAD = frozenset({State.RUNNING, State.COLLECTED})
"""States of a replay whose run was begun or had."""
_PASSING = (EngineUnavailableError, GateRefusedError)
"""What says nothing of a run that was begun: the engine comes back, a reservation gets free."""
_MENDABLE = (StorageFullError, ContainerLostError, AssetMismatchError)
"""What may be over soon: space is freed, a container made again, assets are where they were."""
_TRIES = 10
"""How often what was run to its end is gone on with after a failure of the machine's own."""

_REASONS = {
    Event.OPERATOR: TerminationReason.OPERATOR_INTERRUPT,
    Event.INFRASTRUCTURE: TerminationReason.RUNTIME_FAILURE,
}


def book(ctx: Context, journal: Journal, folder: RunFolder, event: Event, **data: str) -> None:
    """End a run by what no phase decided; one that has ended already keeps its ending."""
    kind = KINDS[type(folder)]
    if kind is RunKind.ATTEMPT:
        data["reason"] = _REASONS[event].value
    if not is_terminal(kind, _state(journal)):
        journal.append(event, **data)
    finish(ctx, folder)
