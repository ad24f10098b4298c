"""Every prefix of what the queue does to the disk: no job is lost, none is run for nothing."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchestrator.domain.queue import JobEnding, JobKind, JobStatus
from orchestrator.storage import durable
from orchestrator.storage.queue_claim import Claim, New
from orchestrator.storage.queue_table import HEADER
from tests.integration.recorded_disk import Operation, crashes, recording, write_out
from tests.unit.queue_help import BEHAVED, BROKE, STOPPED, Scene, new


@dataclass
class Story:
    """What was done to a queue, and after which operation each step was acknowledged."""

    operations: list[Operation] = field(default_factory=list)
    acknowledged: list[tuple[int, dict[str, JobStatus]]] = field(default_factory=list)

    def note(self, scene: Scene) -> None:
        """Put down what the caller has been told so far."""
        known = {job.job: job.status for job in scene.queue.read().jobs}
        self.acknowledged.append((len(self.operations), known))

    def told(self, at: int) -> dict[str, JobStatus]:
        """What had been acknowledged when operation ``at`` was done."""
        return next((known for when, known in reversed(self.acknowledged) if when <= at), {})

    def allowed(self, at: int) -> list[dict[str, JobStatus]]:
        """What a table may say then: the last that was acknowledged, or the step under way."""
        later = next((known for when, known in self.acknowledged if when > at), None)
        return [self.told(at), *([] if later is None else [later])]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    base = tmp_path_factory.mktemp("story")
    story = Story()
    with recording(base, lambda _: False) as operations:
        story.operations = operations
        durable.make_folder(base / "runs")
        scene = Scene(base / "runs")
        for step in _steps(scene):
            step()
            story.note(scene)
        scene.runs.queue.write_text(scene.text() + "torn\tro")
        # Written by hand, past the recorder: it is told what is on the disk now.
        data = scene.runs.queue.read_bytes()
        operations.append(Operation("write", "runs/queue.tsv", "", data=data))
        operations.append(Operation("fsync", "runs/queue.tsv", ""))
        scene.add(0)
        story.note(scene)
    return story


def _steps(scene: Scene) -> Iterator[Callable[[], object]]:
    """Everything that a queue goes through, one write of the table after the other."""
    held: list[Claim] = []

    def take() -> None:
        held.append(scene.take())

    def settle(ending: JobEnding, *follow: New) -> Callable[[], object]:
        return lambda: held.pop().settle(ending, *follow)

    yield lambda: scene.queue.add([new(JobKind.EXPLORE), new(JobKind.EXPLORE, priority=1)])
    yield take
    yield lambda: held[0].intend("0123abcd")
    yield lambda: held[0].started("attempt-001")
    yield settle(BEHAVED, new(JobKind.REPLAY, priority=2))
    yield take
    yield settle(BROKE)
    scene.clock.advance(60)
    yield take
    yield settle(STOPPED)
    yield lambda: scene.queue.retry("j3", "again")
    yield lambda: scene.queue.cancel("j3")


def test_every_prefix_of_the_queues_writes_loses_no_job(
    story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _: None)
    seen: set[int] = set()
    for number, crash in enumerate(crashes(story.operations)):
        key = hash((crash.at, frozenset(crash.tree.items())))
        if key in seen:
            continue
        seen.add(key)
        root = tmp_path / str(number)
        root.mkdir()
        write_out(crash.tree, root)
        try:
            (root / "runs").mkdir(exist_ok=True)
            _goes_on(Scene(root / "runs"), story, crash.at)
        except BaseException as failure:
            failure.add_note(f"after {crash.at} ({crash.what}), power lost: {crash.power}")
            raise
    print(f"{len(story.operations)} operations, {len(seen)} different trees")
    assert len(seen) > 100


def _goes_on(scene: Scene, story: Story, at: int) -> None:
    queue = scene.queue
    found = {job.job: job.status for job in queue.read().jobs}
    assert found in story.allowed(at)
    before = set(found)
    # The next command finds every worker dead.
    for name in queue.orphans():
        claim = queue.take_over(name)
        assert claim is not None
        assert queue.files.request(name).job == name
        claim.settle(BROKE)
    queue.tidy()
    queue.add([new(JobKind.SCORE)])
    scene.clock.advance(10**6)
    while (claim := queue.claim()) is not None:
        assert claim.request.job == claim.job.job, "a row without what it is to do"
        claim.settle(BEHAVED)
    after = {job.job: job.status for job in queue.read().jobs}
    assert before < set(after), "a job was lost, or its name given away"
    ended = {name: status for name, status in found.items() if status.startswith(("term", "canc"))}
    assert ended.items() <= after.items(), "a job that had ended was run again"
    assert all(status is not JobStatus.QUEUED for status in after.values())
    assert scene.text().startswith(HEADER + "\n")
    assert not list(scene.root.rglob(".*.tmp"))
