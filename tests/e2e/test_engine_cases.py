"""What the engine, or its absence, does to a run: acceptance cases DK."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from orchestrator.adapters.docker_container import DockerContainer
from orchestrator.adapters.docker_dialect import Dialect
from orchestrator.adapters.docker_engine import DockerEngine
from orchestrator.adapters.docker_spec import create_body
from orchestrator.adapters.in_memory import InMemoryEngine, Inside
from orchestrator.domain.container import ContainerSpec
from orchestrator.domain.roles import Phase
from orchestrator.errors import InfrastructureError
from orchestrator.pipeline import jobs
from orchestrator.sandbox import RUN_LABEL
from orchestrator.storage.layout import AttemptFolder
from tests.e2e.rig import PUBLISH, Rig, events, final, has, last, until
from tests.e2e.simulated import SteppingClock, simulated

UNTIL_TOLD = PUBLISH + "publish 10 0.5\nuntil [ -e /out/go ]; do sleep 0.1; done\npublish 20 0.7\n"
SLEEP = PUBLISH + "publish 10 0.5\nsleep 300\n"


def test_DK_01_a_silent_container_outlasts_the_clients_time_limit(rig: Rig) -> None:
    attempt = rig.enter(rig.pack("sleep 9; exit 0\n"))
    with rig.context() as ctx:
        impatient = DockerEngine(rig.settings().engine_address, timeout=4)
        replay = rig.replay_in(replace(ctx, engine=impatient), attempt)
        impatient.close()
    seen = last(replay, "exited")
    assert seen["exit"]["exit_code"] == 0
    assert seen["exit"]["duration_s"] >= 9
    assert seen["host_facts"] == []
    assert final(replay) == "no_checkpoint"
    assert [path.name for path in attempt.glob("replay-*")] == ["replay-001"]


@pytest.mark.slow
def test_DK_03_fifty_of_fifty_failures_are_seen_with_their_words(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed: list[bool] = []
    asked: list[object] = []
    remove = DockerContainer.remove

    def noting_remove(container: DockerContainer) -> None:
        run_id = container.labels[RUN_LABEL]
        folders = [path for path in attempt.glob("replay-*") if events(path)[0]["id"] == run_id]
        committed.append((folders[0] / ".complete").exists())
        remove(container)

    def noting_body(spec: ContainerSpec, dialect: Dialect) -> dict[str, object]:
        body = create_body(spec, dialect)
        asked.append(body["HostConfig"].get("AutoRemove", False))
        return body

    monkeypatch.setattr(DockerContainer, "remove", noting_remove)
    monkeypatch.setattr("orchestrator.adapters.docker_engine.create_body", noting_body)
    attempt = rig.enter(rig.pack("echo boom >&2; exit 1\n", defaults={"disk": "8m"}))
    with rig.context() as ctx:
        jobs.replay(
            ctx,
            AttemptFolder(attempt),
            repeats=50,
            again=None,
            through=jobs.Through.SCORE,
            official=False,
        )
    replays = sorted(attempt.glob("replay-*"))
    assert [last(replay, "exited")["exit"]["exit_code"] for replay in replays] == [1] * 50
    assert all("boom" in (replay / "logs/stderr.log").read_text() for replay in replays)
    assert asked == [False] * 50
    assert committed == [True] * 50
    rig.nothing_left()


def test_DK_05_a_code_seen_after_a_restart_of_the_engine_proves_nothing(rig: Rig) -> None:
    attempt = rig.enter(rig.pack("exit 0\n"))
    engines: list[InMemoryEngine] = []

    def restarted(inside: Inside) -> int:
        engines[0].go_down()
        engines[0].come_back()
        return inside.until_killed()

    with rig.context() as ctx:
        fake, engine = simulated(ctx, restarted, SteppingClock())
        engines.append(engine)
        with pytest.raises(InfrastructureError, match="daemon_restarted") as raised:
            rig.replay_in(fake, attempt)
    assert raised.value.exit_code == 75
    replay = attempt / "replay-001"
    assert last(replay, "exited")["exit"]["exit_code"] == 0
    assert last(replay, "exited")["host_facts"] == ["daemon_restarted"]
    assert last(replay, "infrastructure")["fact"] == "daemon_restarted"
    assert (replay / ".complete").exists()


def test_DK_05_an_engine_that_is_away_at_the_deadline_is_waited_for(rig: Rig) -> None:
    """Giving up would leave the container running for ever."""
    attempt = rig.enter(rig.pack("exit 0\n"))
    clock, engines = SteppingClock(), list[InMemoryEngine]()

    def away(inside: Inside) -> int:
        engines[0].go_down()
        clock.advance(100)
        Thread(target=lambda: (until(lambda: True), engines[0].come_back())).start()
        return inside.until_killed()

    with rig.context() as ctx:
        fake, engine = simulated(ctx, away, clock)
        engines.append(engine)
        with pytest.raises(InfrastructureError, match="daemon_restarted"):
            rig.replay_in(fake, attempt)
        assert engine.find({}) == ()


@contextmanager
def killed_while_it_runs(rig: Rig, attempt: Path) -> Iterator[Path]:
    """Start a replay, kill supervisor and watchdog hard once it runs, and hand over its folder.

    What a watchdog alone does, test_adoption.py shows.
    """
    process = rig.start("replay", attempt)
    replay = attempt / "replay-001"
    until((replay / "out/checkpoints/checkpoint-10/weights.txt").exists)
    rig.kill_for_good(process, replay)
    assert final(replay) == "run_started"
    yield replay


def test_DK_07_a_run_within_its_time_is_gone_on_with_by_replaying_it(rig: Rig) -> None:
    attempt = rig.enter(rig.pack(UNTIL_TOLD))
    with killed_while_it_runs(rig, attempt) as replay:
        assert len(rig.containers()) == 1
        adopter = rig.start("replay", attempt)
        until(lambda: "going on with" in (rig.runs / "orch.log").read_text())
        (replay / "out/go").touch()
        _, said = adopter.communicate(timeout=60)
        assert adopter.returncode == 0, said.decode()
    assert [path.name for path in attempt.glob("replay-*")] == ["replay-001"]
    seen = last(replay, "exited")
    assert seen["exit"]["exit_code"] == 0
    assert seen["exit"]["killed_by"] == "nobody"
    assert "observation_gap" in seen["contested"]
    assert [row["name"] for row in last(replay, "validated")["accepted"]] == [
        "checkpoint-20",
        "checkpoint-10",
    ]
    assert final(replay / "score-001") == "scored"
    rig.nothing_left()


def test_DK_07_a_run_that_ended_unseen_is_collected_by_the_next_command(rig: Rig) -> None:
    attempt = rig.enter(rig.pack(UNTIL_TOLD))
    with killed_while_it_runs(rig, attempt) as replay:
        (replay / "out/go").touch()
        until(lambda: all(container.state().ended for container in rig.containers()))
        rig.call("score", "nothing")
        rig.settled(replay)
    assert last(replay, "exited")["exit"]["exit_code"] == 0
    assert last(replay, "exited")["contested"] == ["observation_gap"]
    assert final(replay) == "validated"
    assert (replay / ".complete").exists()
    rig.nothing_left()


def test_DK_07_a_run_past_its_deadline_is_ended_by_the_next_command(rig: Rig) -> None:
    attempt = rig.enter(rig.pack(SLEEP, replay={"wall": "10s"}))
    with killed_while_it_runs(rig, attempt) as replay:
        deadline = int(last(replay, "run_started")["deadline_boottime_ns"])
        with rig.context() as ctx:
            until(lambda: ctx.clock.boottime_ns() > deadline)
        rig.call("score", "nothing")
        rig.settled(replay)
    seen = last(replay, "exited")["exit"]
    assert seen["stop_reason"] == "deadline"
    assert seen["killed_by"] == "orchestrator"
    assert final(replay) == "validated"
    rig.nothing_left()


def test_DK_07_an_exploration_is_ended_as_the_machines_doing(rig: Rig) -> None:
    steps = ({"run": "echo '# changed' >> run.sh; echo begun > /out/begun; sleep 300"},)
    process = rig.start("explore", rig.pack(steps=steps))
    attempt = until(lambda: next(iter(rig.runs.glob("*/attempt-001")), None))
    until((attempt / "out/begun").exists)
    rig.kill_for_good(process, attempt)
    assert len(rig.containers()) == 1
    rig.call("score", "nothing")
    assert last(attempt, "infrastructure")["reason"] == "runtime_failure"
    assert "# changed" in (attempt / "kept/workspace/run.sh").read_text()
    assert (attempt / ".complete").exists()
    rig.nothing_left()


def test_DK_07_a_validation_that_was_cut_off_is_done_again(rig: Rig) -> None:
    slow = "sleep 2; echo '{\"valid\": true}' > /out/validation.json\n"
    attempt = rig.enter(rig.pack(PUBLISH + "publish 10 0.5\n", validator=slow))
    process = rig.start("replay", attempt)
    replay = attempt / "replay-001"
    until(lambda: has(replay, "collected"))
    until(lambda: rig.runs_now(Phase.VALIDATE))
    rig.kill_for_good(process, replay)
    rig.call("score", "nothing")
    rig.settled(replay)
    assert final(replay) == "validated"
    assert (replay / ".complete").exists()
    rig.nothing_left()


def test_DK_07_a_scoring_that_was_cut_off_is_its_own_failure(rig: Rig) -> None:
    slow = 'sleep 6; echo \'{"status": "scored", "metrics": {"score": 0.5}}\' > /out/summary.json\n'
    attempt = rig.enter(rig.pack(PUBLISH + "publish 10 0.5\n", scorer=slow))
    process = rig.start("replay", attempt)
    replay = attempt / "replay-001"
    until(lambda: has(replay / "score-001", "score_started"))
    until(lambda: rig.runs_now(Phase.SCORE))
    rig.kill_for_good(process, replay / "score-001")
    again = rig.call("score", replay)
    assert again.code == 0, again.err
    assert final(replay / "score-001") == "infrastructure"
    assert final(replay / "score-002") == "scored"
    assert [event["event"] for event in events(replay)].count("validated") == 1
    rig.nothing_left()
