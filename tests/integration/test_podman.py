"""The whole pipeline on Podman's Docker-compatible socket, and what it cannot do there."""

import json
import subprocess
from pathlib import Path

import pytest

from orchestrator.adapters.docker_dialect import PODMAN
from orchestrator.domain.records import AttemptPlan
from orchestrator.storage.layout import AttemptFolder
from orchestrator.storage.records import load
from tests.e2e.rig import THREE, Rig, final, has, last, until

pytestmark = pytest.mark.docker

EAT_MEMORY = "python3 -c 'x = []\nwhile True: x.append(bytearray(1 << 20))'\n"


@pytest.fixture
def rig(podman: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setenv("DOCKER_HOST", podman)
    return Rig(tmp_path)


def test_explore_replay_score_and_verify(rig: Rig) -> None:
    pack = rig.pack()
    attempt = rig.explore(pack)
    assert final(attempt) == "submitted"
    captured = last(attempt, "captured")
    assert captured["reason"] == "agent_explicit_submit"
    assert captured["exit"]["exit_code"] == 137
    assert captured["exit"]["killed_by"] == "orchestrator"
    assert captured["host_facts"] == []
    replay = rig.replay(attempt)
    assert final(replay) == "validated"
    aggregate = json.loads((replay / "score-001/summary.json").read_text())
    assert aggregate["best"] == {**aggregate["best"], "checkpoint": "checkpoint-20", "value": 0.3}
    assert set(PODMAN.lacks) <= set(load(AttemptFolder(attempt).plan, AttemptPlan).relaxations)
    rig.nothing_left()


def test_official_is_refused_with_what_podman_lacks(rig: Rig) -> None:
    done = rig.call("explore", rig.pack(), "--official")
    assert done.code == 64
    for lack in PODMAN.lacks:
        assert lack in done.err


def test_doctor_says_what_podman_lacks(rig: Rig) -> None:
    found = {check["name"]: check for check in rig.call("doctor", "--json").json()}
    assert "podman" in found["engine"]["fact"]
    assert found["engine kind"]["level"] == "limited"
    for lack in PODMAN.lacks:
        assert lack in found["engine kind"]["fact"]
    assert "Docker" in found["engine kind"]["remedy"]


def test_memory_that_ran_out_is_known_although_podman_does_not_say_it(rig: Rig) -> None:
    replay = rig.run(THREE + EAT_MEMORY + "exit 3\n", defaults={"memory": "64m"})
    assert final(replay) == "validated"
    seen = last(replay, "exited")
    assert seen["exit"]["exit_code"] == 3
    assert seen["exit"]["oom_killed"]
    assert seen["exit"]["memory_limit_reached"]
    assert seen["host_facts"] == []
    assert seen["contested"] == []


@pytest.mark.parametrize(
    ("doing", "verdict", "facts"),
    [
        (["kill"], "infrastructure", ["killed_by_third_party"]),
        (["stop", "--time", "1"], "no_checkpoint", []),  # what PODMAN.lacks says of signals
    ],
    ids=["kill", "stop"],
)
def test_what_somebody_else_did_to_it_is_the_machines_as_far_as_podman_tells(
    rig: Rig, doing: list[str], verdict: str, facts: list[str]
) -> None:
    attempt = rig.enter(rig.pack("echo begun; sleep 60\n"))
    with rig.start("replay", attempt) as process:
        replay = attempt / "replay-001"
        until(lambda: (replay / "logs/stdout.log").exists() and has(replay, "run_started"))
        until(lambda: (replay / "logs/stdout.log").read_text() == "begun\n")
        (container,) = rig.containers()
        subprocess.run(["docker", *doing, container.name], check=True, capture_output=True)
        process.communicate(timeout=60)
    assert verdict in final(replay)
    assert last(replay, "exited")["host_facts"] == facts
