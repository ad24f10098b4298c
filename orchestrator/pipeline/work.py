"""A worker: takes jobs from the queue, one after the other, and books how each ended.

How a job ended is what its run's journal says, also when another process finds it there later: a
worker that died left a run that was never registered, one that has ended, or one that goes on under
a supervisor. Nothing is guessed from a worker's death.
"""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from orchestrator.domain.gate import Asked
from orchestrator.domain.outcome import HostFact, Verdict
from orchestrator.domain.queue import TAKEN, Job, JobEnding, JobStatus
from orchestrator.errors import (
    EngineUnavailableError,
    Exit,
    InterruptedByOperator,
    OrchError,
    TaskPackError,
)
from orchestrator.evidence.context import Context
from orchestrator.evidence.supervise import StopRequest
from orchestrator.pipeline.enqueue import following
from orchestrator.pipeline.queued import PLANNERS, ending_of, place, refused
from orchestrator.pipeline.reconcile import reconcile
from orchestrator.report import lookup, words
from orchestrator.storage.layout import AttemptFolder, ReplayFolder, RunFolder, ScoringFolder
from orchestrator.storage.queue import Queue
from orchestrator.storage.queue_claim import Claim, New
from orchestrator.storage.supervisor import is_supervised

_LOOK_EVERY = 1.0
_CANCEL_EVERY = 0.5
_WAIT = 60.0
"""How long a gate waits for what somebody else has, before the job goes back to the queue."""
_RECONCILE_EVERY_NS = 30 * 10**9


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
            f"stopped after {words.count(done, 'job')}",
            remedy="orch queue run goes on with what is queued",
        )
    return done


def _is_anything_left(queue: Queue) -> bool:
    """Tell whether a job may still have to be taken: one is queued, or may come back or lead on."""
    return any(
        job.status is JobStatus.QUEUED or (job.status in TAKEN and job.host == queue.host)
        for job in queue.open_jobs()
        if job.job not in queue.unknown
    )


def _take(ctx: Context, claim: Claim, stop: StopRequest) -> None:
    """Do one job and book its end; a run that was left running stays the job's."""
    with _cancellable(claim, stop):
        try:
            request = claim.request
            ctx = replace(ctx, asked=Asked(request.gpu or "auto", _WAIT))
            task = PLANNERS[claim.job.kind](ctx, claim, request)
            ctx.stop.check(f"{claim.job.job} was registered")
            claim.intend(task.run_id)
            folder, go = task.register()
        except OrchError as refusal:
            _book(ctx, claim, refused(refusal))
            return
        claim.started(*place(folder))
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


def _conclude(ctx: Context, claim: Claim, folder: RunFolder) -> bool:
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
            if self._is_supervised(name) or not self._queue.is_known(name):
                continue
            claim = self._queue.take_over(name)
            if claim is not None:
                with claim:
                    self._judge(claim)

    def _is_supervised(self, name: str) -> bool:
        with suppress(TaskPackError):  # what cannot be read is judged under the job's lease
            folder = self._run_of(self._queue.job(name))
            return folder is not None and is_supervised(folder.root)
        return False

    def _judge(self, claim: Claim) -> None:
        try:
            folder = self._run_of(claim.job)
            if folder is None:
                _book(self._ctx, claim, _NEVER_REGISTERED)
            elif not is_supervised(folder.root) and not _conclude(self._ctx, claim, folder):
                self._go_on(claim, folder)
        except TaskPackError as damaged:
            _book(self._ctx, claim, refused(damaged))
        except EngineUnavailableError as away:
            self._ctx.say(f"{claim.job.job}: {away}")

    def _go_on(self, claim: Claim, folder: RunFolder) -> None:
        """Have a run that nobody supervises ended or adopted; ask for that now and then only."""
        now, name = self._ctx.clock.boottime_ns(), claim.job.job
        before = self._reconciled.get(name)
        if before is None or now - before >= _RECONCILE_EVERY_NS:
            self._reconciled[name] = now
            reconcile(self._ctx)
            if not is_supervised(folder.root):
                _conclude(self._ctx, claim, folder)

    def _run_of(self, job: Job) -> RunFolder | None:
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
        every = itertools.chain(named, runs.runs())
        return next((run for run in every if lookup.run_id(run) == run_id), None)
