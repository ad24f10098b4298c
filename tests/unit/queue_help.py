"""A queue in a folder of its own, with jobs that nothing stands behind."""

import fcntl
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.adapters.fake_clock import FakeClock
from orchestrator.domain.outcome import Verdict
from orchestrator.domain.queue import Job, JobEnding, JobKind, JobRequest
from orchestrator.storage.layout import RunsFolder
from orchestrator.storage.queue import Queue
from orchestrator.storage.queue_claim import Claim, New

BEHAVED = JobEnding(Verdict.BEHAVIOR, "validated", 0)
BROKE = JobEnding(Verdict.INFRASTRUCTURE, "gpu_lost", 75, "the GPU is gone")
STOPPED = JobEnding(Verdict.OPERATOR, "operator_interrupt", 130)
BUSY = JobEnding(Verdict.INFRASTRUCTURE, "resources_busy", 75, "gpu busy", busy=True)


@dataclass
class Scene:
    """A queue, its clock, and what it said."""

    root: Path
    clock: FakeClock = field(default_factory=FakeClock)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.runs = RunsFolder(self.root)
        self.queue = self.another()

    def another(self, patience: float = 30.0) -> Queue:
        """The same queue as another process sees it."""
        return Queue(self.runs, self.clock, self.said.append, patience=patience)

    def add(self, *priorities: int) -> list[str]:
        """Add jobs of these priorities; return their names."""
        return [self.queue.add([new(priority=priority)])[0].job for priority in priorities]

    def take(self) -> Claim:
        """Claim what is due."""
        claim = self.queue.claim()
        assert claim is not None
        return claim

    def text(self) -> str:
        """What ``queue.tsv`` holds."""
        return self.runs.queue.read_text(encoding="utf-8")

    def lines(self) -> list[str]:
        """Its rows."""
        return self.text().removesuffix("\n").split("\n")[1:]


def new(kind: JobKind = JobKind.REPLAY, *, priority: int = 0, note: str = "") -> New:
    """A job about an attempt that does not exist."""
    job = Job("", kind, "config", "attempt-001", series="official", priority=priority, note=note)
    return New(job, JobRequest(job="", kind=kind, through=JobKind.SCORE))


def is_free(path: Path) -> bool:
    """Tell whether nobody holds the lock at ``path``."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False
    finally:
        os.close(descriptor)
