"""The commands that read: ``status``, ``show``, ``lifecycle``, ``logs`` and ``report``.

They append nothing, repair nothing and judge nothing.
"""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import Annotated

import typer

from orchestrator.cli.folder import runs_folder
from orchestrator.cli.render import emit, emit_json, pairs, table
from orchestrator.errors import TaskPackError, UsageError
from orchestrator.report import lookup, words
from orchestrator.report.documents import document
from orchestrator.report.facts import next_command, sections
from orchestrator.report.html import write_report
from orchestrator.report.output import Follower, output_files, told
from orchestrator.report.overview import Row, overview
from orchestrator.report.story import Moment, tell
from orchestrator.report.text import one_line
from orchestrator.report.views import AttemptView, attempts, faults_below, read, read_attempt
from orchestrator.storage.durable import folder_faults
from orchestrator.storage.layout import RunFolder
from orchestrator.storage.supervisor import is_supervised
from orchestrator.wiring import system_clock

_LOOK_AGAIN_S = 0.3

Id = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="A run id, a path id, the beginning of either, or a run's folder."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def status(context: typer.Context, *, json: Json = False) -> None:
    """List attempts with their state and best score."""
    runs = runs_folder(context)
    rows = overview(attempts(runs), now=system_clock().utc())
    if json:
        emit_json([row.document() for row in rows])
    elif rows:
        emit("\n".join(table(Row.HEADINGS, (row.cells() for row in rows))))
        for fault in (fault for row in rows for fault in row.faults()):
            emit(one_line(f"fault: {fault}"))
    else:
        emit(f"no attempts in {runs.root}; start one: orch explore digits_class0")


def show(context: typer.Context, run: Id, *, json: Json = False) -> None:
    """Show everything known of one run."""
    view = read(lookup.resolve(runs_folder(context), run))
    if json:
        emit_json(document(view))
        return
    for section in sections(view):
        emit(section.title)
        if section.facts:
            emit("\n".join(pairs(section.facts)))
        for part in section.tables:
            if part.title != section.title:
                emit(f"  {part.title}")
            emit("\n".join(f"    {line}" for line in table(part.headings, part.rows)))
        emit()
    if isinstance(view, AttemptView):
        emit(f"next: {next_command(view)}")


def lifecycle(context: typer.Context, run: Id, *, json: Json = False) -> None:
    """Tell the story of one run with its times."""
    view = read(lookup.resolve(runs_folder(context), run))
    story = tell(view)
    if json:
        emit_json([moment.document() for moment in story])
        return
    emit("\n".join(table(("time (UTC)", "elapsed", "run", "event", "what"), map(_told, story))))
    for fault in faults_below(view):
        emit(one_line(f"fault: {fault}"))


def logs(
    context: typer.Context,
    run: Id,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="The bytes as they came; never to a terminal.")
    ] = False,
    json: Json = False,
) -> None:
    """Print what a run's container wrote."""
    found = lookup.resolve(runs_folder(context), run)
    files = output_files(found)
    if follow and (raw or json):
        raise UsageError("--follow prints text", remedy="leave out --raw and --json")
    if raw and json:
        raise UsageError("--raw prints bytes, --json a document", remedy="leave out one of them")
    if follow:
        _follow(found)
    elif raw:
        _copy_raw(files)
    elif json:
        emit_json([{"file": path.name, "lines": list(told(path))} for path in files])
    elif not files:
        emit(f"{lookup.path_id(found)} has written nothing")
    else:
        for path in files:
            emit(f"== {path.name}")
            for line in told(path):
                emit(line)


def report(context: typer.Context, run: Id, *, json: Json = False) -> None:
    """Write an attempt's report as one HTML file."""
    found = lookup.resolve(runs_folder(context), run)
    view = read_attempt(lookup.attempt_of(found))
    if view.plan is None or view.journal.state is None:
        raise TaskPackError(
            f"there is nothing to report of {view.id}: {'; '.join(view.faults)}",
            remedy="nothing was touched; orch show prints what can be read",
        )
    folder = view.folder.analysis
    with folder_faults("the folder", folder, "copy the runs folder to where files can be made"):
        path = write_report(view, now=system_clock().utc())
    if json:
        emit_json({"id": view.id, "report": str(path)})
    else:
        emit(str(path))


def _told(moment: Moment) -> tuple[str, ...]:
    since = "" if moment.elapsed is None else words.elapsed(moment.elapsed)
    return words.utc(moment.utc).removesuffix(" UTC"), since, moment.run, moment.event, moment.text


def _follow(run: RunFolder) -> None:
    """Print what is added until nobody works on the run any more."""
    follower, never, clock = Follower(run), Event(), system_clock()
    going = True
    while going:
        going = is_supervised(run.root) and not run.complete.exists()
        for line in follower.news():
            emit(line)
        if going:
            clock.wait(never, _LOOK_AGAIN_S)


def _copy_raw(files: Sequence[Path]) -> None:
    if sys.stdout.isatty():
        raise UsageError(
            "raw output may act on a terminal",
            remedy="send it elsewhere: orch logs --raw ID > FILE",
        )
    for path in files:
        with path.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
    sys.stdout.buffer.flush()
