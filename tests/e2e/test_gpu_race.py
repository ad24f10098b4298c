"""GP-10: two ``orch replay`` for one idle GPU at the same moment, again and again.

Real processes, the real driver's child on a stand-in library, the real host-wide ledger; only the
containers are in memory, so that twenty rounds are a matter of seconds. Whoever gets the device
holds it until the other has ended: so exactly one may run, whatever the machine's speed.
"""

import multiprocessing
import os
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from queue import Empty
from unittest import mock

import pytest

from orchestrator.adapters.fake_clock import FakeClock
from orchestrator.adapters.in_memory import InMemoryEngine, Inside
from orchestrator.adapters.loop_volumes import FolderVolumes
from orchestrator.adapters.overlay_views import PlainViews
from orchestrator.domain.image import image_reference
from orchestrator.domain.roles import Phase
from orchestrator.pipeline import jobs
from orchestrator.sandbox import PHASE_LABEL
from tests.e2e.rig import NOTE, Rig
from tests.nvml.stand_in import StandIn

ROUNDS = 20
GPU = "GPU-aaaaaaaa-0000-4000-8000-000000000000"
FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Race:
    """What the racers share; each has a runs folder of its own, and the host in common."""

    root: Path
    start: Barrier
    ended: tuple[tuple[Event, Event], ...]
    told: "Queue[tuple[int, int, int, str]]"

    def run(self, index: int) -> None:
        """Be one of the two, all rounds through."""
        variables = {"ORCH_HOST": str(self.root / "host")}
        rig = Rig(self.root / f"racer-{index}", variables)
        rig.root.mkdir()
        pack = rig.pack(replay={"gpus": 1}, gate={"idle_for": "200ms"})
        now = [0]
        with ExitStack() as stack:
            engine = _engine(lambda: self.ended[now[0]][1 - index].wait(60))
            for name, what in (
                ("orchestrator.wiring.engine", lambda _: engine),
                ("orchestrator.adapters.loop_volumes.open_volumes", FolderVolumes),
                ("orchestrator.adapters.overlay_views.open_views", lambda _: PlainViews()),
            ):
                stack.enter_context(mock.patch(name, what))
            stack.enter_context(mock.patch.dict(os.environ, rig.variables))
            for number in range(ROUNDS):
                now[0] = number
                attempt = _attempt(rig, pack, number)
                self.start.wait(60)
                done = rig.call("replay", attempt)
                self.ended[number][index].set()
                self.told.put((number, index, done.code, done.err))


def _engine(wait_for_the_other: Callable[[], bool]) -> InMemoryEngine:
    def program(inside: Inside) -> int:
        if inside.spec.labels[PHASE_LABEL] == Phase.REPLAY:
            assert wait_for_the_other()
        else:
            inside.stdout("\n".join(inside.spec.gpu_uuids).encode())
        return 0

    images = {image_reference("cpu-numpy"): {"/bin/bash": b"#!"}}
    return InMemoryEngine(program, images=images, clock=FakeClock())


def _attempt(rig: Rig, pack: Path, number: int) -> Path:
    """Enter another candidate each time: what was replayed once is not replayed again."""
    note = rig.root / "note.patch"
    note.write_text(NOTE.replace("+changed", f"+changed {number}"))
    with rig.context() as ctx:
        folder, _ = jobs.submit_patch(ctx, pack, note, official=False)
    return folder.root


@pytest.mark.slow
def test_GP_10_of_two_that_see_the_same_idle_gpu_exactly_one_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = StandIn(tmp_path)
    gpus.gpu(GPU)
    gpus.enter(monkeypatch)
    ended = tuple((FORK.Event(), FORK.Event()) for _ in range(ROUNDS))
    race = Race(tmp_path, FORK.Barrier(2), ended, FORK.Queue())
    racers = [FORK.Process(target=race.run, args=(index,)) for index in range(2)]
    for racer in racers:
        racer.start()
    told: list[tuple[int, int, int, str]] = []
    while len(told) < 2 * ROUNDS:
        with suppress(Empty):
            told.append(race.told.get(timeout=1))
        assert not any(racer.exitcode for racer in racers)
    for racer in racers:
        racer.join(60)
        assert racer.exitcode == 0
    winners: Counter[int] = Counter()
    for number in range(ROUNDS):
        ways = sorted((code, err, index) for n, index, code, err in told if n == number)
        assert [code for code, _, _ in ways] == [0, 75], ways
        assert f"gpu_leased: {GPU} is held by run " in ways[1][1]
        winners[ways[0][2]] += 1
    assert sum(winners.values()) == ROUNDS
