"""``orch images``: list and build the images that phases run in."""

from contextlib import closing
from dataclasses import asdict
from typing import Annotated

import typer

from orchestrator import wiring
from orchestrator.cli.context import invocation
from orchestrator.cli.render import Stream, emit, emit_json, table
from orchestrator.config import Settings

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """List the images that phases run in: current, stale (the recipe changed) or absent."""
    if context.invoked_subcommand is None:
        _list(invocation(context).settings, json=json)


@app.command()
def build(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...")] = None,
    *,
    base: Annotated[
        str | None,
        typer.Option(help="An image to build on, best by digest, in place of a fresh Debian."),
    ] = None,
) -> None:
    """Build the named images, or the usual ones, where they are not current."""
    settings = invocation(context).settings
    with closing(wiring.image_builder(settings)) as builder:
        builder.build(names or (), lambda line: emit(line, to=Stream.ERR), base=base)
    _list(settings, json=False)


def _list(settings: Settings, *, json: bool) -> None:
    with closing(wiring.image_builder(settings)) as builder:
        found = builder.status()
    with closing(wiring.engine(settings)) as engine:
        identities = [engine.image(i.reference).digest if i.present else None for i in found]
    pairs = list(zip(found, identities, strict=True))
    if json:
        emit_json([{**asdict(image), "identity": identity} for image, identity in pairs])
        return
    rows = [
        (image.name, image.state, f"{image.size / 1e6:.0f} MB", identity or "-")
        for image, identity in pairs
    ]
    emit("\n".join(table(("name", "state", "size", "identity"), rows)))
