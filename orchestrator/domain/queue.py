"""Jobs of the queue: what a row of ``queue.tsv`` says, and what becomes of it at an ending.

Times are UTC as text of one form (``stamp``), so that they sort as they follow each other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Literal

from orchestrator.domain.outcome import Verdict
from orchestrator.domain.schema import Strict
from orchestrator.errors import Exit


class JobKind(StrEnum):
    """What a job does, and how far a row of jobs goes (``through``)."""

    EXPLORE = "explore"
    REPLAY = "replay"
    SCORE = "score"


class JobStatus(StrEnum):
    """Where a job stands."""

    QUEUED = "queued"
    CLAIMED = "claimed"
    RUNNING = "running"
    TERMINAL_BEHAVIOR = "terminal_behavior"
    TERMINAL_INFRASTRUCTURE = "terminal_infrastructure"
    TERMINAL_OPERATOR = "terminal_operator"
    CANCELLED = "cancelled"


TAKEN = frozenset({JobStatus.CLAIMED, JobStatus.RUNNING})
"""What a worker has claimed and nobody has booked the end of."""

OPEN = frozenset({JobStatus.QUEUED, *TAKEN})
"""What something is still to become of."""

RETRIED = frozenset(
    {JobStatus.TERMINAL_INFRASTRUCTURE, JobStatus.TERMINAL_OPERATOR, JobStatus.CANCELLED}
)
"""What a person may put back; a behaviour ending is never run again."""

REFUSED = "refused"
"""The outcome of a try for which no run was registered."""

TRIES = 3
"""How many tries the machine may spoil before a job is left to a person."""

_FIRST_WAIT = timedelta(seconds=30)
_LONGEST_WAIT = timedelta(minutes=30)


@dataclass(frozen=True, slots=True)
class Job:
    """One row. The fields are the columns, in their order; what does not apply is empty.

    Attributes:
        job: its name, ``j1``, ``j2`` and so on.
        config: the folder of the config that it belongs to.
        attempt: the attempt's folder once there is one, ``attempt-001``.
        replay: the replay's, ``replay-001``.
        outcome: termination reason, last event or host fact of the latest try.
        exit: what ``orch`` would have ended with for the latest try.
        tries: tries that the machine has spoiled, at most ``TRIES``.
        not_before: a queued job is not taken before this time.
        priority: larger goes first; equals go by age.
        host: where it is, or was last, claimed.
        gpu: which GPUs it asks for, as ``gate.Asked`` has it; a place in the list of devices is
            looked up by the worker that takes the job.
        pid: the worker's.
        note: one line for people.
    """

    job: str
    kind: JobKind
    config: str
    attempt: str = ""
    replay: str = ""
    series: str = ""
    status: JobStatus = JobStatus.QUEUED
    outcome: str = ""
    exit: int | None = None
    tries: int = 0
    not_before: str = ""
    priority: int = 0
    host: str = ""
    gpu: str = ""
    pid: int | None = None
    created: str = ""
    updated: str = ""
    note: str = ""


COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(Job))
"""The header of ``queue.tsv``."""


class JobRequest(Strict):
    """What a job was asked to do, frozen before its row appears: ``queue/JOB.json``.

    Attributes:
        through: the last kind of job that follows by itself once this one has succeeded.
        task: the task's ``task.yaml``, absolute; for an exploration only.
        task_digest: what the pack was when the job was added; another one is refused.
        members: how many seeded replays were asked for together; they are declared before the
            first of them starts. None for the official one.
        follows: the job, if any, whose success asked for this one.
    """

    format: Literal[1] = 1
    job: str
    kind: JobKind
    through: JobKind
    official: bool = False
    gpu: str = ""
    task: str = ""
    task_digest: str = ""
    agent: str = ""
    model: str = ""
    effort: str = ""
    members: int | None = None
    follows: str = ""


class JobTry(Strict):
    """What is known of a job's latest try: ``queue/JOB.try.json``, written ahead of its steps.

    Attributes:
        run_id: the run that the try is about to register; empty before it is planned.
        again: why a person wants a stopped replay to be run again.
        waits: how often in a row somebody else had what the job needs.
    """

    format: Literal[1] = 1
    run_id: str = ""
    again: str = ""
    waits: int = 0


@dataclass(frozen=True, slots=True)
class JobEnding:
    """How a try ended. ``busy``: somebody else had what it needs, which is no failed try."""

    verdict: Verdict
    outcome: str
    exit: int
    note: str = ""
    busy: bool = False


_STATUS: Mapping[Verdict, JobStatus] = MappingProxyType(
    {
        Verdict.BEHAVIOR: JobStatus.TERMINAL_BEHAVIOR,
        Verdict.INFRASTRUCTURE: JobStatus.TERMINAL_INFRASTRUCTURE,
        Verdict.OPERATOR: JobStatus.TERMINAL_OPERATOR,
    }
)

EXITS: Mapping[Verdict, Exit] = MappingProxyType(
    {
        Verdict.BEHAVIOR: Exit.OK,
        Verdict.INFRASTRUCTURE: Exit.INFRASTRUCTURE,
        Verdict.OPERATOR: Exit.INTERRUPTED,
    }
)
"""What ``orch`` ends with for each class of ending."""


def stamp(moment: datetime) -> str:
    """Write a time of the queue: UTC to the millisecond."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def backoff(count: int) -> timedelta:
    """Say how long to wait after ``count`` failures in a row: 30 s, doubling up to 30 min."""
    doublings = min(max(count, 1) - 1, 16)
    return min(_FIRST_WAIT * (1 << doublings), _LONGEST_WAIT)


def settled(job: Job, ending: JobEnding, now: datetime, *, waits: int = 0) -> Job:
    """Book how a try ended.

    The machine's doing puts the job back, later each time, until its tries are spent. Behaviour and
    a person's stop are final.

    Args:
        waits: how often in a row somebody else had what it needs, this time included.
    """
    done = replace(
        job,
        status=_STATUS[ending.verdict],
        outcome=ending.outcome,
        exit=ending.exit,
        note=ending.note or job.note,
        pid=None,
        not_before="",
        updated=stamp(now),
    )
    if ending.verdict is not Verdict.INFRASTRUCTURE:
        return done
    tries = job.tries if ending.busy else job.tries + 1
    if tries >= TRIES:
        return replace(done, tries=tries)
    wait = backoff(waits if ending.busy else tries)
    return replace(done, tries=tries, status=JobStatus.QUEUED, not_before=stamp(now + wait))
