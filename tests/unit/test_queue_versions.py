"""A job that another version asked for stays as it is, and keeps nobody from the others."""

import json
from pathlib import Path

import pytest

from orchestrator.domain.queue import JobStatus
from orchestrator.pipeline.work import _is_anything_left
from tests.unit.queue_help import BEHAVED, Scene


@pytest.mark.parametrize("record", ["json", "try.json"])
def test_a_job_of_another_version_is_passed_over(tmp_path: Path, record: str) -> None:
    scene = Scene(tmp_path)
    scene.add(5, 0)
    path = scene.runs.queue_jobs / f"j1.{record}"
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | {"format": 2}))
    before = path.read_bytes(), scene.lines()[0]

    claim = scene.take()
    assert claim.job.job == "j2"
    claim.settle(BEHAVED)
    assert scene.queue.claim() is None
    (said,) = scene.said
    assert f"{path} has format 2, this orch reads format 1" in said
    assert (path.read_bytes(), scene.lines()[0]) == before
    assert scene.queue.job("j1").status is JobStatus.QUEUED
    assert not _is_anything_left(scene.queue), "a worker does not wait for it"
