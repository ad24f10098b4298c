"""The scorer reads what the validator accepted, and validation ends in time."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.adapters.in_memory import Inside
from orchestrator.domain.roles import Phase
from orchestrator.errors import AssetMismatchError
from orchestrator.evidence.context import Context
from orchestrator.lifecycle.machine import State
from orchestrator.pipeline import jobs
from orchestrator.sandbox import PHASE_LABEL
from orchestrator.storage.campaign import CampaignEvent, read_campaign
from orchestrator.storage.layout import AttemptFolder, ReplayFolder
from tests.integration.memory_bench import Bench, Clock, program_of_three, state_of


def _replayed(bench: Bench, base: Path) -> tuple[Context, ReplayFolder]:
    """Explore, and replay through validation."""
    base.mkdir()
    ctx = bench.context(base, Clock())
    pack, plan = jobs.plan_explore(
        ctx, bench.pack, agent="scripted", model="none", effort="none", official=False
    )
    attempt: AttemptFolder = jobs.explore(ctx, pack, plan)[0]
    through = jobs.Through.VALIDATE
    (done,) = jobs.replay(ctx, attempt, repeats=None, again=None, through=through, official=False)
    assert done.state is State.TERMINAL_BEHAVIOR
    return ctx, done.folder


def _swap(path: Path) -> None:
    """Put other bytes of the same length and time in place of a checkpoint's."""
    status = path.stat()
    path.chmod(0o644)
    path.write_bytes(b"0.9")
    path.chmod(0o444)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _has_no_result(ctx: Context, replay: ReplayFolder) -> None:
    (scoring,) = replay.scorings()
    assert state_of(scoring) is State.SCORE_FAILED
    assert not scoring.summary.exists()
    assert not list(scoring.root.glob("checkpoint-*/out/*"))
    assert [p.parent.name for p in scoring.root.rglob(".complete")] == ["score-001"]


def test_bytes_that_changed_after_validation_are_not_scored(tmp_path: Path) -> None:
    ctx, replay = _replayed(Bench(tmp_path), tmp_path / "base")
    _swap(replay.checkpoints / "checkpoint-20/weights.txt")
    with pytest.raises(AssetMismatchError, match="the validator accepted"):
        jobs.score(ctx, replay, reference_run=False, official=False)
    _has_no_result(ctx, replay)
    records = read_campaign(ctx.runs.campaign).records
    assert CampaignEvent.FINAL_MOUNTED not in {record.event for record in records}


def test_bytes_that_change_while_they_are_scored_give_no_score(tmp_path: Path) -> None:
    def swapping(inside: Inside) -> int:
        if inside.spec.labels[PHASE_LABEL] == Phase.SCORE:
            _swap(inside.host_path("/ckpt/weights.txt"))
        return program_of_three(inside)

    ctx, replay = _replayed(Bench(tmp_path, swapping), tmp_path / "base")
    with pytest.raises(AssetMismatchError, match="was touched while it was scored"):
        jobs.score(ctx, replay, reference_run=False, official=False)
    _has_no_result(ctx, replay)


def _publishing(count: int, judge: Callable[[Inside], int]) -> Callable[[Inside], int]:
    """Publish ``count`` bad checkpoints, and have ``judge`` look at each."""

    def program(inside: Inside) -> int:
        match inside.spec.labels[PHASE_LABEL]:
            case Phase.REPLAY:
                for number in range(1, count + 1):
                    name = f"/out/checkpoints/checkpoint-{number}/weights.txt"
                    inside.write_file(name, b"bad")
                return 0
            case Phase.VALIDATE:
                return judge(inside)
            case _:
                return program_of_three(inside)

    return program


def _judged(replay: ReplayFolder) -> list[tuple[str, str]]:
    found = json.loads(replay.artifacts.read_text())["artifacts"]
    return [(a["name"], a["reason"]) for a in found]


def test_at_most_sixteen_bad_checkpoints_are_examined_within_one_wall(tmp_path: Path) -> None:
    looked: list[str] = []

    def slow(inside: Inside) -> int:
        looked.append(inside.spec.name)
        inside.clock.advance(50)
        return program_of_three(inside)

    walls = {"wall": "100s", "total_wall": "180s"}
    bench = Bench(tmp_path, _publishing(500, slow), validate=walls)
    _, replay = _replayed(bench, tmp_path / "base")
    judged = _judged(replay)
    assert [name for name, _ in judged] == [f"checkpoint-{n}" for n in range(500, 484, -1)]
    assert [reason for _, reason in judged[:3]] == ["bad_weights"] * 3
    assert {reason for _, reason in judged[4:]} == {"validation_wall_used_up"}
    assert len(looked) == 4


def test_a_checkpoint_that_uses_the_last_of_the_wall_up_is_no_fault_of_the_machine(
    tmp_path: Path,
) -> None:
    def endless(inside: Inside) -> int:
        if inside.host_path("/ckpt").name.startswith("checkpoint-"):
            inside.clock.advance(200)
            inside.until_killed()
        return program_of_three(inside)

    walls = {"wall": "100s", "total_wall": "150s"}
    bench = Bench(tmp_path, _publishing(2, endless), validate=walls)
    _, replay = _replayed(bench, tmp_path / "base")
    assert {reason for _, reason in _judged(replay)} == {"validation_wall_used_up"}
    assert state_of(replay) is State.TERMINAL_BEHAVIOR
