"""A process that works on a queue: ``python -m tests.integration.queue_child ROLE RUNS [COUNT]``.

What it did it prints, a line each.
"""

import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from orchestrator.adapters.system_clock import SystemClock
from orchestrator.domain.outcome import Verdict
from orchestrator.domain.queue import JobEnding
from orchestrator.storage.layout import RunsFolder
from orchestrator.storage.queue import Queue
from tests.unit.queue_help import new

NOTE = ('6 KiB\tof "note"\n\x1b[31m\\ = \u202e\u2028 é ' * 400)[: 6 * 1024]


def _say(line: str) -> None:
    print(line, flush=True)


def add_claim_finish(queue: Queue, count: int) -> None:
    """Add a job, take whatever is due, finish it; as often as is said."""
    for _ in range(count):
        (job,) = queue.add([new(note=NOTE)])
        _say(f"added {job.job}")
        claim = queue.claim()
        if claim is not None:
            _say(f"claimed {claim.job.job}")
            claim.settle(JobEnding(Verdict.BEHAVIOR, "validated", 0, NOTE))


def drain(queue: Queue, _count: int) -> None:
    """Take and finish jobs until none is due."""
    while (claim := queue.claim()) is not None:
        _say(f"claimed {claim.job.job}")
        claim.started("attempt-001", "replay-001")
        claim.settle(JobEnding(Verdict.BEHAVIOR, "validated", 0))


def hold(queue: Queue, _count: int) -> None:
    """Claim a job, then take the queue's lock and keep both."""
    claim = queue.claim()
    assert claim is not None
    with queue._changing():
        _say(f"claimed {claim.job.job}")
        signal.pause()


_ROLES: Mapping[str, Callable[[Queue, int], None]] = {
    "add_claim_finish": add_claim_finish,
    "drain": drain,
    "hold": hold,
}


if __name__ == "__main__":
    role, runs, *rest = sys.argv[1:]
    _ROLES[role](
        Queue(RunsFolder(Path(runs)), SystemClock(), _say, patience=600), int(*rest or ("0",))
    )
