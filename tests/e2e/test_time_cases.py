"""Budgets and the clocks they count on: acceptance cases TM."""

import hashlib
import json
import time

import pytest

from orchestrator.adapters.in_memory import Inside
from orchestrator.config import bundled
from orchestrator.domain.roles import Phase
from orchestrator.sandbox import PHASE_LABEL
from tests.e2e.rig import Rig, last
from tests.e2e.simulated import SteppingClock, simulated, use_time

SHOW_TIME = "sleep 1; read -r up _ < /proc/uptime; echo $up $(/opt/harness/timer.sh)\n"
TAMPER = (
    "echo 'echo 999999' > /opt/harness/timer.sh",
    "mv /opt/harness/timer.sh /tmp/",
    "rm -f /logs/deadline.json; echo '{}' > /logs/deadline.json",
    "rm -rf /run/orch/* /logs/agent/*",
    "date -s '2001-01-01 00:00:00'",
    "export TZ=Pacific/Kiritimati LD_PRELOAD=/workspace/fake.so FAKETIME=-1d; date",
)
LOOK = "sha256sum /opt/harness/*.sh /logs/deadline.json; cat /logs/deadline.json"


def test_TM_01_a_step_of_the_wall_clock_moves_no_deadline(rig: Rig) -> None:
    pack = rig.pack(replay={"wall": "10s"})
    clock = SteppingClock()
    clock.step(time.time() - clock.wall_ns() / 1e9)  # file times are the kernel's

    def step_back(inside: Inside) -> int:
        if inside.spec.labels[PHASE_LABEL] == Phase.VALIDATE:
            inside.write_file("/out/validation.json", b'{"valid": true}')
            return 0
        inside.write_file("/out/checkpoints/checkpoint-10/weights.txt", b"0.5\n")
        clock.step(-2 * 3600)
        return use_time(inside, 10)

    with rig.context() as ctx:
        fake, _ = simulated(ctx, step_back, clock)
        replay = rig.replay_in(fake, rig.enter(pack, fake))
    seen = last(replay, "exited")
    assert seen["exit"]["stop_reason"] == "deadline"
    assert 10 <= seen["exit"]["duration_s"] <= 12
    assert "clock_step" in seen["contested"]
    assert seen["started"] > seen["ended"]
    # What was published before the step has times of the old clock, and is not late for that.
    collected = last(replay, "collected")
    assert [row["name"] for row in collected["checkpoints"]] == ["checkpoint-10"], collected
    rig.nothing_left()


@pytest.mark.parametrize("budget", [5, 59, 120])
def test_TM_04_the_stop_comes_at_the_budget(rig: Rig, budget: int) -> None:
    attempt = rig.enter(rig.pack(replay={"wall": f"{budget}s"}))
    with rig.context() as ctx:
        fake, _ = simulated(ctx, lambda inside: use_time(inside, budget), SteppingClock())
        replay = rig.replay_in(fake, attempt)
    seen = last(replay, "exited")["exit"]
    assert seen["stop_reason"] == "deadline"
    assert budget <= seen["duration_s"] <= budget + 2


@pytest.mark.parametrize("budget", [5, 59, 120])
def test_TM_04_the_timer_shows_the_budget_from_the_first_second(rig: Rig, budget: int) -> None:
    """What it shows is the deadline less the time now: nothing is taken off for safety."""
    replay = rig.run(SHOW_TIME, replay={"wall": f"{budget}s"})
    up, shown = (replay / "logs/stdout.log").read_text().split()
    deadline = int(last(replay, "run_started")["deadline_boottime_ns"]) / 1e9
    left = deadline - float(up)
    assert left - 2 <= int(shown) <= left + 1  # it looks a moment later, at whole seconds
    assert 0 < int(shown) <= budget - 1
    plan = json.loads((replay / "plan.json").read_text())
    assert budget * 0.95 - 1 <= int(plan["env"]["MAX_WALL_TIME_SECONDS"]) <= budget
    assert int(plan["env"]["DEADLINE_RESERVE_SECONDS"]) <= budget * 0.05


def test_TM_04_a_real_replay_of_five_seconds_lasts_five_seconds(rig: Rig) -> None:
    """The budget begins before the container is made, which takes its share of it."""
    replay = rig.run("sleep 300\n", replay={"wall": "5s"})
    assert 5 - 2 <= last(replay, "exited")["exit"]["duration_s"] <= 7 + 3


def test_TM_05_nothing_an_agent_does_to_its_timer_moves_the_end(rig: Rig) -> None:
    steps = (
        {"run": LOOK},
        *({"run": command} for command in TAMPER),
        {"run": LOOK},
        {"run": "/opt/harness/timer.sh"},
        {"run": "sleep 300"},
    )
    attempt = rig.explore(rig.pack(steps=steps, explore={"wall": "15s"}))
    declined = last(attempt, "declined")
    assert declined["reason"] == "phase_deadline"
    assert 15 - 2 <= declined["exit"]["duration_s"] <= 17 + 3
    lines = [json.loads(line) for line in (attempt / "transcript.jsonl").read_text().splitlines()]
    before, *tampered, after, timer = [line for line in lines if line["kind"] == "output"][:9]
    refused = [line["exit_code"] for line in tampered]
    assert all(refused[number] != 0 for number in (0, 1, 2, 4)), refused
    # Nothing was changed, so there is no change to note: what it reads is the host's to the byte.
    assert before["exit_code"] == after["exit_code"] == 0
    assert before["output"] == after["output"]
    timer_sh = hashlib.sha256((bundled("harness") / "timer.sh").read_bytes()).hexdigest()
    assert f"{timer_sh}  /opt/harness/timer.sh" in after["output"]
    deadline = last(attempt, "explore_started")["deadline_boottime_ns"]
    assert f'"{deadline}"' in after["output"]
    assert 0 <= int(timer["output"]) <= 15
    started, ended = declined["started"], declined["ended"]
    assert started[:4] == ended[:4] != "2001"
    assert started.endswith("+00:00")
