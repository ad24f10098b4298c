"""``orch compare``: the finished runs of a task side by side."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.folder import runs_folder
from orchestrator.cli.render import emit, emit_json, table
from orchestrator.errors import UsageError
from orchestrator.report.compare import compare as side_by_side
from orchestrator.report.views import attempts
from orchestrator.storage.pack import load_pack


def compare(
    context: typer.Context,
    task: Annotated[
        Path,
        typer.Argument(metavar="TASK", help="A task.yaml, its folder, or a bundled task's name."),
    ],
    *,
    csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """List a task's finished runs with what they measured, the best first.

    A row for each seed that the evaluator measured, then the mean with the sample standard
    deviation; the same over the seeded replays of an attempt.
    """
    if csv and json:
        raise UsageError("--csv and --json are two formats", remedy="leave one of them out")
    runs = runs_folder(context)
    pack = load_pack(task)
    found = side_by_side(attempts(runs), pack)
    if json:
        emit_json([line.document() for line in found.lines])
    elif csv:
        emit(found.csv())
    elif not found.lines:
        emit(f"no finished runs of {pack.spec.name} in {runs.root}")
    else:
        emit("\n".join(table(found.headings(), found.cells())))
        if found.note:
            emit(f"note: {found.note}")
