"""``orch verify``: the same offline check as ``python -m receipts verify``."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.errors import Exit
from receipts.__main__ import main


def verify(
    context: typer.Context,  # noqa: ARG001 - every command takes it first
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A runs folder, a config, or one run of it.")
    ],
    *,
    key: Annotated[
        list[Path] | None, typer.Option(help="A public key you trust (PEM); may be repeated.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="The digest of the task that was to be measured.")
    ] = None,
) -> Exit:
    """Check receipts offline, step by step, and say what each step proves."""
    arguments = ["verify", str(folder)]
    for path in key or ():
        arguments += ["--key", str(path)]
    if task is not None:
        arguments += ["--task", task]
    return Exit(main(arguments))
