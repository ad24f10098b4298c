"""An exploration of one hour and a replay of twelve on a clock that runs fast, at real rates.

Each of their seconds prints 2 KiB, and every ten seconds the container is looked at. Nothing may
grow with the hours: what is kept has its bound, and so has what the supervisor holds in memory.
"""

import gc
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from orchestrator.adapters.fake_clock import FakeClock
from orchestrator.adapters.in_memory import Inside, run_until_killed
from orchestrator.adapters.in_memory_container import InMemoryContainer
from orchestrator.adapters.in_memory_processes import InMemoryProcesses
from orchestrator.domain.container import ContainerEnd
from orchestrator.domain.roles import Phase
from orchestrator.domain.telemetry import Sample, Thinned
from orchestrator.evidence.context import Context
from orchestrator.evidence.observer import Observer
from orchestrator.evidence.telemetry_log import TelemetryLog, read_telemetry
from orchestrator.pipeline import jobs
from orchestrator.sandbox import PHASE_LABEL
from tests.e2e.rig import Rig, last
from tests.e2e.simulated import simulated
from tests.soak.gauge import MEMORY, process

HOUR = 3600
STEP = 5.0
"""How much time passes with every look of the watch."""
RATE = 2048
"""Bytes of output a second."""
LINE = b"x" * 127 + b"\n"
TELEMETRY = 256 * 1024
"""A bound that twelve hours reach at this rate, so that the thinning is seen; the real one is
larger."""
LOG = 9 * 1024**2 + 4096
"""The head and the tail of the output that are kept, and a line between."""
PHASES = frozenset({Phase.EXPLORE.value, Phase.REPLAY.value})


@dataclass
class Hours:
    """Lets time pass while the watch waits for a container, which prints as it goes.

    ``held``: what this process held after each hour of the replay, in memory blocks and KiB.
    """

    clock: FakeClock = field(default_factory=FakeClock)
    held: list[tuple[int, int]] = field(default_factory=list)
    _replayed: float = 0.0

    def pass_in(self, container: InMemoryContainer) -> None:
        self.clock.advance(STEP)
        container.output("stdout", LINE * int(RATE * STEP / len(LINE)))
        if container.labels[PHASE_LABEL] == Phase.REPLAY:
            self._replayed += STEP
            if self._replayed % HOUR == 0:
                self._weigh()

    def _weigh(self) -> None:
        gc.collect()
        seen = process(os.getpid())
        assert seen is not None
        self.held.append((sys.getallocatedblocks(), seen[MEMORY]))


@pytest.fixture
def hours(monkeypatch: pytest.MonkeyPatch) -> Hours:
    """Hours that pass in every container that explores or replays."""
    hours = Hours()
    really_wait: Callable[[InMemoryContainer, float], ContainerEnd | None] = InMemoryContainer.wait
    really_tick = Observer.tick

    def wait(container: InMemoryContainer, timeout: float) -> ContainerEnd | None:
        fast = container.labels[PHASE_LABEL] in PHASES
        end = really_wait(container, 0 if fast else timeout)
        if fast and end is None:
            hours.pass_in(container)
        return end

    def tick(observer: Observer, now_ns: int) -> None:
        """Wait for each look: these hours are faster than the thread that looks."""
        really_tick(observer, now_ns)
        assert observer.settle()

    monkeypatch.setattr(InMemoryContainer, "wait", wait)
    monkeypatch.setattr(Observer, "tick", tick)
    small = partial(TelemetryLog, max_bytes=TELEMETRY)
    monkeypatch.setattr("orchestrator.evidence.telemetry.TelemetryLog", small)
    return hours


def _program(inside: Inside) -> int:
    match inside.spec.labels[PHASE_LABEL]:
        case Phase.VALIDATE:
            inside.write_file("/out/validation.json", b'{"valid": true}')
            return 0
        case Phase.REPLAY:
            inside.write_file("/out/checkpoints/checkpoint-10/weights.txt", b"0.5\n")
        case _:
            inside.write_file("/workspace/note.txt", b"changed\n")
    return run_until_killed(inside)


def _command(inside: Inside, argv: tuple[str, ...]) -> tuple[int, bytes]:
    inside.until_killed()


def _lived(rig: Rig, ctx: Context, pack: Path) -> tuple[Path, Path]:
    """Explore and replay; return both folders."""
    task, plan = jobs.plan_explore(
        ctx, pack, agent="scripted", model="none", effort="none", official=False
    )
    attempt, _ = jobs.explore(ctx, task, plan)
    return attempt.root, rig.replay_in(ctx, attempt.root)


def test_thirteen_hours_take_no_more_than_one(rig: Rig, hours: Hours) -> None:
    pack = rig.pack(
        steps=({"run": "sleep 86400"},),
        explore={"wall": "1h", "command_wall": "2h"},
        replay={"wall": "12h", "reserve": "900s"},
        telemetry={"every": "10s"},
    )
    with rig.context() as real:
        fake, _ = simulated(real, _program, hours.clock, _command)
        attempt, replay = _lived(rig, replace(fake, processes=InMemoryProcesses()), pack)

    explored, replayed = last(attempt, "captured"), last(replay, "exited")
    assert explored["reason"] == "phase_deadline"
    assert replayed["exit"]["stop_reason"] == "deadline"
    for seen, wall in ((explored, HOUR), (replayed, 12 * HOUR)):
        assert wall <= seen["exit"]["duration_s"] <= wall + STEP
        assert seen["contested"] == [], seen

    for run, wall in ((attempt, HOUR), (replay, 12 * HOUR)):
        kept = (run / "logs" / "stdout.log").stat().st_size
        printed = RATE * wall
        assert min(printed, LOG) - 8192 <= kept <= LOG, run
        assert (run / "lifecycle.jsonl").stat().st_size < 32 * 1024
        assert (run / "telemetry.jsonl").stat().st_size <= TELEMETRY

    rows = read_telemetry(replay / "telemetry.jsonl")
    assert rows.unreadable == 0
    assert any(isinstance(row, Thinned) for row in rows.rows)
    samples = [row for row in rows.rows if isinstance(row, Sample)]
    times = [row.at for row in samples if row.of == samples[0].of]
    assert times[-1] - times[0] > 12 * HOUR - 300
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert max(gaps) <= 170, "it is thinned evenly"

    # After two hours everything is there that is loaded late; ten more may add next to nothing.
    (blocks, memory), (blocks_later, memory_later) = hours.held[1], hours.held[11]
    assert blocks_later - blocks < 10_000
    assert memory_later - memory < 8 * 1024
    rig.nothing_left()
