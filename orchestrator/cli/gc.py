"""``orch gc``: remove what is provably ours and finished, and say why the rest stays."""

from contextlib import closing
from typing import Annotated

import typer

from orchestrator import wiring
from orchestrator.cli.context import invocation
from orchestrator.cli.render import emit, emit_json, table
from orchestrator.cli.run import working
from orchestrator.domain.quantity import human
from orchestrator.pipeline.tidy import Item, collect


def gc(
    context: typer.Context,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would go; remove nothing, end nothing.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Remove what ended runs left behind; say what stays, and why.

    What goes: containers, volumes and half-written files of runs that have ended, reservations of
    dead processes, and images that a newer build has replaced. Records, receipts, candidates,
    checkpoints, logs and whatever a candidate wrote stay.
    """
    settings = invocation(context).settings
    with (
        working(context, dry_run=True) as ctx,
        closing(wiring.old_images(settings)) as images,
    ):
        items = collect(ctx, images, dry_run=dry_run)
    if json:
        emit_json(_document(items))
    else:
        _print(items, dry_run=dry_run)


def _document(items: tuple[Item, ...]) -> dict[str, object]:
    return {
        "removed": [_facts(item) for item in items if not item.kept],
        "kept": [{**_facts(item), "why": item.kept} for item in items if item.kept],
        "freed": _freed(items),
    }


def _facts(item: Item) -> dict[str, object]:
    return {"kind": item.kind.value, "name": item.name, "size": item.size}


def _freed(items: tuple[Item, ...]) -> int:
    return sum(item.size for item in items if not item.kept)


def _print(items: tuple[Item, ...], *, dry_run: bool) -> None:
    gone = "would go" if dry_run else "removed"
    if items:
        rows = (
            (
                "kept" if item.kept else gone,
                item.kind,
                item.name,
                human(item.size) if item.size else "-",
                item.kept,
            )
            for item in sorted(items, key=lambda item: bool(item.kept))
        )
        emit("\n".join(table(("", "what", "name", "size", "why it stays"), rows)))
    count = sum(not item.kept for item in items)
    kept = len(items) - count
    if dry_run:
        emit(f"would remove {count} and free up to {human(_freed(items))}; {kept} kept")
    else:
        emit(f"removed {count} and freed up to {human(_freed(items))}; {kept} kept")
