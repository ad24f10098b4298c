"""``orch task``: list the bundled tasks, check a pack, make its assets."""

import shlex
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from orchestrator import wiring
from orchestrator.cli.context import invocation
from orchestrator.cli.options import Gpu, Official, Wait
from orchestrator.cli.render import Stream, emit, emit_json, table
from orchestrator.cli.task_import import import_task
from orchestrator.config import Settings
from orchestrator.errors import Exit
from orchestrator.phases import prepare as preparation
from orchestrator.phases import task_check
from orchestrator.report.words import figure
from orchestrator.storage.assets import AssetStore
from orchestrator.storage.pack import Severity, bundled_name, bundled_packs, load_pack
from orchestrator.storage.starter import start_pack

app = typer.Typer(add_completion=False, rich_markup_mode=None)

Pack = Annotated[
    Path,
    typer.Argument(metavar="TASK", help="A task.yaml, its folder, or a bundled task's name."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.callback(invoke_without_command=True)
def root(context: typer.Context, *, json: Json = False) -> None:
    """List the tasks that come with orch."""
    if context.invoked_subcommand is not None:
        return
    rows = [
        (bundled_name(source), pack.spec.title, pack.spec.score.metric, pack.digest)
        for source in bundled_packs()
        for pack in (load_pack(source),)
    ]
    headings = ("name", "title", "metric", "digest")
    if json:
        emit_json([dict(zip(headings, row, strict=True)) for row in rows])
    else:
        emit("\n".join(table(headings, rows)))


@app.command()
def new(
    folder: Annotated[
        Path, typer.Argument(metavar="NAME", help="The folder to make; its name is the task's.")
    ],
) -> None:
    """Make a small pack that runs end to end, to be changed into a task of your own."""
    start_pack(folder)
    shown = shlex.quote(str(folder))
    emit(f"{folder} is a whole task; each of its files says what it is for. Next:")
    emit(f"  orch task prepare {shown}\n  orch task check {shown}\n  orch explore {shown}")


@app.command()
def check(context: typer.Context, task: Pack, *, json: Json = False) -> Exit:
    """Find every fault of a task pack, each with its line. Exit 65 if one is an error."""
    settings = invocation(context).settings
    with closing(wiring.engine(settings)) as engine:
        faults = task_check.run(task, task_check.CheckPorts(engine, AssetStore(settings.assets)))
    if json:
        emit_json([asdict(fault) for fault in faults])
    else:
        emit("\n".join(map(str, faults)) or f"{task}: no faults")
    refused = any(fault.severity is Severity.ERROR for fault in faults)
    return Exit.TASK_PACK if refused else Exit.OK


@app.command()
def prepare(
    context: typer.Context,
    task: Pack,
    *,
    update: Annotated[
        bool,
        typer.Option(
            "--update", help="Make all again, as after a change of prepare.py; lock what comes out."
        ),
    ] = False,
    given: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", help="Where the assets lie that you bring yourself."),
    ] = None,
    json: Json = False,
) -> None:
    """Make, fetch or take over a task's assets, and lock their digests."""
    plan = preparation.PreparePlan(load_pack(task), update=update, given=given)
    with _ports(invocation(context).settings) as ports:
        done = preparation.run(plan, ports)
    if json:
        emit_json([{**asdict(asset), "folder": str(asset.folder)} for asset in done])
        return
    rows = [(asset.asset, asset.how, asset.digest, str(asset.folder)) for asset in done]
    emit("\n".join(table(("asset", "state", "digest", "folder"), rows)))


@app.command()
def baseline(
    context: typer.Context,
    task: Pack,
    *,
    gpu: Gpu = "auto",
    wait: Wait = "0",
    official: Official = False,
    json: Json = False,
) -> None:
    """Measure the start and the shipped solution formally; write both into the pack."""
    from orchestrator.cli.run import asked, working  # noqa: PLC0415 - the other commands run nothing
    from orchestrator.pipeline.baseline import measure  # noqa: PLC0415

    before = load_pack(task)
    with working(context, asked=asked(context, gpu, wait)) as ctx:
        points = [one.point for one in measure(ctx, task, official=official)]
    after = load_pack(task)
    if json:
        digests = {"measured": before.digest, "now": after.digest}
        emit_json({"reference": [p.model_dump(mode="json") for p in points], "pack": digests})
        return
    rows = [(p.name, figure(p.value), p.note) for p in points]
    emit("\n".join(table(("reference", before.spec.score.metric, "note"), rows)))
    emit(
        f"written into {after.source}, which makes it {after.digest}: attempts that were made with"
        f" the pack before ({before.digest}) need that file back to be replayed or scored again"
    )


app.command("import")(import_task)


@contextmanager
def _ports(settings: Settings) -> Iterator[preparation.PreparePorts]:
    with closing(wiring.engine(settings)) as engine:
        yield preparation.PreparePorts(
            engine=engine,
            store=AssetStore(settings.assets),
            fetcher=partial(wiring.fetcher, settings),
            clock=wiring.system_clock(),
            users=wiring.users(),
            say=lambda line: emit(line, to=Stream.ERR),
        )
