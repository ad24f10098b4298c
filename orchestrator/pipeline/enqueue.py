"""What goes into the queue: a matrix of explorations, replays and scorings, and what follows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.domain.attempt import ConfigName, RunKind, Series
from orchestrator.domain.queue import Job, JobKind, JobRequest
from orchestrator.domain.records import Artifacts, AttemptPlan
from orchestrator.errors import UsageError
from orchestrator.lifecycle.machine import State
from orchestrator.pipeline import plans
from orchestrator.pipeline.agents import Supply
from orchestrator.storage.journal import read_journal
from orchestrator.storage.layout import AttemptFolder, ReplayFolder
from orchestrator.storage.pack import load_pack
from orchestrator.storage.queue_claim import New
from orchestrator.storage.records import load


@dataclass(frozen=True, slots=True)
class Wanted:
    """What holds for every job of one command line.

    Attributes:
        through: the last kind of job that follows by itself.
        repeats: explorations of each combination, or seeded replays of an attempt; None means one
            exploration, or the official replay.
    """

    through: JobKind = JobKind.SCORE
    repeats: int | None = None
    priority: int = 0
    gpu: str = ""
    official: bool = False

    def request(self, kind: JobKind) -> JobRequest:
        """Begin the request of a job."""
        return JobRequest(
            job="", kind=kind, through=self.through, official=self.official, gpu=self.gpu
        )

    def job(self, kind: JobKind, config: str, series: str = "") -> Job:
        """Begin the row of a job."""
        return Job("", kind, config, series=series, priority=self.priority, gpu=self.gpu)


def explorations(
    supply: Supply,
    tasks: Sequence[Path],
    agent: str,
    models: Sequence[str],
    effort: str,
    wanted: Wanted,
) -> tuple[New, ...]:
    """Plan one exploration for each task, model and repeat, every pack having been checked.

    The agent's version is frozen as it is now.

    Raises:
        UsageError: an agent or a model cannot be had, or the agent needs a terminal.
        TaskPackError: a pack is faulty.
    """
    found = []
    for task in tasks:
        pack = load_pack(task)
        for model in models:
            chosen = supply.choose(agent, pack, model=model, effort=effort)
            if chosen.agent.interactive:
                raise UsageError(
                    f"agent {agent!r} needs a person at a terminal, and a queue has none",
                    remedy="run it by hand: orch explore",
                )
            config = ConfigName(chosen.name, pack.spec.name, model, effort).folder
            request = wanted.request(JobKind.EXPLORE).model_copy(
                update={
                    "task": str(pack.source),
                    "task_digest": pack.digest,
                    "agent": chosen.name,
                    "model": model,
                    "effort": effort,
                }
            )
            job = wanted.job(JobKind.EXPLORE, config)
            found += [New(job, request)] * (wanted.repeats or 1)
    return tuple(found)


def replays(attempt: AttemptFolder, wanted: Wanted) -> tuple[New, ...]:
    """Plan the official replay of an attempt, or its seeded ones.

    Raises:
        UsageError: it has no candidate; or it is official and they would not be, or the reverse.
    """
    if not _has_candidate(attempt):
        state = read_journal(attempt.journal, RunKind.ATTEMPT).state
        raise UsageError(
            f"{attempt.root} has no candidate to replay (it is {state})",
            remedy=f"orch lifecycle {attempt.root} tells its story",
        )
    plans.require_standing(wanted.official, load(attempt.plan, AttemptPlan), attempt.root)
    request = wanted.request(JobKind.REPLAY)
    names = [Series().name]
    if wanted.repeats is not None:
        names = [f"seed-{number}" for number in range(1, wanted.repeats + 1)]
        request = request.model_copy(update={"members": wanted.repeats})
    jobs = (wanted.job(JobKind.REPLAY, attempt.root.parent.name, name) for name in names)
    return tuple(New(replace(job, attempt=attempt.root.name), request) for job in jobs)


def scoring(replayed: ReplayFolder, wanted: Wanted) -> New:
    """Plan a scoring of a replay.

    Raises:
        UsageError: it has no accepted checkpoint.
    """
    state = read_journal(replayed.journal, RunKind.REPLAY).state
    if state is not State.TERMINAL_BEHAVIOR or not _has_accepted(replayed):
        raise UsageError(
            f"{replayed.root} has no accepted checkpoint to score (it is {state})",
            remedy=f"orch show {replayed.root} says what became of it",
        )
    attempt = replayed.attempt.root
    job = wanted.job(JobKind.SCORE, attempt.parent.name)
    job = replace(job, attempt=attempt.name, replay=replayed.root.name)
    return New(job, wanted.request(JobKind.SCORE))


def following(job: Job, request: JobRequest, folder: AttemptFolder | ReplayFolder) -> New | None:
    """Plan what follows from a job that has succeeded; None when nothing does."""
    wanted = Wanted(request.through, None, job.priority, request.gpu, request.official)
    match folder:
        case AttemptFolder() if request.through is not JobKind.EXPLORE and _has_candidate(folder):
            follow = replays(folder, wanted)[0]
        case ReplayFolder() if request.through is JobKind.SCORE and _has_accepted(folder):
            follow = scoring(folder, wanted)
        case _:
            return None
    return New(follow.job, follow.request.model_copy(update={"follows": job.job}))


def _has_candidate(folder: AttemptFolder) -> bool:
    return read_journal(folder.journal, RunKind.ATTEMPT).state is State.SUBMITTED


def _has_accepted(folder: ReplayFolder) -> bool:
    return folder.artifacts.exists() and bool(load(folder.artifacts, Artifacts).accepted())
