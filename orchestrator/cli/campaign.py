"""``orch campaign``: the register of everything that was started, and its head to publish."""

from collections.abc import Iterator
from typing import Annotated

import typer

from orchestrator.cli import logging
from orchestrator.cli.context import invocation
from orchestrator.cli.folder import runs_folder
from orchestrator.cli.render import emit, emit_json, table
from orchestrator.errors import UsageError
from orchestrator.lifecycle.machine import is_terminal
from orchestrator.report.views import KINDS, RunView, attempts
from orchestrator.storage.campaign import Campaign, CampaignRecord, CampaignView, read_campaign
from orchestrator.storage.layout import RunsFolder
from orchestrator.storage.supervisor import is_supervised
from orchestrator.wiring import system_clock

app = typer.Typer(add_completion=False, rich_markup_mode=None)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.callback(invoke_without_command=True)
def root(context: typer.Context, *, json: Json = False) -> None:
    """List everything that was registered in the runs folder, oldest first."""
    if context.invoked_subcommand is None:
        _show(runs_folder(context), json=json)


@app.command()
def show(context: typer.Context, *, json: Json = False) -> None:
    """List everything that was registered in the runs folder, oldest first."""
    _show(runs_folder(context), json=json)


@app.command()
def head(context: typer.Context, *, json: Json = False) -> None:
    """Print the head of the log, to be published where it cannot be changed."""
    view = _read(runs_folder(context))
    last = view.records[-1]
    if json:
        emit_json({"head": view.head, "seq": last.seq, "ts": last.ts})
    else:
        emit(view.head)


@app.command()
def close(context: typer.Context) -> None:
    """End the campaign: nothing more is registered in this runs folder. Prints the last head."""
    runs = runs_folder(context)
    _read(runs)
    if (going := next(_going_on(runs), None)) is not None:
        raise UsageError(
            f"{going} goes on: what follows from it could not begin in a closed campaign",
            remedy="close it once every run has ended (orch status); orch gc ends abandoned ones",
        )
    logging.configure(invocation(context))
    Campaign(runs.campaign, system_clock()).close()
    emit(_read(runs).head)


def _going_on(runs: RunsFolder) -> Iterator[str]:
    """Name the runs that have not ended, or that somebody still sees to."""
    for attempt in attempts(runs):
        scorings = (scoring for replay in attempt.replays for scoring in replay.scorings)
        views: tuple[RunView, ...] = (attempt, *attempt.replays, *scorings)
        for view in views:
            state = view.journal.state
            ended = state is None or is_terminal(KINDS[type(view)], state)
            if not ended or is_supervised(view.folder.root):
                yield view.id


def _read(runs: RunsFolder) -> CampaignView:
    path = runs.campaign
    view = read_campaign(path)
    if not view.records:
        raise UsageError(
            f"nothing was registered in {runs.root}",
            remedy="name the runs folder: --runs, or ORCH_RUNS",
        )
    return view


def _show(runs: RunsFolder, *, json: bool) -> None:
    view = read_campaign(runs.campaign)
    if json:
        emit_json(
            [
                {"seq": r.seq, "ts": r.ts, "event": r.event.value, "data": dict(r.data)}
                for r in view.records
            ]
        )
        return
    rows = [(str(r.seq), r.ts, r.event.value, _told(r)) for r in view.records]
    emit("\n".join(table(("seq", "time (UTC)", "event", "what"), rows)))
    emit(f"head {view.head}")


def _told(record: CampaignRecord) -> str:
    """Lay out a record's data; a digest or an id is known by its beginning."""
    facts = ((name, str(value)) for name, value in record.data.items() if value is not None)
    return " ".join(f"{name}={_short(text)}" for name, text in facts)


def _short(text: str) -> str:
    *recipe, digits = text.rsplit(":", 1)
    return text if len(digits) not in {32, 64} else ":".join((*recipe, digits[:12]))
