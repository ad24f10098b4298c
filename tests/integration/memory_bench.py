"""The main job on the in-memory engine: a whole run in a moment, below any folder."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from typing_extensions import override

from orchestrator import wiring
from orchestrator.adapters.fake_clock import FakeClock
from orchestrator.adapters.in_memory import InMemoryEngine, Inside
from orchestrator.adapters.loop_volumes import FolderVolumes
from orchestrator.adapters.overlay_views import PlainViews
from orchestrator.domain.image import image_reference
from orchestrator.domain.roles import Phase
from orchestrator.evidence.context import Context
from orchestrator.evidence.supervise import StopRequest
from orchestrator.lifecycle.machine import State
from orchestrator.pipeline import drive, jobs
from orchestrator.sandbox import PHASE_LABEL
from orchestrator.storage.journal import read_journal
from orchestrator.storage.layout import RunFolder
from tests.e2e.rig import Rig
from tests.e2e.simulated import NoGuards


class Clock(FakeClock):
    """A clock in whose world real files are of long ago, so that none is past a deadline."""

    @override
    def wall_ns(self) -> int:
        return 2**62 + self.boottime_ns()


class Bench:
    """The main job on the in-memory engine, below any folder."""

    def __init__(
        self, root: Path, program: Callable[[Inside], int] | None = None, **changes: Any
    ) -> None:
        self.rig = Rig(root / "rig")
        self.pack = self.rig.pack(**changes)
        self._program = program or program_of_three

    def context(self, base: Path, clock: FakeClock) -> Context:
        """What a command works with whose folders are in ``base``."""
        (base / "runs").mkdir(exist_ok=True)  # so that it is not tried out every time
        settings = replace(self.rig.settings(), runs=base / "runs", host=base / "host")
        images = {image_reference("cpu-numpy"): {"/bin/bash": b"#!"}}
        engine = InMemoryEngine(self._program, command=_command, images=images, clock=clock)
        with (
            mock.patch.object(wiring, "engine", return_value=engine),
            mock.patch.object(wiring, "system_clock", return_value=clock),
        ):
            made = wiring.context(settings, StopRequest(), lambda _: None, lambda _: None)
        return replace(made, volumes=FolderVolumes(), views=PlainViews(), guards=NoGuards())

    def go_on(self, ctx: Context) -> None:
        """Type what is missing for a score, as a person would."""
        attempts = [a for config in ctx.runs.configs() for a in config.attempts()]
        submitted = [a for a in attempts if state_of(a) is State.SUBMITTED]
        if not submitted:
            pack, plan = jobs.plan_explore(
                ctx, self.pack, agent="scripted", model="none", effort="none", official=False
            )
            submitted = [jobs.explore(ctx, pack, plan)[0]]
        (attempt,) = submitted
        finished = [r for r in attempt.replays() if state_of(r) is State.TERMINAL_BEHAVIOR]
        if not finished:
            jobs.replay(
                ctx, attempt, repeats=None, again=None, through=jobs.Through.SCORE, official=False
            )
            return
        (replay,) = finished
        if not any(state_of(s) is State.SCORED for s in replay.scorings()):
            jobs.score(ctx, replay, reference_run=False, official=False)


def program_of_three(inside: Inside) -> int:
    """Publish three checkpoints, of which one is bad, and judge them by what they hold."""
    match Phase(inside.spec.labels[PHASE_LABEL]):
        case Phase.EXPLORE:
            inside.until_killed()
        case Phase.REPLAY:
            for progress, value in ((10, "0.1"), (20, "0.3"), (30, "bad")):
                place = f"/out/checkpoints/checkpoint-{progress}"
                inside.write_file(f"{place}/weights.txt", value.encode())
        case Phase.VALIDATE:
            valid = inside.read_file("/ckpt/weights.txt") != b"bad"
            verdict = {"valid": valid, "reason": "" if valid else "bad_weights"}
            inside.write_file("/out/validation.json", json.dumps(verdict).encode())
        case Phase.SCORE:
            value = float(inside.read_file("/ckpt/weights.txt"))
            summary = {"status": "scored", "metrics": {"score": value}}
            inside.write_file("/out/summary.json", json.dumps(summary).encode())
        case other:
            raise AssertionError(other)
    return 0


def _command(inside: Inside, argv: tuple[str, ...]) -> tuple[int, bytes]:
    if "submit.sh" in argv[-1]:
        inside.write_file("/run/orch/new", json.dumps({"id": "1", "action": "submit"}).encode())
        box = inside.host_path("/run/orch")
        (box / "new").rename(box / "request-1.json")
        inside.until_killed()
    inside.write_file("/workspace/run.sh", b"true # changed\n")
    return 0, b""


def state_of(folder: RunFolder) -> State | None:
    """Return a run's state."""
    return read_journal(folder.journal, drive.KINDS[type(folder)]).state
