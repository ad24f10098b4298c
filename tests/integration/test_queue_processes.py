"""Many processes on one queue: nothing lost, nothing done twice, nobody waits for the dead."""

import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from orchestrator.adapters.system_clock import SystemClock
from orchestrator.domain.queue import COLUMNS, JobStatus
from orchestrator.errors import InfrastructureError
from orchestrator.storage.layout import RunsFolder
from orchestrator.storage.queue import Queue
from orchestrator.storage.queue_table import Reader
from tests.integration.queue_child import NOTE
from tests.unit.queue_help import BEHAVED, new

HERE = Path(__file__).parents[2]


def _start(role: str, root: Path, count: int = 0) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tests.integration.queue_child", role, str(root), str(count)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=HERE,
    )


def _all_said(processes: "list[subprocess.Popen[str]]") -> list[str]:
    lines: list[str] = []
    for process in processes:
        out, err = process.communicate()
        assert process.returncode == 0, err
        lines += out.splitlines()
    return lines


def _queue(root: Path, patience: float = 30.0) -> Queue:
    return Queue(RunsFolder(root), SystemClock(), pytest.fail, patience=patience)


def test_QU_03_writers_at_once_lose_and_mix_nothing(tmp_path: Path) -> None:
    processes = [_start("add_claim_finish", tmp_path, 50) for _ in range(8)]
    looks = _watch(tmp_path, processes)
    said = Counter(_all_said(processes))
    # What one process added another may have taken; a last round takes what is left.
    last = _queue(tmp_path)
    while (claim := last.claim()) is not None:
        said[f"claimed {claim.job.job}"] += 1
        claim.settle(BEHAVED)
    names = {f"j{number}" for number in range(1, 401)}
    assert said == Counter([*(f"added {n}" for n in names), *(f"claimed {n}" for n in names)])
    jobs = last.read().jobs
    assert {job.job for job in jobs} == names
    assert {job.status for job in jobs} == {JobStatus.TERMINAL_BEHAVIOR}
    assert {job.note for job in jobs} == {NOTE}
    lines = RunsFolder(tmp_path).queue.read_bytes().removesuffix(b"\n").split(b"\n")
    assert len(lines) == 401
    assert {line.count(b"\t") for line in lines} == {len(COLUMNS) - 1}
    assert not RunsFolder(tmp_path).queue_quarantine.exists()
    assert looks > 0


def _watch(root: Path, processes: "list[subprocess.Popen[str]]") -> int:
    """Read the file, without a lock, while others write it; return how often it was looked at."""
    path, looks = RunsFolder(root).queue, 0
    seen: tuple[int, int] | None = None
    while any(process.poll() is None for process in processes):
        time.sleep(0.005)
        if not path.exists():
            continue
        found = path.stat()
        if (mark := (found.st_ino, found.st_mtime_ns)) != seen:
            seen, looks = mark, looks + 1
            data = path.read_bytes()
            assert data.endswith(b"\n")
            assert Reader().read(data).faults == ()
    return looks


def test_sixteen_workers_take_four_hundred_jobs_once_each(tmp_path: Path) -> None:
    queue = _queue(tmp_path)
    queue.add([new(priority=number % 5) for number in range(400)])
    said = _all_said([_start("drain", tmp_path) for _ in range(16)])
    assert sorted(said) == sorted(f"claimed j{number}" for number in range(1, 401))
    jobs = queue.read().jobs
    assert len(jobs) == 400
    assert {job.status for job in jobs} == {JobStatus.TERMINAL_BEHAVIOR}


def test_QU_06_a_killed_holder_keeps_neither_the_lock_nor_its_job(tmp_path: Path) -> None:
    queue = _queue(tmp_path)
    queue.add([new(), new()])
    with _holding(tmp_path) as process:
        with pytest.raises(InfrastructureError, match=f"by process {process.pid} on ") as kept:
            _queue(tmp_path, patience=0.1).claim()
        assert "queue.lock" in str(kept.value)
        assert queue.orphans() == ()
        process.kill()
        process.wait()
        # Free at once: neither of these waits for anything.
        impatient = _queue(tmp_path, patience=0.0)
        assert impatient.orphans() == ("j1",)
        assert impatient.take_over("j1") is not None
        claim = impatient.claim()
    assert claim is not None
    assert claim.job.job == "j2"


def test_a_holder_that_was_only_stopped_is_named_and_goes_on(tmp_path: Path) -> None:
    queue = _queue(tmp_path)
    queue.add([new()])
    with _holding(tmp_path) as process:
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(InfrastructureError, match=f"by process {process.pid} "):
            _queue(tmp_path, patience=0.1).add([new()])
        assert queue.orphans() == ()
        assert len(queue.read().jobs) == 1


class _holding:  # noqa: N801 - it reads as a statement
    """A process that holds the lock and a job, for as long as the block runs."""

    def __init__(self, root: Path) -> None:
        self._process = _start("hold", root)

    def __enter__(self) -> "subprocess.Popen[str]":
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "claimed j1\n"
        return self._process

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
