"""``orch verify``: the same offline check as ``python -m receipts verify``."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.folder import runs_folder
from orchestrator.cli.render import emit, emit_json
from orchestrator.errors import Exit
from orchestrator.report.lookup import resolve
from receipts.errors import KeyUnusableError
from receipts.keys import load_public
from receipts.verify import verify as check
from receipts.verify_model import Wanted
from receipts.verify_report import document, lines


def verify(
    context: typer.Context,
    run: Annotated[
        str, typer.Argument(metavar="DIR|ID", help="A runs folder, a config, or one run of it.")
    ],
    *,
    key: Annotated[
        list[Path] | None, typer.Option(help="A public key you trust (PEM); may be repeated.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="The digest of the task that was to be measured.")
    ] = None,
    campaign: Annotated[
        bool, typer.Option("--campaign", help="Check that nothing registered is missing.")
    ] = False,
    campaign_head: Annotated[
        str | None, typer.Option(help="A head of the campaign log that was published.")
    ] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Hash the assets again, too.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> Exit:
    """Check receipts offline, step by step, and say what each step proves."""
    folder = Path(run)
    if not folder.is_dir():
        folder = resolve(runs_folder(context), run).root
    try:
        keys = tuple(load_public(path) for path in key or ())
    except KeyUnusableError as fault:
        emit(str(fault))
        return Exit.FINDING
    wanted = Wanted(
        keys=keys,
        task=task,
        campaign_head=campaign_head,
        whole_campaign=campaign,
        deep=deep,
    )
    report = check(folder, wanted)
    if json:
        emit_json(document(report))
    else:
        emit("\n".join(lines(report)))
    return Exit(report.verdict)
