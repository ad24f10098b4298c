"""``orch verify``: the same offline check as ``python -m receipts verify``."""

from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Annotated

import typer

from orchestrator.cli.folder import runs_folder
from orchestrator.cli.render import emit, emit_json
from orchestrator.errors import Exit, UsageError
from orchestrator.report.lookup import resolve
from orchestrator.storage.durable import folder_faults
from orchestrator.storage.layout import RunsFolder, run_folder
from orchestrator.storage.supervisor import is_supervised
from orchestrator.wiring import system_clock
from receipts.errors import KeyUnusableError
from receipts.keys import load_public
from receipts.reading import look_into
from receipts.verify import verify as check
from receipts.verify_model import Report, Wanted
from receipts.verify_report import document, lines

_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6)


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
    with folder_faults("the folder", folder, "verify it as a user who may read it"):
        if not folder.is_dir():
            folder = resolve(runs_folder(context), run).root
        look_into(folder)
    try:
        keys = tuple(load_public(path) for path in key or ())
    except KeyUnusableError as fault:
        raise UsageError(str(fault), remedy="name a public key in PEM, as in keys/") from fault
    wanted = Wanted(
        keys=keys,
        task=task,
        campaign_head=campaign_head,
        whole_campaign=campaign,
        deep=deep,
    )
    report = _settled(folder, wanted)
    if json:
        emit_json(document(report))
    else:
        emit("\n".join(lines(report)))
    return Exit(report.verdict)


def _settled(folder: Path, wanted: Wanted) -> Report:
    """Verify, and do so again where what was found may be the moment in which a run ends.

    A run is written file by file: between its last event and its ``.complete`` nothing holds yet.
    """
    runs, clock, never = _around(folder), system_clock(), Event()
    before = _traces(runs)
    report = check(folder, wanted)
    for pause in _PAUSES:
        after = _traces(runs)
        if not report.faults or (before == after and not any(held for *_, held in after)):
            break
        clock.wait(never, pause)
        before = _traces(runs)
        report = check(folder, wanted)
    return report


def _around(folder: Path) -> RunsFolder:
    """Go up to the runs folder that ``folder`` is, or lies in."""
    place = folder.resolve()
    while place.name == "receipts" or run_folder(place) is not None:
        place = place.parent
    return RunsFolder(place.parent if (place / "config.json").is_file() else place)


def _traces(runs: RunsFolder) -> list[tuple[Path, int, bool, bool]]:
    """Note of each run how long its journal is, whether it is committed, and is seen to."""
    found = []
    with suppress(OSError):  # whatever lies there, the verification itself says so
        for run in runs.runs():
            size = run.journal.stat().st_size if run.journal.exists() else 0
            found.append((run.root, size, run.complete.exists(), is_supervised(run.root)))
    return found
