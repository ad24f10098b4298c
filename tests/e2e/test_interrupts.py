"""Ctrl-C and bugs of our own, at every moment: what is booked, and that nothing is left behind."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agents.scripted import ScriptedAgent
from orchestrator.cli.progress import Progress
from orchestrator.domain.roles import Phase
from orchestrator.errors import InterruptedByOperator, UsageError
from orchestrator.evidence.adoption import Adoption
from orchestrator.evidence.supervise import StopRequest
from orchestrator.pipeline import drive, jobs
from orchestrator.storage.layout import AttemptFolder
from orchestrator.storage.supervisor import is_supervised, supervising
from tests.e2e.rig import (
    PUBLISH,
    SUBMIT,
    THREE,
    Rig,
    events,
    final,
    kill_group,
    last,
    snapshot,
    until,
)

SLEEP = {"run": "echo '# changed' >> run.sh; sleep 300"}
Function = Callable[..., Any]


def break_in(monkeypatch: pytest.MonkeyPatch, target: str, act: Callable[[], None]) -> None:
    """Have ``act`` happen whenever the function ``target`` is called, just before it."""
    module, _, name = target.rpartition(".")
    original: Function = getattr(__import__(module, fromlist=[name]), name)

    def broken(*arguments: Any, **named: Any) -> Any:
        act()
        return original(*arguments, **named)

    monkeypatch.setattr(target, broken)


def names(run: Path) -> list[str]:
    return [event["event"] for event in events(run)]


def only(rig: Rig, pattern: str) -> Path:
    (found,) = rig.runs.glob(pattern)
    return found


# -- a stop that comes while no container is watched


@pytest.mark.parametrize(
    ("moment", "happened"),
    [
        ("orchestrator.phases.gate.tree_digest", "gate_started"),
        ("orchestrator.phases.replay.apply", "gate_passed"),
        ("orchestrator.phases.replay.collect_one", "collected"),
        ("orchestrator.phases.validate.save", "collected"),
    ],
)
def test_a_stop_between_two_containers_of_a_replay_counts(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, moment: str, happened: str
) -> None:
    attempt = rig.enter(rig.pack(THREE))
    stop = StopRequest()
    break_in(monkeypatch, moment, stop.ask)
    with rig.context(stop) as ctx, pytest.raises(InterruptedByOperator):
        rig.replay_in(ctx, attempt)
    replay = attempt / "replay-001"
    assert names(replay)[-2:] == [happened, "operator"]
    assert (replay / ".complete").exists()
    rig.nothing_left()


def test_a_stop_after_the_replay_starts_no_scoring(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = rig.enter(rig.pack(THREE))
    stop = StopRequest()
    break_in(monkeypatch, "orchestrator.pipeline.drive.finish", stop.ask)
    with rig.context(stop) as ctx, pytest.raises(InterruptedByOperator):
        jobs.replay(
            ctx,
            AttemptFolder(attempt),
            repeats=3,
            again=None,
            through=jobs.Through.SCORE,
            official=False,
        )
    assert [path.name for path in sorted(attempt.glob("replay-*"))] == ["replay-001"]
    assert final(attempt / "replay-001") == "validated"
    assert not list(attempt.glob("replay-*/score-*"))
    rig.nothing_left()


def test_a_stop_between_two_scores_counts(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = rig.enter(rig.pack(THREE))
    with rig.context() as ctx:
        replay = rig.replay_in(ctx, attempt)
    stop = StopRequest()
    break_in(monkeypatch, "orchestrator.phases.score.write_complete", stop.ask)
    with rig.context(stop) as ctx, pytest.raises(InterruptedByOperator):
        jobs.score(ctx, AttemptFolder(attempt).replay(1), reference_run=False, official=False)
    assert names(replay / "score-001")[-2:] == ["checkpoint_scored", "operator"]
    assert (replay / "score-001/.complete").exists()
    assert final(replay) == "validated"
    rig.nothing_left()


def explore_in(rig: Rig, stop: StopRequest, pack: Path) -> None:
    with rig.context(stop) as ctx:
        found, plan = jobs.plan_explore(
            ctx, pack, agent="scripted", model="none", effort="none", official=False
        )
        jobs.explore(ctx, found, plan)


def test_a_stop_before_the_exploration_makes_no_container(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = StopRequest()
    break_in(monkeypatch, "orchestrator.phases.explore.copy_pristine", stop.ask)
    with pytest.raises(InterruptedByOperator):
        explore_in(rig, stop, rig.pack())
    attempt = only(rig, "*/attempt-001")
    assert names(attempt) == ["registered", "operator"]
    assert last(attempt, "operator")["reason"] == "operator_interrupt"
    assert (attempt / ".complete").exists()
    rig.nothing_left()


def test_a_stop_during_a_capture_lets_the_submission_stand(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = StopRequest()
    break_in(monkeypatch, "orchestrator.evidence.taking.capture", stop.ask)
    explore_in(rig, stop, rig.pack(steps=SUBMIT))
    assert final(only(rig, "*/attempt-001")) == "submitted"
    rig.nothing_left()


# -- a stop while a judging container runs

ONE_CHECKPOINT = PUBLISH + "publish 10 0.5\n"
JUDGES = {"validate": ("validator", "replay-001"), "score": ("scorer", "replay-001/score-001")}


@pytest.mark.parametrize("phase", ["validate", "score"])
def test_a_stop_while_a_checkpoint_is_judged(rig: Rig, phase: str) -> None:
    script, run = JUDGES[phase]
    attempt = rig.enter(rig.pack(ONE_CHECKPOINT, **{script: "sleep 300\n"}))
    process = rig.start("replay", attempt)
    until(lambda: rig.runs_now(Phase(phase)))
    kill_group(process, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert final(attempt / run) == "operator"
    assert (attempt / run / ".complete").exists()
    rig.nothing_left()


@pytest.mark.parametrize("phase", ["validate", "score"])
def test_two_stops_while_a_checkpoint_is_judged_leave_it_to_the_background(
    rig: Rig, phase: str
) -> None:
    """A validation is done again there, a scoring ends as the person's doing."""
    script, run = JUDGES[phase]
    soon = {"validate": {"wall": "8s"}} if phase == "validate" else {}  # it is tried three times
    pack = rig.pack(ONE_CHECKPOINT, **{script: "sleep 300\n"}, **soon)
    attempt = rig.enter(pack)
    process = rig.start("replay", attempt)
    until(lambda: rig.runs_now(Phase(phase)))
    rig.leave(process)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    rig.settled(attempt / run)
    # This validator hangs over the anchor too: that is its own fault, not the checkpoint's.
    assert final(attempt / run) == {"validate": "infrastructure", "score": "operator"}[phase]
    assert "adopted" in (attempt / run / "lifecycle.jsonl").read_text()
    rig.nothing_left()


# -- a bug of our own


def fail() -> None:
    raise ValueError("a bug made by the test")


@pytest.mark.parametrize(
    "moment",
    [
        "orchestrator.evidence.supervise.host_oom_kills",
        "orchestrator.phases.replay.apply",
        "orchestrator.phases.replay._pin",
        "orchestrator.phases.replay.collect_one",
        "orchestrator.phases.validate._parse",
        "orchestrator.phases.score._parse",
        "orchestrator.phases.score._aggregate",
    ],
)
def test_a_bug_of_ours_is_booked_as_the_machines(
    rig: Rig,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    attempt = rig.enter(rig.pack(THREE))
    break_in(monkeypatch, moment, fail)
    done = rig.call("replay", attempt)
    assert done.code == 70
    monkeypatch.undo()
    assert "Traceback" in done.err
    assert "a bug made by the test" in done.err
    run = attempt / ("replay-001/score-001" if ".score." in moment else "replay-001")
    failed = last(run, "infrastructure")
    assert failed["fact"] == "orchestrator_failed"
    assert failed["message"] == "a bug made by the test"
    assert (run / ".complete").exists()
    rig.nothing_left()


@pytest.mark.parametrize("command", ["explore", "replay"])
def test_a_bug_while_a_container_runs_ends_it(
    rig: Rig,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    pack = rig.pack("sleep 300\n", steps=(SLEEP,))
    target = pack if command == "explore" else rig.enter(pack)
    monkeypatch.setattr(Progress, "beat", lambda *_: fail())
    done = rig.call(command, target)
    assert done.code == 70
    monkeypatch.undo()
    assert "Traceback" in done.err
    pattern = "scripted*/attempt-001" if command == "explore" else "patch*/attempt-001/replay-001"
    run = only(rig, pattern)
    assert last(run, "infrastructure")["fact"] == "orchestrator_failed"
    assert (run / ".complete").exists()
    rig.nothing_left()


def test_a_bug_of_an_agent_of_ours_is_no_early_exit(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = rig.pack()
    monkeypatch.setattr(ScriptedAgent, "run", lambda *_: fail())
    done = rig.call("explore", pack)
    assert done.code == 70
    monkeypatch.undo()
    assert "a bug made by the test" in done.err
    attempt = only(rig, "*/attempt-001")
    assert last(attempt, "infrastructure")["reason"] == "runtime_failure"
    assert (attempt / ".complete").exists()
    rig.nothing_left()


def test_whoever_comes_second_is_refused_by_the_lock(rig: Rig) -> None:
    attempt = rig.enter(rig.pack("exit 1\n"))
    with rig.context() as ctx:
        replay = rig.replay_in(ctx, attempt)
        before = snapshot(replay)
        folder = AttemptFolder(attempt).replay(1)
        until(lambda: not rig.keepers() and not is_supervised(replay))
        with supervising(replay), pytest.raises(UsageError, match="supervised by process"):
            drive.resume_replay(ctx, folder, Adoption())
    assert snapshot(replay) == before


def test_a_second_supervisor_touches_nothing(rig: Rig) -> None:
    """Two people who adopt the same run: one supervises, the other is told so."""
    attempt = rig.enter(rig.pack("touch /out/begun; until [ -e /out/go ]; do sleep 0.1; done\n"))
    process = rig.start("replay", attempt)
    replay = attempt / "replay-001"
    until((replay / "out/begun").exists)
    before = (replay / "lifecycle.jsonl").read_bytes()
    other = rig.call("replay", attempt)
    assert other.code == 64
    assert "has not ended" in other.err
    assert (replay / "lifecycle.jsonl").read_bytes() == before
    (replay / "out/go").touch()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert final(replay) == "no_checkpoint"
    rig.nothing_left()
