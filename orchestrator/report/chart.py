"""The geometry of the score chart: numbers in, positions out; drawing is the template's part."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.domain.records import ScoreStatus
from orchestrator.report import words
from orchestrator.report.views import ScoringView

WIDTH, HEIGHT = 760, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 132, 24, 44
_TICKS = 4
_LABEL_GAP = 15.0
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Point:
    """A scored checkpoint at its place."""

    x: float
    y: float
    progress: str
    value: str
    best: bool


@dataclass(frozen=True, slots=True)
class Level:
    """A baseline across the chart. ``label_y`` is moved apart from its neighbours."""

    name: str
    y: float
    label_y: float
    value: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A value on the vertical axis."""

    y: float
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Everything the template draws, in a box of ``WIDTH`` by ``HEIGHT``."""

    metric: str
    points: tuple[Point, ...]
    levels: tuple[Level, ...]
    ticks: tuple[Tick, ...]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = _LEFT
    right: int = WIDTH - _RIGHT
    top: int = _TOP
    bottom: int = HEIGHT - _BOTTOM

    @property
    def path(self) -> str:
        """The points as an SVG polyline."""
        return " ".join(f"{point.x:.1f},{point.y:.1f}" for point in self.points)


def chart_of(scoring: ScoringView) -> Chart | None:
    """Lay out the scores of a committed scoring by progress; None when there is none to draw."""
    if scoring.aggregate is None:
        return None
    metric = scoring.aggregate.metric
    scored = sorted(
        (line.progress, line.value)
        for line in scoring.aggregate.checkpoints
        if line.status is ScoreStatus.SCORED and line.value is not None
    )
    if not scored:
        return None
    best = scoring.aggregate.best
    levels = baselines(scoring)
    low, high, step = _axis([value for _, value in scored] + list(levels.values()))

    def height(value: float) -> float:
        return HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM)

    places = _places([progress for progress, _ in scored])
    return Chart(
        metric=metric,
        points=tuple(
            Point(x, height(value), str(progress), words.figure(value), _is(best, progress))
            for x, (progress, value) in zip(places, scored, strict=True)
        ),
        levels=_spread({name: (height(value), value) for name, value in levels.items()}),
        ticks=tuple(
            Tick(height(low + n * step), f"{low + n * step:.6g}")
            for n in range(round((high - low) / step) + 1)
        ),
    )


def baselines(scoring: ScoringView) -> dict[str, float]:
    """Find the baselines' values of the metric, as measured in the same scoring."""
    metric = scoring.aggregate.metric if scoring.aggregate else ""
    found: dict[str, float] = {}
    for checkpoint in scoring.checkpoints:
        for name, numbers in (checkpoint.summary.baselines if checkpoint.summary else {}).items():
            number = numbers.get(metric)
            if number is not None and number.value is not None:
                found.setdefault(name, number.value)
    return found


def _is(best: object, progress: int) -> bool:
    return getattr(best, "progress", None) == progress


def _axis(values: list[float]) -> tuple[float, float, float]:
    """Choose round limits and a round step around ``values`` (after Heckbert's nice numbers)."""
    low, high = min(values), max(values)
    span = (high - low) or abs(high) or 1.0
    raw = span / _TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in _STEPS if power * m >= raw)
    bottom, top = math.floor(low / step) * step, math.ceil(high / step) * step
    return bottom, top if top > bottom else bottom + step, step


def _places(progress: list[int]) -> list[float]:
    left, right = _LEFT + 24, WIDTH - _RIGHT - 24
    first, last = progress[0], progress[-1]
    if first == last:
        return [(left + right) / 2 for _ in progress]
    return [left + (p - first) / (last - first) * (right - left) for p in progress]


def _spread(levels: Mapping[str, tuple[float, float]]) -> tuple[Level, ...]:
    """Keep labels of near levels apart, from the top down."""
    placed: list[Level] = []
    lowest = -math.inf
    for name, (y, value) in sorted(levels.items(), key=lambda item: item[1][0]):
        lowest = max(y, lowest + _LABEL_GAP)
        placed.append(Level(name, y, lowest, words.figure(value)))
    return tuple(placed)
