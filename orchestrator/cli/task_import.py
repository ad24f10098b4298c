"""``orch task import``: a task from elsewhere as a pack."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.render import emit, emit_json, table
from orchestrator.importing.model import Imported
from orchestrator.importing.reading import read_task
from orchestrator.importing.writing import next_steps, write


def import_task(
    source: Annotated[
        Path,
        typer.Argument(metavar="SOURCE", help="A task's folder, AI4AI-Bench's or Harbor's."),
    ],
    *,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="Where the pack goes, if not to its name."),
    ] = None,
    score_image: Annotated[
        str | None,
        typer.Option("--score-image", metavar="IMAGE", help="The image that scores."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Make a pack of a task from elsewhere; what cannot be kept is refused by its name."""
    imported = read_task(source, score_image=score_image)
    folder = to or Path(imported.name)
    write(imported, folder)
    if json:
        emit_json(
            {
                "pack": str(folder),
                "name": imported.name,
                "origin": imported.origin,
                "differences": list(imported.differences),
                "assets": imported.task["assets"],
                "next": list(next_steps(imported, folder)),
            }
        )
        return
    emit("\n".join(_told(imported, folder)))


def _told(imported: Imported, folder: Path) -> Iterator[str]:
    yield f"{shlex.quote(str(folder))}: {imported.origin}"
    rows = [
        (name, asset["role"], ", ".join(asset.get("also", ())), f"/assets/{asset.get('at', name)}")
        for name, asset in imported.task["assets"].items()
    ]
    yield from table(("asset", "role", "also", "at"), rows) if rows else ()
    yield from (f"differs: {difference}" for difference in imported.differences)
    yield from (f"next: {step}" for step in next_steps(imported, folder))
