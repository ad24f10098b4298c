"""A claim on a job: what a worker may do with it, and with nothing else of the queue."""

import os
from dataclasses import dataclass, replace
from typing import Protocol, Self

from orchestrator.domain.queue import Job, JobEnding, JobRequest, JobStatus, JobTry
from orchestrator.storage.queue_files import JobFiles


@dataclass(frozen=True, slots=True)
class New:
    """A job to be added; it gets its name, here and in the request, when it is."""

    job: Job
    request: JobRequest


class Booking(Protocol):
    """The part of the queue that a claim writes to."""

    @property
    def files(self) -> JobFiles:
        """What lies beside the table."""
        ...

    def update(self, job: Job) -> Job:
        """Write a job's row anew."""
        ...

    def settle(self, job: Job, ending: JobEnding, follow: New | None) -> tuple[Job, ...]:
        """Book how a try of a job ended, and add what follows."""
        ...


class Claim:
    """A job that is ours until its end is booked, or until this process ends."""

    def __init__(self, queue: Booking, job: Job, descriptor: int) -> None:
        self._queue = queue
        self._descriptor: int | None = descriptor
        self.job = job

    @property
    def request(self) -> JobRequest:
        """What is to be done.

        Raises:
            TaskPackError: the record is missing or damaged.
        """
        return self._queue.files.request(self.job.job)

    @property
    def attempted(self) -> JobTry:
        """What the latest try was about to do."""
        return self._queue.files.latest_try(self.job.job)

    @property
    def cancelled(self) -> bool:
        """Whether somebody has asked to cancel it."""
        return self._queue.files.is_cancelled(self.job.job)

    def intend(self, run_id: str) -> None:
        """Put down which run is about to be registered, before it is."""
        self._queue.files.put_try(self.job.job, run_id=run_id)

    def started(self, attempt: str, replay: str = "", note: str = "") -> None:
        """Book where the run lies that the job has now."""
        self.job = self._queue.update(
            replace(
                self.job,
                status=JobStatus.RUNNING,
                attempt=attempt,
                replay=replay,
                note=note,
            )
        )

    def settle(self, ending: JobEnding, follow: New | None = None) -> tuple[Job, ...]:
        """Book how the try ended, and in the same write add what follows from it; let go.

        Returns:
            The job, and the one that follows.
        """
        with self:
            return self._queue.settle(self.job, ending, follow)

    def release(self) -> None:
        """Let go of it; a row that still says it is taken is an orphan's from now on."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
