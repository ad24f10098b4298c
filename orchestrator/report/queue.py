"""The queue as a person reads it: which jobs there are, where each stands, what comes next."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from orchestrator.domain.queue import TAKEN, Job, JobStatus

HEADINGS = ("job", "kind", "of", "status", "outcome", "tries", "priority", "worker", "note")


def cells(job: Job, *, orphan: bool) -> tuple[str, ...]:
    """Lay a job out under ``HEADINGS``.

    Args:
        orphan: whether its worker is gone.
    """
    return (
        job.job,
        job.kind,
        target(job),
        _status(job, orphan=orphan),
        job.outcome,
        str(job.tries),
        str(job.priority),
        f"{job.host} {job.pid}" if job.status in TAKEN else "",
        job.note,
    )


def target(job: Job) -> str:
    """Name what a job is about, as ids are written, with the member of its series."""
    place = "/".join(part for part in (job.config, job.attempt, job.replay) if part)
    return f"{place} ({job.series})" if job.series else place


def document(job: Job, *, orphan: bool) -> Mapping[str, Any]:
    """Put a job into a JSON document: its columns, and whether its worker is gone."""
    return {**asdict(job), "worker_gone": orphan}


def _status(job: Job, *, orphan: bool) -> str:
    if orphan:
        return f"{job.status} (its worker is gone)"
    if job.status is JobStatus.QUEUED and job.not_before:
        return f"{job.status} until {job.not_before}"
    return job.status
