"""A supervisor dies and another one goes on: one container, one result, and the receipt says so.

What a supervisor that is gone leaves when nobody watched either is in test_engine_cases.py (DK-07),
the watchdog by itself in tests/unit/test_watchdog.py, clock steps in test_time_cases.py (TM-01).
"""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from orchestrator.adapters.fake_clock import FakeClock
from orchestrator.adapters.in_memory import InMemoryEngine, Inside
from orchestrator.adapters.system_clock import SystemClock
from orchestrator.domain.outcome import HostFact, StopReason
from orchestrator.domain.roles import Phase
from orchestrator.errors import ContainerLeftRunning, EngineUnavailableError
from orchestrator.evidence.adoption import Adoption
from orchestrator.evidence.context import Context
from orchestrator.evidence.kills import KillLedger
from orchestrator.evidence.supervise import StopRequest
from orchestrator.pipeline.reconcile import reconcile, take_over
from orchestrator.ports import Container
from orchestrator.storage.layout import ReplayFolder
from orchestrator.storage.ledger import Claim
from orchestrator.storage.supervisor import holders
from receipts.envelope import parse_envelope
from tests.contract.breaking_proxy import BreakingProxy
from tests.e2e.rig import PUBLISH, Rig, events, final, has, kill_group, last, snapshot, until
from tests.e2e.simulated import NoGuards, SteppingClock, simulated

UNTIL_TOLD = PUBLISH + "publish 10 0.5\nuntil [ -e /out/go ]; do sleep 0.1; done\npublish 20 0.7\n"
SLEEP = PUBLISH + "publish 10 0.5\nsleep 300\n"
WORKING = ({"run": "echo '# changed' >> run.sh; echo begun > /out/begun; sleep 300"},)
ENGINE = Path("/var/run/docker.sock")


def _start(rig: Rig, run: str = UNTIL_TOLD, *words: str, **changes: Any) -> tuple[Any, Path]:
    """Start a replay; return its process and its folder once the command runs."""
    attempt = rig.enter(rig.pack(run, **changes))
    process = rig.start("replay", attempt, *words)
    folder = attempt / "replay-001"
    until((folder / "out/checkpoints/checkpoint-10/weights.txt").exists)
    return process, folder


def _kill(process: "subprocess.Popen[bytes]") -> None:
    kill_group(process)
    process.communicate(timeout=30)


def _adoptions(run: Path) -> list[dict[str, Any]]:
    noted = [line["data"] for line in events(run) if line["event"] == "noted"]
    return [data for data in noted if data["audit"] == "adopted"]


def _adopted(run: Path, times: int = 1) -> int:
    """Wait until a run was taken over so many times; return the pid that has it now."""
    until(lambda: len(_adoptions(run)) >= times)
    pid = _adoptions(run)[-1]["pid"]
    assert holders(run).supervisor == pid
    return int(pid)


def _one_result(rig: Rig, replay: Path, container: str, *, takings: int) -> None:
    """Check that a replay ended as if nothing had happened, and that its receipts say what did."""
    rig.settled(replay / "score-001")
    rig.settled(replay)
    assert [path.name for path in replay.parent.glob("replay-*")] == ["replay-001"]
    assert [line["event"] for line in events(replay)].count("run_started") == 1
    assert last(replay, "run_started")["container"] == container
    seen = last(replay, "exited")
    assert (seen["exit"]["exit_code"], seen["exit"]["killed_by"]) == (0, "nobody")
    assert seen["exit"]["started_at"] < _adoptions(replay)[0]["gap_to"]
    assert seen["host_facts"] == []
    assert seen["contested"] == ["observation_gap"]
    accepted = [row["name"] for row in last(replay, "validated")["accepted"]]
    assert accepted == ["checkpoint-20", "checkpoint-10"]
    assert final(replay / "score-001") == "scored"
    assert rig.call("show", replay).out.count("without a supervisor: ") == takings
    (receipt,) = (replay / "receipts").glob("*-replay.json")
    said = _said(receipt)["adopted"]
    assert len(said) == len(_adoptions(replay)) == takings
    assert all(gap["gap_s"] > 0 and gap["uid"] == os.geteuid() for gap in said)
    verified = rig.call("verify", replay)
    assert verified.code == 3, verified.out  # consistent; no key was given to authenticate it by
    rig.nothing_left()


def _said(receipt: Path) -> dict[str, Any]:
    payload = parse_envelope(receipt.read_bytes()).payload
    return dict(json.loads(payload)["predicate"]["outcome"]["details"])


def _reserved(rig: Rig) -> list[str]:
    return [held.run_id for held in rig.reserved()]


def test_a_killed_supervisor_is_replaced_at_once(rig: Rig) -> None:
    process, replay = _start(rig)
    (container,) = rig.containers()
    ours = [events(replay)[0]["id"]]
    _kill(process)
    assert _reserved(rig) == ours
    pid = _adopted(replay)
    assert _reserved(rig) == ours
    (noted,) = _adoptions(replay)
    assert noted["by"] == "watchdog"
    assert [found.id for found in rig.containers()] == [container.id]
    other = rig.call("replay", replay.parent)
    assert other.code == 64
    assert "has not ended" in other.err
    assert f"process {pid}" in other.err
    (replay / "out/go").touch()
    _one_result(rig, replay, container.id, takings=1)


def test_supervisor_and_watchdog_killed_any_writing_command_has_it_gone_on_with(rig: Rig) -> None:
    process, replay = _start(rig)
    (container,) = rig.containers()
    rig.kill_for_good(process, replay)
    until(lambda: _reserved(rig) == [])
    other = rig.call("submit-patch", rig.root / "pack", rig.root / "note.patch")
    assert other.code == 0
    assert "has no supervisor" in other.err
    assert "in the background" in other.err
    _adopted(replay)
    assert _reserved(rig) == [events(replay)[0]["id"]]
    (replay / "out/go").touch()
    _one_result(rig, replay, container.id, takings=1)


def test_the_adopter_killed_too_is_replaced_as_well(rig: Rig) -> None:
    process, replay = _start(rig)
    (container,) = rig.containers()
    _kill(process)
    os.kill(_adopted(replay), signal.SIGKILL)
    os.kill(_adopted(replay, 2), signal.SIGKILL)
    _adopted(replay, 3)
    assert _reserved(rig) == [events(replay)[0]["id"]]
    (replay / "out/go").touch()
    _one_result(rig, replay, container.id, takings=3)


def test_an_adopter_is_told_to_stop_by_an_interrupt_alone(rig: Rig) -> None:
    """A host that shuts down terminates everybody; nobody has wished the run to end by that."""
    process, replay = _start(rig)
    _kill(process)
    os.kill(_adopted(replay), signal.SIGTERM)
    os.kill(_adopted(replay, 2), signal.SIGINT)
    rig.settled(replay)
    assert final(replay) == "operator"
    assert last(replay, "exited")["exit"]["stop_reason"] == "operator"
    rig.nothing_left()


def test_the_deadline_holds_while_nobody_is_at_a_terminal(rig: Rig) -> None:
    process, replay = _start(rig, SLEEP, replay={"wall": "6s"})
    _kill(process)
    rig.settled(replay / "score-001")
    seen = last(replay, "exited")["exit"]
    assert seen["stop_reason"] == "deadline"
    assert seen["killed_by"] == "orchestrator"
    assert 6 - 2 <= seen["duration_s"] <= 6 + 5  # making the container takes its share
    assert final(replay) == "validated"
    rig.nothing_left()


def test_what_is_published_after_a_deadline_that_nobody_held_is_ignored(rig: Rig) -> None:
    late = PUBLISH + "publish 10 0.5\nsleep 10\npublish 20 0.7\nsleep 300\n"
    process, replay = _start(rig, late, replay={"wall": "8s"})
    rig.kill_for_good(process, replay)
    until((replay / "out/checkpoints/checkpoint-20").exists)
    rig.call("score", "nothing")
    rig.settled(replay / "score-001")
    collected = last(replay, "collected")
    assert [row["name"] for row in collected["checkpoints"]] == ["checkpoint-10"]
    assert [row["name"] for row in collected["ignored"]] == ["checkpoint-20"]
    assert last(replay, "exited")["exit"]["stop_reason"] == "deadline"
    rig.nothing_left()


def test_how_far_the_dead_command_was_to_go_is_kept_to(rig: Rig) -> None:
    process, replay = _start(rig, UNTIL_TOLD, "--through", "validate")
    _kill(process)
    (replay / "out/go").touch()
    rig.settled(replay)
    assert final(replay) == "validated"
    assert not list(replay.glob("score-*"))
    rig.nothing_left()


def test_a_replay_left_running_by_a_second_ctrl_c_goes_on_in_the_background(rig: Rig) -> None:
    process, replay = _start(rig)
    (container,) = rig.containers()
    rig.leave(process)
    assert process.wait(60) == 130
    assert b"leaving it to the background" in process.communicate()[1]
    _adopted(replay)
    (replay / "out/go").touch()
    _one_result(rig, replay, container.id, takings=1)


@pytest.mark.parametrize("how", ["killed", "left"])
def test_QU_06_DK_07_an_exploration_whose_agent_died_is_ended_and_its_tree_kept(
    rig: Rig, how: str
) -> None:
    """The agent lived in the supervisor: there is nobody to go on with."""
    process = rig.start("explore", rig.pack(steps=WORKING))
    attempt = until(lambda: next(iter(rig.runs.glob("*/attempt-001")), None))
    until((attempt / "out/begun").exists)
    if how == "killed":
        _kill(process)
    else:
        rig.leave(process)
        process.communicate(timeout=60)
    rig.settled(attempt)
    event, reason = {
        "killed": ("infrastructure", "runtime_failure"),
        "left": ("operator", "operator_interrupt"),
    }[how]
    assert last(attempt, event)["reason"] == reason
    assert "what the agent left is in kept/" in last(attempt, event)["message"]
    assert "# changed" in (attempt / "kept/workspace/run.sh").read_text()
    assert len(_adoptions(attempt)) == 1
    (receipt,) = (attempt / "receipts").iterdir()
    assert len(_said(receipt)["adopted"]) == 1
    rig.nothing_left()


def test_a_submission_that_was_accepted_is_completed_at_once(rig: Rig) -> None:
    never_read = (
        {"run": "mkdir empty; echo more >> run.sh"},
        {
            "run": """\
cd /run/orch
echo '{"id": "aa", "action": "submit"}' > .t && mv .t request-aa.json
sleep 60
"""
        },
    )
    process = rig.start("explore", rig.pack(steps=never_read))
    (found,) = until(lambda: list(rig.runs.glob("*/attempt-001/candidate/submission.json")))
    _kill(process)
    attempt = rig.settled(found.parent.parent)
    assert final(attempt) == "submitted"
    assert set(last(attempt, "captured")["contested"]) <= {"observation_gap"}
    rig.nothing_left()


@pytest.mark.parametrize(
    ("reason", "facts", "ending", "sent"),
    [
        (StopReason.DEADLINE, (), "validated", True),
        (StopReason.OPERATOR, (), "operator", True),
        (StopReason.HOST_FACT, (HostFact.DEVICE_LOST,), "infrastructure", True),
        (StopReason.OPERATOR, (), "operator", False),
    ],
)
def test_a_supervisor_that_died_killing_is_known_by_its_deed(
    rig: Rig, reason: StopReason, facts: tuple[HostFact, ...], ending: str, sent: bool
) -> None:
    """Between our signal and the event that tells of it; or between its note and the signal."""
    process, replay = _start(rig, SLEEP)
    rig.kill_for_good(process, replay)
    (container,) = rig.containers()
    dying = KillLedger.recall(replay / "kills.jsonl")
    dying.kill(container if sent else _Spared(container), reason, facts)
    rig.call("replay", replay.parent, "--through", "validate")
    seen = last(replay, "exited")
    assert seen["exit"]["killed_by"] == "orchestrator"
    assert seen["exit"]["stop_reason"] == reason
    assert seen["host_facts"] == [fact.value for fact in facts]
    assert final(replay) == ending
    rig.nothing_left()


class _Spared:
    """A container that the signal does not reach."""

    def __init__(self, container: Container) -> None:
        self.id = container.id

    def kill(self, signal: str = "KILL") -> None:
        pass


def test_a_kill_by_somebody_else_while_nobody_watched_is_the_machines(rig: Rig) -> None:
    process, replay = _start(rig, SLEEP)
    rig.kill_for_good(process, replay)
    (container,) = rig.containers()
    container.kill()
    rig.call("replay", replay.parent, "--through", "validate")
    assert last(replay, "exited")["exit"]["killed_by"] == "third_party"
    assert last(replay, "infrastructure")["fact"] == "killed_by_third_party"
    rig.settled(replay)


def test_reading_commands_judge_nothing_and_write_nothing(rig: Rig) -> None:
    process, replay = _start(rig)
    rig.kill_for_good(process, replay)
    before = snapshot(rig.runs)
    for words in (
        ("status",),
        ("status", "--json"),
        ("show", replay),
        ("lifecycle", replay),
        ("logs", replay),
        ("verify", replay),
        ("campaign", "show"),
    ):
        rig.call(*words)
        assert snapshot(rig.runs) == before, words
    (container,) = rig.containers()
    assert container.state().status == "running"
    (replay / "out/go").touch()
    rig.replay(replay.parent)
    rig.nothing_left()


# -- an engine that is another one, is away, or hangs


def _untouched(rig: Rig, replay: Path, act: Callable[[], object]) -> None:
    """Check that nothing of a live run is judged by what ``act`` does, and let it end."""
    before = (replay / "lifecycle.jsonl").read_bytes()
    act()
    assert (replay / "lifecycle.jsonl").read_bytes() == before
    (replay / "out/go").touch()
    assert rig.replay(replay.parent) == replay
    assert final(replay) == "validated"
    assert last(replay, "exited")["host_facts"] == []
    rig.nothing_left()


def test_a_live_run_is_not_lost_for_another_engine(rig: Rig) -> None:
    process, replay = _start(rig)
    rig.kill_for_good(process, replay)
    said: list[str] = []

    def elsewhere() -> None:
        with rig.context() as ctx:
            other = InMemoryEngine(images={}, clock=FakeClock())
            reconcile(replace(ctx, engine=other, say=said.append))
        assert any("belongs to engine" in line for line in said)

    _untouched(rig, replay, elsewhere)


def test_a_live_run_is_not_lost_while_no_engine_answers(rig: Rig) -> None:
    process, replay = _start(rig)
    rig.kill_for_good(process, replay)
    nowhere = Rig(rig.root, {**rig.variables, "DOCKER_HOST": f"unix://{rig.root}/nowhere.sock"})

    def away() -> None:
        assert nowhere.orch("replay", replay.parent).code == 69
        assert nowhere.orch("score", replay).code == 69

    _untouched(rig, replay, away)


class _Away(InMemoryEngine):
    """An engine that answered who it is, and then no more."""

    def __init__(self, real: Any) -> None:
        self._real = real

    @override
    def identity(self) -> Any:
        return self._real.identity()

    @override
    def find(self, labels: Any) -> Any:
        raise EngineUnavailableError("the engine does not answer")


def test_an_engine_that_goes_away_while_a_run_is_taken_over_judges_nothing(rig: Rig) -> None:
    process, replay = _start(rig)
    rig.kill_for_good(process, replay)

    def gone() -> None:
        with rig.context() as ctx:
            reconcile_away = replace(ctx, engine=_Away(ctx.engine))
            with pytest.raises(EngineUnavailableError):
                reconcile(reconcile_away)

    _untouched(rig, replay, gone)


class _Deaf:
    """An engine, or a container of it, that tells how things stand and lets nobody listen."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def find(self, labels: Any) -> Any:
        return tuple(map(_Deaf, self._real.find(labels)))

    def adopt(self, *_: Any) -> None:
        raise EngineUnavailableError("the engine does not answer")


def test_a_container_that_cannot_be_listened_to_keeps_its_folders(rig: Rig) -> None:
    process, replay = _start(rig)
    rig.kill_for_good(process, replay)

    def deaf() -> None:
        with rig.context() as ctx:
            there = replace(ctx, engine=_Deaf(ctx.engine), guards=NoGuards())
            with pytest.raises(EngineUnavailableError):
                take_over(there, ReplayFolder(replay), Adoption())

    _untouched(rig, replay, deaf)


@contextmanager
def _behind_a_proxy(rig: Rig) -> Iterator[tuple[Rig, BreakingProxy]]:
    path = Path(f"/tmp/orch-adoption-{os.getpid()}.sock")
    with BreakingProxy(path, ENGINE) as proxy:
        yield Rig(rig.root, {**rig.variables, "DOCKER_HOST": f"unix://{path}"}), proxy


def test_an_engine_that_hangs_holds_up_no_deadline_for_longer_than_it_hangs(rig: Rig) -> None:
    with _behind_a_proxy(rig) as (behind, proxy):
        process, replay = _start(behind, SLEEP, replay={"wall": "10s"})
        rows = replay / "telemetry.jsonl"  # it is watched: the start has been answered
        until(lambda: rows.exists() and rows.read_text().count("\n") > 3)
        proxy.stall()
        deadline = int(last(replay, "run_started")["deadline_boottime_ns"])
        until(lambda: SystemClock().boottime_ns() > deadline)
        assert (until((replay / "kills.jsonl").exists)) is True  # by its own clock, in time
        proxy.go_on()
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
    seen = last(replay, "exited")
    assert seen["exit"]["stop_reason"] == "deadline"
    assert seen["exit"]["killed_by"] == "orchestrator"
    assert seen["host_facts"] == []
    assert final(replay) == "validated"
    rig.nothing_left()


def test_a_supervisor_that_dies_while_the_engine_is_away_is_replaced_when_it_is_back(
    rig: Rig,
) -> None:
    with _behind_a_proxy(rig) as (behind, proxy):
        process, replay = _start(behind)
        proxy.cut()
        _kill(process)
        log = replay / "logs/adopter.log"
        until(lambda: log.exists() and log.read_text().count("no container engine") > 1)
        assert final(replay) == "run_started"
        proxy.mend()
        _adopted(replay)
        assert _adoptions(replay)[0]["gap_s"] > 2  # since the death, not since the last try
        (replay / "out/go").touch()
        rig.settled(replay / "score-001")
    assert final(replay) == "validated"
    rig.nothing_left()


# -- an engine that restarts, and a wall clock that is set, while nobody watches


@contextmanager
def _left(
    rig: Rig, meanwhile: Callable[[InMemoryEngine, SteppingClock], None]
) -> Iterator[tuple[Context, Path]]:
    """Leave a simulated replay of ten seconds, let something happen, and take it over."""
    attempt = rig.enter(rig.pack(replay={"wall": "10s"}))
    clock, stop = SteppingClock(), StopRequest()

    def leave(inside: Inside) -> int:
        for _ in range(2):
            stop.ask()
        return inside.until_killed()

    with rig.context(stop) as ctx:
        fake, engine = simulated(ctx, leave, clock)
        with pytest.raises(ContainerLeftRunning):
            rig.replay_in(fake, attempt)
        meanwhile(engine, clock)
        reconcile(replace(fake, stop=StopRequest()))
        yield fake, attempt / "replay-001"
        assert engine.find({}) == ()


def test_a_restart_of_the_engine_while_nobody_watched_is_the_machines(rig: Rig) -> None:
    def restart(engine: InMemoryEngine, _clock: SteppingClock) -> None:
        engine.go_down()
        engine.come_back()

    with _left(rig, restart) as (_, replay):
        assert last(replay, "exited")["host_facts"] == ["daemon_restarted"]
        assert last(replay, "infrastructure")["fact"] == "daemon_restarted"


def test_TM_01_a_clock_that_is_set_while_nobody_watches_moves_no_deadline(rig: Rig) -> None:
    def step(_engine: InMemoryEngine, clock: SteppingClock) -> None:
        clock.step(-2 * 3600)
        clock.advance(11)

    with _left(rig, step) as (_, replay):
        seen = last(replay, "exited")
        assert seen["exit"]["stop_reason"] == "deadline"
        assert 10 <= seen["exit"]["duration_s"] <= 12
        assert seen["contested"] == ["clock_step", "observation_gap"]
        assert 10 <= _adoptions(replay)[0]["gap_s"] <= 12


# -- a host that was restarted


class _AfterReboot(SystemClock):
    @override
    def boot_id(self) -> str:
        return "11111111-2222-3333-4444-555555555555"


@pytest.mark.parametrize("command", ["replay", "explore"])
def test_a_restart_of_the_host_ends_what_was_running(rig: Rig, command: str) -> None:
    if command == "replay":
        process, run = _start(rig)
    else:
        process = rig.start("explore", rig.pack(steps=WORKING))
        run = until(lambda: next(iter(rig.runs.glob("*/attempt-001")), None))
        until((run / "out/begun").exists)
    rig.kill_for_good(process, run)
    for container in rig.containers():
        container.kill()
    said: list[str] = []
    with rig.context() as ctx:
        reconcile(replace(ctx, clock=_AfterReboot(), say=said.append))
    ended = last(run, "infrastructure")
    assert ended["fact"] == ("host_rebooted" if command == "replay" else "orchestrator_failed")
    assert (run / ".complete").exists()
    assert _adoptions(run)[0]["gap_s"] is None  # no clock went on over it
    rig.nothing_left()


def test_a_reading_of_what_was_collected_survives_a_restart_of_the_host(rig: Rig) -> None:
    """The science is had: it lies in folders of ours, and only has to be validated."""
    slow = "sleep 2; echo '{\"valid\": true}' > /out/validation.json\n"
    attempt = rig.enter(rig.pack(PUBLISH + "publish 10 0.5\n", validator=slow))
    process = rig.start("replay", attempt)
    replay = attempt / "replay-001"
    until(lambda: has(replay, "collected"))
    rig.kill_for_good(process, replay)
    with rig.context() as ctx:
        reconcile(replace(ctx, clock=_AfterReboot()))
    rig.settled(replay)
    assert final(replay) == "validated"
    rig.nothing_left()


# -- what is collected is not lost to a host that is busy


def _everything(rig: Rig) -> Claim:
    return Claim("somebody", Phase.REPLAY, len(os.sched_getaffinity(0)), 1, 0, rig.root)


def test_checkpoints_that_were_handed_in_do_not_wait_for_one(rig: Rig) -> None:
    """Nothing was run for them: they can be handed in again."""
    pack, given = rig.pack(), rig.root / "given"
    given.mkdir()
    (given / "weights.txt").write_text("0.5\n")
    with rig.context() as ctx, ctx.ledger.reserve(_everything(rig)):
        refused = rig.call("score", pack, "--checkpoint", f"10={given}")
    assert refused.code == 75
    (replay,) = rig.runs.glob("checkpoint__*/attempt-001/replay-001")
    assert final(replay) == "infrastructure"
    rig.nothing_left()


def test_what_is_collected_waits_for_a_busy_host(rig: Rig) -> None:
    slow = "sleep 2; echo '{\"valid\": true}' > /out/validation.json\n"
    attempt = rig.enter(rig.pack(PUBLISH + "publish 10 0.5\n", validator=slow))
    process = rig.start("replay", attempt)
    replay = attempt / "replay-001"
    until(lambda: has(replay, "collected"))
    rig.kill_for_good(process, replay)
    until(lambda: _reserved(rig) == [])
    with rig.context() as ctx:
        with ctx.ledger.reserve(_everything(rig)):
            refused = rig.call("replay", attempt)
            assert refused.code == 75
            assert final(replay) != "infrastructure"
            assert not (replay / ".complete").exists()
        rig.settled(replay)
    assert final(replay) == "validated"
    rig.nothing_left()


def test_a_run_whose_pack_has_changed_is_held_to_its_deadline_and_waits_for_a_person(
    rig: Rig,
) -> None:
    process, replay = _start(rig, SLEEP, replay={"wall": "10s"})
    script = rig.root / "pack/validator/validate.sh"
    kept = script.read_text()
    script.write_text(kept + "# easier\n")
    _kill(process)
    until(lambda: final(replay) == "collected" and not rig.keepers())
    assert rig.containers()[0].state().ended
    script.write_text(kept)
    rig.replay(replay.parent)
    assert final(replay) == "validated"
    rig.nothing_left()


def test_a_scoring_whose_supervisor_died_is_its_own_failure_at_once(rig: Rig) -> None:
    attempt = rig.enter(rig.pack(PUBLISH + "publish 10 0.5\n", scorer="sleep 300\n"))
    process = rig.start("replay", attempt)
    scoring = attempt / "replay-001/score-001"
    until(lambda: has(scoring, "score_started"))
    until(lambda: rig.runs_now(Phase.SCORE))
    _kill(process)
    rig.settled(scoring)
    assert last(scoring, "infrastructure")["fact"] == "orchestrator_failed"
    assert final(attempt / "replay-001") == "validated"
    assert len(_adoptions(scoring)) == 1
    rig.nothing_left()
