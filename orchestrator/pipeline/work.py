"""A worker: takes jobs from the queue, one after the other, and books how each ended.

How a job ended is what its run's journal says, also when another process finds it there later: a
worker that died left a run that was never registered, one that has ended, or one that goes on under
a supervisor. Nothing is guessed from a worker's death.
"""

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from orchestrator.agents.registry import make_agent
from orchestrator.domain.attempt import Series, TerminationReason
from orchestrator.domain.outcome import HostFact, Verdict
from orchestrator.domain.queue import (
    EXITS,
    TAKEN,
    Job,
    JobEnding,
    JobKind,
    JobRequest,
    JobStatus,
)
from orchestrator.domain.roles import Phase
from orchestrator.errors import (
    Exit,
    InterruptedByOperator,
    OrchError,
    ResourcesBusyError,
    TaskPackError,
    UsageError,
)
from orchestrator.evidence.context import Context
from orchestrator.evidence.supervise import StopRequest
from orchestrator.evidence.tree import tree_digest
from orchestrator.lifecycle.machine import Event, State
from orchestrator.pipeline import drive, jobs, plans, register
from orchestrator.pipeline.enqueue import following
from orchestrator.pipeline.plans import pack_of
from orchestrator.pipeline.reconcile import reconcile
from orchestrator.report import lookup
from orchestrator.storage.journal import JournalView, read_journal
from orchestrator.storage.layout import AttemptFolder, ReplayFolder, ScoringFolder
from orchestrator.storage.pack import load_pack
from orchestrator.storage.queue import Queue
from orchestrator.storage.queue_claim import Claim, New
from orchestrator.storage.supervisor import is_supervised

_LOOK_EVERY = 1.0
_CANCEL_EVERY = 0.5
_RECONCILE_EVERY_NS = 30 * 10**9
REFUSED = "refused"
"""The outcome of a job that could not be started for what it asks."""


class Wishes:
    """What people have asked of a worker, from any thread or signal handler."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._interrupted = 0
        self._current: StopRequest | None = None

    @property
    def over(self) -> bool:
        """Whether no further job is to be taken."""
        return self._over.is_set()

    @property
    def interrupted(self) -> bool:
        """Whether a person wanted the job that was under way to be stopped, too."""
        return self._interrupted > 0

    def drain(self) -> None:
        """Ask to stop after the job that is under way."""
        self._over.set()

    def interrupt(self) -> int:
        """Ask to stop that job too; a second time, to leave its container running."""
        self._interrupted += 1
        self._over.set()
        if self._current is not None:
            self._current.ask()
        return self._interrupted

    def wait(self, seconds: float) -> None:
        """Wait for a wish, but not for long."""
        self._over.wait(seconds)

    @contextmanager
    def job(self) -> Iterator[StopRequest]:
        """Let wishes reach one job."""
        self._current = StopRequest()
        try:
            yield self._current
        finally:
            self._current = None


@dataclass(frozen=True, slots=True)
class _Task:
    """A job that is planned and not yet registered; ``register`` returns what drives it, too."""

    run_id: str
    register: Callable[[], tuple[drive.RunFolder, Callable[[], State]]]


def work(
    ctx: Context, queue: Queue, wishes: Wishes, *, forever: bool = False, limit: int | None = None
) -> int:
    """Take jobs until nothing is left to become of any; return how many were taken.

    Args:
        forever: wait for more instead.
        limit: take no more than so many.

    Raises:
        InterruptedByOperator: a person wanted the job that was under way to be stopped.
    """
    queue.tidy()
    sweeper = _Sweeper(ctx, queue)
    done = 0
    while not wishes.over and (limit is None or done < limit):
        sweeper.sweep()
        claim = queue.claim()
        if claim is not None:
            done += 1
            with claim, wishes.job() as stop:
                _take(replace(ctx, stop=stop), claim, stop)
        elif forever or _is_anything_left(queue):
            wishes.wait(_LOOK_EVERY)
        else:
            break
    if wishes.interrupted:
        raise InterruptedByOperator(
            f"stopped after {done} job(s)", remedy="orch queue run goes on with what is queued"
        )
    return done


def _is_anything_left(queue: Queue) -> bool:
    """Tell whether a job may still have to be taken: one is queued, or may come back or lead on."""
    return any(
        job.status is JobStatus.QUEUED or (job.status in TAKEN and job.host == queue.host)
        for job in queue.open_jobs()
    )


def _take(ctx: Context, claim: Claim, stop: StopRequest) -> None:
    """Do one job and book its end; a run that was left running stays the job's."""
    with _cancellable(claim, stop):
        try:
            request = claim.request
            task = _PLANNERS[claim.job.kind](ctx, claim, request)
            claim.intend(task.run_id)
            folder, go = task.register()
        except OrchError as refusal:
            _book(ctx, claim, refused(refusal))
            return
        claim.started(*_place(folder))
        ctx.say(f"{claim.job.job}: {claim.job.kind} {folder.root}")
        try:
            go()
        except OrchError as failure:
            ctx.say(f"{claim.job.job}: {failure}")
    _conclude(ctx, claim, folder)


@contextmanager
def _cancellable(claim: Claim, stop: StopRequest) -> Iterator[None]:
    """Ask the job to stop once somebody cancels it."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_CANCEL_EVERY):
            if claim.cancelled:
                stop.ask()
                return

    watcher = threading.Thread(target=watch, name=f"cancel {claim.job.job}", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _explore(ctx: Context, _claim: Claim, request: JobRequest) -> _Task:
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
    ctx.assets.verify(pack, (Phase.EXPLORE,), tree_digest)
    agent = make_agent(plan.agent, pack)

    def registered() -> tuple[AttemptFolder, Callable[[], State]]:
        folder = register.register_attempt(ctx, plan)
        return folder, lambda: drive.drive_attempt(ctx, folder, pack, agent)

    return _Task(plan.run_id, registered)


def _replay(ctx: Context, claim: Claim, request: JobRequest) -> _Task:
    attempt = _attempt_of(ctx, claim.job)
    pack, series = pack_of(attempt), Series(claim.job.series)
    if request.members is not None:
        jobs.declare(ctx, attempt, request.members)
    again = claim.attempted.again or None
    plan = plans.plan_replay(
        ctx, attempt, pack, series=series, again=again, official=request.official
    )

    def registered() -> tuple[ReplayFolder, Callable[[], State]]:
        folder = register.register_replay(ctx, attempt, plan)
        return folder, lambda: drive.drive_replay(ctx, folder, pack)

    return _Task(plan.run_id, registered)


def _score(ctx: Context, claim: Claim, request: JobRequest) -> _Task:
    attempt = _attempt_of(ctx, claim.job)
    replayed, pack = ReplayFolder(attempt.root / claim.job.replay), pack_of(attempt)
    plan = plans.plan_scoring(ctx, replayed, pack, reference_run=False, official=request.official)

    def registered() -> tuple[ScoringFolder, Callable[[], State]]:
        folder = register.register_scoring(ctx, replayed, plan)
        return folder, lambda: drive.drive_scoring(ctx, folder, pack)

    return _Task(plan.run_id, registered)


_PLANNERS: Mapping[JobKind, Callable[[Context, Claim, JobRequest], _Task]] = MappingProxyType(
    {JobKind.EXPLORE: _explore, JobKind.REPLAY: _replay, JobKind.SCORE: _score}
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


def _place(folder: drive.RunFolder) -> tuple[str, str, str]:
    """Say where a run lies, as a row does: attempt, replay, and a note for what has no column."""
    match folder:
        case AttemptFolder():
            return folder.root.name, "", ""
        case ReplayFolder():
            return folder.attempt.root.name, folder.root.name, ""
        case ScoringFolder():
            return folder.replay.attempt.root.name, folder.replay.root.name, folder.root.name


def _conclude(ctx: Context, claim: Claim, folder: drive.RunFolder) -> bool:
    """Book a run's ending, once it has one; tell whether it had."""
    ending = ending_of(folder)
    if ending is None:
        return False
    follow = None
    if ending.verdict is Verdict.BEHAVIOR and not isinstance(folder, ScoringFolder):
        follow = following(claim.job, claim.request, folder)
    _book(ctx, claim, ending, follow)
    return True


def _book(ctx: Context, claim: Claim, ending: JobEnding, follow: New | None = None) -> None:
    job, *added = claim.settle(ending, follow)
    again = f", again at {job.not_before}" if job.status is JobStatus.QUEUED else ""
    ctx.say(f"{job.job}: {job.status}, {job.outcome}{again}")
    for other in added:
        ctx.say(f"{other.job}: {other.kind} follows")


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


def ending_of(folder: drive.RunFolder) -> JobEnding | None:
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


def _outcome(folder: drive.RunFolder, view: JournalView) -> str:
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


def refused(refusal: OrchError) -> JobEnding:
    """Class what kept a job from being registered, by whose doing it was."""
    operator = {Exit.USAGE, Exit.TASK_PACK, Exit.INTERRUPTED}
    verdict = Verdict.OPERATOR if refusal.exit_code in operator else Verdict.INFRASTRUCTURE
    busy = isinstance(refusal, ResourcesBusyError)
    return JobEnding(verdict, REFUSED, refusal.exit_code, str(refusal), busy=busy)


_NEVER_REGISTERED = JobEnding(
    Verdict.INFRASTRUCTURE,
    HostFact.ORCHESTRATOR_FAILED.value,
    Exit.INFRASTRUCTURE,
    "its worker was gone before a run was registered",
)


class _Sweeper:
    """Looks after the jobs of dead workers: books what has ended, leaves what goes on."""

    def __init__(self, ctx: Context, queue: Queue) -> None:
        self._ctx = ctx
        self._queue = queue
        self._reconciled: dict[str, int] = {}

    def sweep(self) -> None:
        """Judge each job whose worker is gone, and whose run nobody supervises, by its journal."""
        for name in self._queue.orphans():
            folder = self._run_of(self._queue.job(name))
            if folder is not None and is_supervised(folder.root):
                continue
            claim = self._queue.take_over(name)
            if claim is not None:
                with claim:
                    self._judge(claim)

    def _judge(self, claim: Claim) -> None:
        folder = self._run_of(claim.job)
        if folder is None:
            _book(self._ctx, claim, _NEVER_REGISTERED)
        elif not is_supervised(folder.root) and not _conclude(self._ctx, claim, folder):
            self._go_on(claim, folder)

    def _go_on(self, claim: Claim, folder: drive.RunFolder) -> None:
        """Have a run that nobody supervises ended or adopted; ask for that now and then only."""
        now, name = self._ctx.clock.boottime_ns(), claim.job.job
        before = self._reconciled.get(name)
        if before is None or now - before >= _RECONCILE_EVERY_NS:
            self._reconciled[name] = now
            reconcile(self._ctx)
            if not is_supervised(folder.root):
                _conclude(self._ctx, claim, folder)

    def _run_of(self, job: Job) -> drive.RunFolder | None:
        """Find the run that a try was about to register; None when it did not come to that."""
        run_id = self._queue.files.latest_try(job.job).run_id
        if not run_id:
            return None
        runs = self._ctx.runs
        config = runs.config(job.config).root
        named = (
            AttemptFolder(config / job.attempt),
            ReplayFolder(config / job.attempt / job.replay),
        )
        every = itertools.chain(named, lookup.walk(runs))
        return next((run for run in every if lookup.run_id(run) == run_id), None)
