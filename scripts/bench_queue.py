"""Claims from a large queue: alone, beside another writer, and by a worker that just started.

Run: python scripts/bench_queue.py [ROWS]. Prints milliseconds; nothing is asserted.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from orchestrator.adapters.system_clock import SystemClock
from orchestrator.domain.queue import Job, JobKind, stamp
from orchestrator.storage.layout import RunsFolder
from orchestrator.storage.queue import Queue
from orchestrator.storage.queue_table import render, row_of

CLAIMS = 50


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        runs, clock = RunsFolder(Path(folder)), SystemClock()
        now = stamp(clock.utc())
        rows = (
            row_of(
                Job(
                    f"j{number}",
                    JobKind.EXPLORE,
                    "scripted__digits_class0__none__none__0123ab",
                    priority=number % 7,
                    created=now,
                    updated=now,
                    note="a note of some length, as they are",
                )
            )
            for number in range(1, count + 1)
        )
        data = render(rows)
        runs.queue.write_bytes(data)
        print(f"{count} rows, {len(data) / 1e6:.1f} MB")
        mine, other = (Queue(runs, clock, print) for _ in range(2))
        told("a claim, alone", [timed(mine.claim) for _ in range(CLAIMS)])
        beside = []
        for _ in range(CLAIMS):
            other.claim()
            beside.append(timed(mine.claim))
        told("a claim, after another process wrote", beside)
        fresh = [timed(Queue(runs, clock, print).claim) for _ in range(CLAIMS)]
        told("the first claim of a worker", fresh)


def timed(action: Callable[[], object]) -> float:
    """Return what an action takes, in milliseconds."""
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1000


def told(what: str, found: list[float]) -> None:
    found.sort()
    middle, high = statistics.median(found), found[int(len(found) * 0.95)]
    print(f"{what}: median {middle:.1f} ms, 95 of 100 under {high:.1f} ms")


if __name__ == "__main__":
    main()
