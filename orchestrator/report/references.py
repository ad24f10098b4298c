"""The reference points of a task beside the result that an attempt came to."""

from orchestrator.domain.records import Number, Summary
from orchestrator.report import words
from orchestrator.report.section import Section, Table
from orchestrator.report.views import AttemptView, headline, score_of, scoring_of

HERE = "this attempt"
_TITLE = "Reference points"


def references_section(view: AttemptView) -> Section:
    """The points beside the result, and where each of them is from."""
    points = view.plan.task.reference if view.plan else ()
    notes = tuple((point.name, point.note) for point in points if point.note)
    return Section(_TITLE, notes, (reference_points(view),))


def reference_points(view: AttemptView) -> Table:
    """The points that the task had when the attempt was made, under its own best checkpoint."""
    points = view.plan.task.reference if view.plan else ()
    if view.plan is None or not points:
        return Table(_TITLE, (), ())
    metric = view.plan.task.score.metric
    named = dict.fromkeys(name for point in points for name in point.components)
    parts = tuple(name for name in named if name != metric)
    rows = [
        (
            point.name,
            *(words.figure(point.components.get(part)) for part in parts),
            words.figure(point.value),
        )
        for point in points
    ]
    columns = (*parts, metric)
    return Table(_TITLE, ("", *columns), (*_own(view, parts), *rows), numeric=len(columns))


def _own(view: AttemptView, parts: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    replay = headline(view)
    score = score_of(replay) if replay else None
    scoring = scoring_of(replay) if replay else None
    if score is None or score.best is None or scoring is None:
        return ()
    best = score.best
    summary = next((c.summary for c in scoring.checkpoints if c.name == best.checkpoint), None)
    numbers = (words.figure(_number(summary, part)) for part in parts)
    return ((f"{HERE}, {best.checkpoint}", *numbers, words.figure(best.value)),)


def _number(summary: Summary | None, name: str) -> float | None:
    number = summary.metrics.get(name) if summary else None
    return number.value if isinstance(number, Number) else None
