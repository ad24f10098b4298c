"""An attempt's report as one HTML file that needs nothing else and runs nothing.

Every template escapes every value, whatever the template's name. The page's policy allows one
style sheet, by its hash, and nothing besides.
"""

import base64
import hashlib
from dataclasses import replace
from datetime import datetime
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from orchestrator import __version__
from orchestrator.report import facts, words
from orchestrator.report.chart import chart_of
from orchestrator.report.references import reference_points
from orchestrator.report.section import Section, Table
from orchestrator.report.story import exit_text, tell
from orchestrator.report.text import clean
from orchestrator.report.views import (
    AttemptView,
    ReplayView,
    RunView,
    Score,
    ScoringView,
    ending_reason,
    exit_facts_of,
    headline,
    relaxations_of,
    score_of,
    scoring_of,
    state_word,
)
from orchestrator.storage import durable

_PACKAGE = "orchestrator.report"


def environment() -> Environment:
    """Make the one template environment; autoescape is on for every template."""
    made = Environment(
        loader=PackageLoader(_PACKAGE),
        autoescape=True,
        finalize=_finished,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"utc": words.utc, "elapsed": words.elapsed}
    return made


def render(view: AttemptView, *, now: datetime) -> str:
    """Render the report of an attempt as it stands; ``now`` is printed as the time of writing."""
    style = _style()
    replay = headline(view)
    scoring = scoring_of(replay) if replay else None
    score = score_of(replay) if replay else None
    tables = _tables(view, scoring)
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            style=Markup(style),  # noqa: S704 - our own file, no data in it
            policy=policy(style),
            view=view,
            title=(view.plan.task.title or view.plan.task.name) if view.plan else view.id,
            state=state_word(view),
            score=score,
            scoring=scoring,
            came_from=_came_from(view, replay, scoring),
            why_none=_why_none(view, replay, score),
            why_local=_why_local(view, replay, scoring),
            chart=chart_of(scoring) if scoring else None,
            tables=tables,
            sections=_sections(view, tables),
            story=tell(view),
            hashes=facts.hashes(view),
            figure=words.figure,
            written=f"{now:%Y-%m-%d %H:%M:%S} UTC",
            version=__version__,
        )
    )


def write_report(view: AttemptView, *, now: datetime) -> Path:
    """Write ``analysis/report.html`` of an attempt, replacing an earlier one; return its path.

    Raises:
        StorageFullError: no space; an earlier report is intact.
    """
    folder = view.folder.analysis
    durable.make_folder(folder, exist_ok=True)
    path = folder / "report.html"
    durable.write_file(path, render(view, now=now).encode(), replace=True)
    return path


def policy(style: str) -> str:
    """Write the content security policy of a page whose only style sheet is ``style``."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def _finished(value: object) -> object:
    """Clean text before it is escaped; what is marked safe is our own."""
    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _tables(view: AttemptView, scoring: ScoringView | None) -> tuple[Table, ...]:
    """What heads the page; reference points only beside something they can be held against."""
    found = (facts.scores(scoring), facts.components(scoring)) if scoring else ()
    own = tuple(table for table in found if table.rows)
    points = reference_points(view)
    return (*own, points) if own and points.rows else own


def _came_from(view: AttemptView, replay: ReplayView | None, scoring: ScoringView | None) -> str:
    """Name the replay and the scoring within the attempt that the headline is of."""
    run = scoring or replay
    if replay is None or run is None:
        return ""
    member = facts.member(replay)
    return run.id.removeprefix(f"{view.id}/") + (f" ({member})" if member else "")


def _why_none(view: AttemptView, replay: ReplayView | None, score: Score | None) -> str:
    """Say why there is no score, where no scoring says it."""
    if score is not None:
        return score.reason
    if replay is None:
        return ending_reason(view) or "no replay yet"
    ended = exit_text(exit_facts_of(replay) or None)
    parts = (ended, ending_reason(replay) or state_word(replay))
    return ", ".join(part for part in parts if part)


def _why_local(view: AttemptView, *below: RunView | None) -> tuple[str, ...]:
    """List once what was relaxed on the way to the headline."""
    runs = (view, *(run for run in below if run))
    return tuple(dict.fromkeys(why for run in runs for why in relaxations_of(run)))


def _sections(view: AttemptView, shown: tuple[Table, ...]) -> tuple[Section, ...]:
    """Everything known of the attempt but the tables that head the page already."""
    parts = (
        replace(part, tables=tuple(table for table in part.tables if table not in shown))
        for part in facts.sections(view)
    )
    return tuple(part for part in parts if part.facts or part.tables)


def _style() -> str:
    return resources.files(_PACKAGE).joinpath("templates/report.css").read_text(encoding="utf-8")
