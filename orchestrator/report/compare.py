"""The finished runs of a task side by side: a row for each seed, then the mean with its deviation.

An evaluator that measures several seeds names a figure ``NAME@SEED``; ``NAME`` is their mean and
``NAME@sd`` their sample standard deviation, so that both are the evaluator's own. Figures over the
seeded replays of one attempt (``--repeats``) are made here from what each came to.
"""

import csv
import io
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.domain.attempt import Entry, Series
from orchestrator.domain.records import OTHER_TASK, AttemptPlan, Number, Summary
from orchestrator.domain.task import Direction
from orchestrator.lifecycle.machine import State
from orchestrator.report.text import one_line
from orchestrator.report.views import (
    AttemptView,
    ReplayView,
    Score,
    score_of,
    scoring_of,
)
from orchestrator.storage.pack import Pack

_MEAN, _DEVIATION = "mean", "sd"
_FIXED = ("run", "run_id", "agent", "model", "effort", "series", "seed")
_SHORT = 8

Figures = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Line:
    """One row.

    Attributes:
        run: the path id of the replay; of the attempt where it sums up several replays.
        run_id: the same, by the id in its plan.
        agent: who made the candidate; for a patch that was entered also the name of its file.
        series: which member of its series the replay is.
        seed: which of the evaluator's seeds, ``mean`` over several, or empty for the only one.
        figures: by the name of the measure; None where it was not a finite number.
        deviations: of a mean, the sample standard deviations.
        marks: what a reader has to know: ``no edit``, ``local``, ``contested``, why no figure; and
            ``candidate of 3 attempts`` where a row is one draw more of what others entered as well.
    """

    run: str
    run_id: str
    agent: str
    model: str
    effort: str
    series: str
    seed: str = ""
    figures: Figures = field(default_factory=dict)
    deviations: Figures = field(default_factory=dict)
    marks: tuple[str, ...] = ()

    @property
    def fixed(self) -> tuple[str, ...]:
        """What stands before the figures."""
        names = self.agent, self.model, self.effort, self.series, self.seed
        return self.run, self.run_id, *names

    def document(self) -> dict[str, Any]:
        """The row as JSON."""
        return {
            **dict(zip(_FIXED, self.fixed, strict=True)),
            "metrics": dict(self.figures),
            "sd": dict(self.deviations),
            "marks": list(self.marks),
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """The rows of a task's finished runs, the best run first.

    Attributes:
        metrics: the measures, the primary one first.
        note: what the task says of its score.
    """

    metrics: tuple[str, ...]
    lines: tuple[Line, ...]
    note: str

    def headings(self) -> tuple[str, ...]:
        """What stands above the columns on a terminal, which has no room for whole ids."""
        return ("id", *_FIXED[2:], *self.metrics, "marks")

    def cells(self) -> Iterable[tuple[str, ...]]:
        """The rows as they are printed, a deviation behind its mean."""
        for line in self.lines:
            figures = (_cell(line, name) for name in self.metrics)
            fixed = (line.run_id[:_SHORT], *line.fixed[2:])
            yield (*(text or "-" for text in fixed), *figures, ", ".join(line.marks))

    def csv(self) -> str:
        """The rows as comma-separated values; deviations have columns of their own."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow((*_FIXED, *self.metrics, *(f"{n}_sd" for n in self.metrics), "marks"))
        for line in self.lines:
            figures = [line.figures.get(name) for name in self.metrics]
            deviations = [line.deviations.get(name) for name in self.metrics]
            fixed = map(one_line, line.fixed)
            writer.writerow((*fixed, *figures, *deviations, one_line("; ".join(line.marks))))
        return text.getvalue().removesuffix("\n")


def compare(views: Iterable[AttemptView], pack: Pack) -> Comparison:
    """Compare the finished replays of ``pack`` in ``views``."""
    score = pack.spec.score
    ours = [v for v in views if v.plan is not None and v.plan.task.name == pack.spec.name]
    draws = _draws(ours)
    groups = [
        group
        for view in ours
        if view.plan is not None
        for group in _groups(view, view.plan, pack, draws)
    ]
    sign = -1.0 if score.direction is Direction.MAX else 1.0

    def rank(group: Sequence[Line]) -> tuple[bool, float]:
        value = group[-1].figures.get(score.metric)
        return value is None, sign * (value or 0.0)

    lines = tuple(line for group in sorted(groups, key=rank) for line in group)
    measured = {name: None for line in lines for name in line.figures}
    named = (score.metric, *score.components)
    first = [name for name in named if name in measured]
    return Comparison(tuple(dict.fromkeys([*first, *measured])), lines, score.note)


def _draws(views: Iterable[AttemptView]) -> Mapping[str, int]:
    """Count for each candidate the attempts that replayed it to an end."""
    return Counter(
        candidate
        for view in views
        for candidate in {r.plan.candidate for r in _finished(view) if r.plan}
    )


def _finished(view: AttemptView) -> list[ReplayView]:
    return [r for r in view.replays if r.journal.state is State.TERMINAL_BEHAVIOR and r.plan]


def _groups(
    view: AttemptView, plan: AttemptPlan, pack: Pack, draws: Mapping[str, int]
) -> Iterable[tuple[Line, ...]]:
    """Make the rows of each finished replay, and those over seeded ones."""
    seeded: list[Figures] = []
    marks: dict[str, None] = {}
    for replay in _finished(view):
        lines = _lines(view, plan, replay, pack, draws)
        yield lines
        if lines[-1].figures and Series(lines[-1].series).seed is not None:
            seeded.append(lines[-1].figures)
            marks |= dict.fromkeys(lines[-1].marks)
    if len(seeded) > 1:
        names = list(dict.fromkeys(name for figures in seeded for name in figures))
        columns = {name: [figures.get(name) for figures in seeded] for name in names}
        mean, deviations = _over(columns, statistics.fmean), _over(columns, statistics.stdev)
        series = f"{len(seeded)} seeds"
        if "local" in marks:
            marks.pop("official", None)
        yield (_line(view, plan, series, _MEAN, mean, deviations, tuple(marks)),)


def _over(columns: Mapping[str, list[float | None]], summed: Any) -> dict[str, float | None]:
    return {name: None if None in values else summed(values) for name, values in columns.items()}


def _lines(
    view: AttemptView,
    plan: AttemptPlan,
    replay: ReplayView,
    pack: Pack,
    draws: Mapping[str, int],
) -> tuple[Line, ...]:
    """Make a replay's rows: one for each of the evaluator's seeds, then their mean."""
    series = replay.plan.series if replay.plan else ""
    score = score_of(replay)
    summary = _summary(replay, score)
    drawn = draws[replay.plan.candidate] if replay.plan else 1
    again = (f"candidate of {drawn} attempts",) if drawn > 1 else ()
    marks = (*_marks(view, plan, pack), *again, *_measured_by(replay), *_why(score))
    if summary is None:
        return (_line(replay, plan, series, "", {}, {}, marks),)
    seeds: dict[str, dict[str, float | None]] = {}
    for name, number in summary.metrics.items():
        base, _, seed = name.partition("@")
        if isinstance(number, Number):
            seeds.setdefault(seed, {})[base] = number.value
    mean, deviations = seeds.pop("", {}), seeds.pop(_DEVIATION, {})
    numbered = sorted(seeds.items(), key=lambda item: (len(item[0]), item[0]))
    rows = [_line(replay, plan, series, seed, found, {}, ()) for seed, found in numbered]
    word = _MEAN if rows else ""
    return (*rows, _line(replay, plan, series, word, mean, deviations, marks))


def _line(
    run: AttemptView | ReplayView,
    plan: AttemptPlan,
    series: str,
    seed: str,
    figures: Figures,
    deviations: Figures,
    marks: tuple[str, ...],
) -> Line:
    agent = f"{plan.agent} {plan.patch_name}" if plan.patch_name else plan.agent
    run_id = run.plan.run_id if run.plan else ""
    names = (agent, plan.model, plan.effort, series, seed)
    return Line(run.id, run_id, *names, figures, deviations, marks)


def _summary(replay: ReplayView, score: Score | None) -> Summary | None:
    """Find the numbers of the checkpoint that stands for a replay."""
    scoring = scoring_of(replay)
    if scoring is None or score is None or score.best is None:
        return None
    named = (c.summary for c in scoring.checkpoints if c.name == score.best.checkpoint)
    return next(named, None)


def _marks(view: AttemptView, plan: AttemptPlan, pack: Pack) -> tuple[str, ...]:
    marks = []
    if view.submission is not None and view.submission.empty and plan.entry is not Entry.CHECKPOINT:
        marks.append("no edit")
    if plan.task_digest != pack.digest:
        marks.append("another version of the task")
    return tuple(marks)


def _measured_by(replay: ReplayView) -> tuple[str, ...]:
    scoring = scoring_of(replay)
    plan = scoring.plan if scoring else None
    another = plan is not None and any(why.startswith(OTHER_TASK) for why in plan.relaxations)
    return (OTHER_TASK,) if another else ()


def _why(score: Score | None) -> tuple[str, ...]:
    if score is None:
        return ("not scored",)
    if score.best is None:
        return (f"{score.word} {score.reason}".strip(),)
    standing = "official" if score.official else "local"
    return (standing, "contested") if score.contested else (standing,)


def _cell(line: Line, name: str) -> str:
    value, deviation = line.figures.get(name), line.deviations.get(name)
    if value is None:
        return "-"
    return f"{value:.4f}" if deviation is None else f"{value:.4f} ± {deviation:.4f}"
