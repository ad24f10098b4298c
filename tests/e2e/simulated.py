"""The main job on the in-memory engine with a clock that moves as told: hours take moments."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from typing_extensions import override

from orchestrator.adapters.fake_clock import FakeClock
from orchestrator.adapters.in_memory import Command, InMemoryEngine, Inside, no_commands
from orchestrator.adapters.loop_volumes import FolderVolumes
from orchestrator.domain.image import image_reference
from orchestrator.evidence.context import Context
from orchestrator.ports import Guards


class SteppingClock(FakeClock):
    """A clock whose wall time can be set, as by an operator or a bad NTP server.

    ``look_s``: how much time passes with every look at it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.look_s = 0.0
        self._step = timedelta()

    def step(self, seconds: float) -> None:
        """Set the wall clock; CLOCK_BOOTTIME does not notice."""
        self._step += timedelta(seconds=seconds)

    @override
    def boottime_ns(self) -> int:
        self.advance(self.look_s)
        return super().boottime_ns()

    @override
    def utc(self) -> datetime:
        return super().utc() + self._step

    @override
    def wall_ns(self) -> int:
        return super().wall_ns() + self._step // timedelta(microseconds=1) * 1000


class NoGuards(Guards):
    """Nobody takes over: another process could not reach an engine that lives in this one."""

    @override
    def watch(self, root: Path, descriptors: tuple[int, ...]) -> int | None:
        return None


def simulated(
    ctx: Context,
    program: Callable[[Inside], int],
    clock: FakeClock,
    command: Command = no_commands,
) -> tuple[Context, InMemoryEngine]:
    """Put the in-memory engine and ``clock`` in place of the real ones."""
    images = {image_reference("cpu-numpy"): {"/bin/bash": b"#!"}}
    engine = InMemoryEngine(program, command=command, images=images, clock=clock)
    fake = replace(ctx, engine=engine, clock=clock, volumes=FolderVolumes(), guards=NoGuards())
    return fake, engine


def use_time(inside: Inside, seconds: float) -> int:
    """Let most of a budget pass at once, and the rest as the host looks at the clock."""
    inside.clock.advance(seconds - 3)
    assert isinstance(inside.clock, SteppingClock)
    inside.clock.look_s = 0.1
    return inside.until_killed()
