"""The reference points of a task beside the result that an attempt came to."""

from orchestrator.domain.records import Number, Summary
from orchestrator.report import words
from orchestrator.report.section import Table
from orchestrator.report.views import AttemptView, headline, score_of, scoring_of

HERE = "this attempt"


def reference_points(view: AttemptView) -> Table:
    """The points that the task had when the attempt was made, under its own best checkpoint."""
    points = view.plan.task.reference if view.plan else ()
    if view.plan is None or not points:
        return Table("Reference points", (), ())
    parts = tuple(dict.fromkeys(name for point in points for name in point.components))
    rows = [
        (
            point.name,
            point.note,
            *(words.figure(point.components.get(part)) for part in parts),
            words.figure(point.value),
        )
        for point in points
    ]
    own = _own(view, parts)
    headings = ("point", "note", *parts, view.plan.task.score.metric)
    return Table("Reference points", headings, (*own, *rows), numeric=1 + len(parts))


def _own(view: AttemptView, parts: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    replay = headline(view)
    score = score_of(replay) if replay else None
    scoring = scoring_of(replay) if replay else None
    if score is None or score.best is None or scoring is None:
        return ()
    best = score.best
    summary = next((c.summary for c in scoring.checkpoints if c.name == best.checkpoint), None)
    numbers = (words.figure(_number(summary, part)) for part in parts)
    return ((HERE, best.checkpoint, *numbers, words.figure(best.value)),)


def _number(summary: Summary | None, name: str) -> float | None:
    number = summary.metrics.get(name) if summary else None
    return number.value if isinstance(number, Number) else None
