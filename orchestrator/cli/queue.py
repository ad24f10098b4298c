"""``orch queue``: jobs that wait for a worker, and the workers that take them."""
# ruff: noqa: PLC0415 - listing, retrying and cancelling need nothing of what runs a job

import signal
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from orchestrator import wiring
from orchestrator.cli import logging
from orchestrator.cli.context import invocation
from orchestrator.cli.folder import readable
from orchestrator.cli.options import Agent, Gpu, Official
from orchestrator.cli.progress import Progress, asked, heeding
from orchestrator.cli.render import Stream, emit, emit_json, table
from orchestrator.config import Settings
from orchestrator.domain.queue import TAKEN, Job, JobKind, JobStatus
from orchestrator.errors import UsageError
from orchestrator.evidence.supervise import StopRequest
from orchestrator.report import queue as report
from orchestrator.report import words
from orchestrator.report.text import one_line
from orchestrator.storage.layout import AttemptFolder, ReplayFolder, RunsFolder
from orchestrator.storage.queue import Queue
from orchestrator.storage.queue_claim import New

app = typer.Typer(add_completion=False, rich_markup_mode=None)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Status = Annotated[
    list[JobStatus] | None, typer.Option(help="Only jobs that stand so; may be repeated.")
]
Models = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PROVIDER/NAME", help="The agent's model; may be repeated.  [default: none]"
    ),
]
Repeats = Annotated[
    int | None,
    typer.Option(
        min=1, max=1000, help="Explorations of each task and model; or seeded members 1 to N."
    ),
]
Name = Annotated[str, typer.Argument(metavar="JOB", help="The job's name, such as j12.")]


@app.callback(invoke_without_command=True)
def root(context: typer.Context, *, status: Status = None, json: Json = False) -> None:
    """List the jobs of the runs folder's queue."""
    if context.invoked_subcommand is None:
        _list(invocation(context).settings, status or (), json=json)


@app.command("list")
def list_(context: typer.Context, *, status: Status = None, json: Json = False) -> None:
    """List the jobs of the runs folder's queue."""
    _list(invocation(context).settings, status or (), json=json)


@app.command()
def add(
    context: typer.Context,
    tasks: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[TASK]...", help="Explore these: task.yaml, its folder, or a bundled name."
        ),
    ] = None,
    *,
    replay: Annotated[
        str | None, typer.Option(metavar="ATTEMPT", help="Replay this attempt instead.")
    ] = None,
    score: Annotated[
        str | None, typer.Option(metavar="REPLAY", help="Score this replay instead.")
    ] = None,
    agent: Agent = "scripted",
    model: Models = None,
    effort: Annotated[str, typer.Option(help="The model's effort, as of orch explore.")] = "none",
    repeats: Repeats = None,
    through: Annotated[
        JobKind, typer.Option(help="The last kind of job that follows by itself.")
    ] = JobKind.SCORE,
    gpu: Gpu = "auto",
    priority: Annotated[
        int, typer.Option(min=-999, max=999, help="Larger ones go first; equals by age.")
    ] = 0,
    official: Official = False,
    json: Json = False,
) -> None:
    """Add jobs: every TASK with every --model, --repeats times; or one attempt or replay.

    All packs are checked before anything is added: all of it, or nothing.
    """
    from orchestrator.pipeline import enqueue
    from orchestrator.pipeline.agents import Supply

    call = invocation(context)
    logging.configure(call)
    if [bool(tasks), replay is not None, score is not None].count(True) != 1:
        raise UsageError(
            "name either tasks, or one attempt with --replay, or one replay with --score",
            remedy="orch queue add digits_class0",
        )
    wanted = enqueue.Wanted(through, repeats, priority, gpu, official)
    new: Sequence[New]
    if replay is not None:
        new = enqueue.replays(_attempt(call.settings, replay), wanted)
    elif score is not None:
        new = (enqueue.scoring(_replay(call.settings, score), wanted),)
    else:
        supply = Supply(
            partial(wiring.agent_packages, call.settings),
            partial(wiring.model_gateway, call.settings),
        )
        models = model or ("none",)
        new = enqueue.explorations(supply, tasks or (), agent, models, effort, wanted)
    _told(_queue(call.settings).add(new), json=json)


@app.command()
def run(
    context: typer.Context,
    *,
    forever: Annotated[
        bool, typer.Option("--forever", help="Wait for more once the queue is empty.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Take at most N jobs, then end.")
    ] = None,
) -> None:
    """Work: take jobs one after the other until none is left.

    SIGTERM ends it after the job under way. Ctrl-C stops that job too, as its operator's doing.
    """
    from orchestrator.pipeline.reconcile import reconcile
    from orchestrator.pipeline.work import Wishes, work

    call = invocation(context)
    logging.configure(call)
    wishes, progress = Wishes(), Progress()

    def drain() -> str:
        wishes.drain()
        return "no further job is taken; the one under way is seen to its end"

    def interrupt() -> str:
        return asked(wishes.interrupt(), progress)

    with heeding({signal.SIGINT: interrupt, signal.SIGTERM: drain}, progress):
        ctx = wiring.context(call.settings, StopRequest(), progress.say, progress.beat)
        with closing(ctx.engine), closing(ctx.devices):
            reconcile(ctx)
            queue = wiring.queue(call.settings, progress.say)
            done = work(ctx, queue, wishes, forever=forever, limit=jobs)
    progress.say(f"{words.count(done, 'job')} taken; orch queue list shows where they stand")


@app.command()
def retry(
    context: typer.Context,
    job: Name,
    *,
    again: Annotated[
        str, typer.Option(help="Why a job that a person stopped is run again; recorded.")
    ] = "",
    json: Json = False,
) -> None:
    """Put back a job that the machine or a person has ended."""
    call = invocation(context)
    logging.configure(call)
    _told((_queue(call.settings).retry(job, again),), json=json)


@app.command()
def cancel(context: typer.Context, job: Name, *, json: Json = False) -> None:
    """Cancel a queued job; ask the worker of a running one to stop it."""
    call = invocation(context)
    logging.configure(call)
    queue = _queue(call.settings)
    found = queue.cancel(job)
    _told((found,), json=json)
    if found.job in queue.orphans():
        emit(f"{job}: its worker is gone; what its run comes to is booked", to=Stream.ERR)
    elif found.status in TAKEN:
        emit(f"{job}: its worker was asked to stop it; it ends as terminal_operator", to=Stream.ERR)


def _queue(settings: Settings) -> Queue:
    return wiring.queue(settings, lambda line: emit(one_line(line), to=Stream.ERR))


def _list(settings: Settings, status: Sequence[JobStatus], *, json: bool) -> None:
    runs = readable(settings.runs)
    view = Queue(runs, wiring.system_clock(), lambda _: None).read()
    jobs = [job for job in view.jobs if not status or job.status in status]
    if json:
        emit_json([dict(report.document(job, orphan=job.job in view.orphans)) for job in jobs])
    elif jobs:
        rows = (report.cells(job, orphan=job.job in view.orphans) for job in jobs)
        emit("\n".join(table(report.HEADINGS, rows)))
    else:
        such = "such " if view.jobs else ""
        emit(f"no {such}jobs in {runs.queue}; add one: orch queue add digits_class0")
    for fault in view.faults:
        said = f"{runs.queue}:{fault.number}: {fault.reason}"
        emit(one_line(f"{said}; the next command that writes sets it aside"), to=Stream.ERR)


def _told(jobs: Sequence[Job], *, json: bool) -> None:
    if json:
        emit_json([dict(report.document(job, orphan=False)) for job in jobs])
        return
    for job in jobs:
        emit(one_line(f"{job.job}: {job.kind} {report.target(job)}, {job.status}"))


def _attempt(settings: Settings, text: str) -> AttemptFolder:
    from orchestrator.report import lookup

    found = lookup.resolve(RunsFolder(settings.runs), text)
    if not isinstance(found, AttemptFolder):
        raise UsageError(f"{text} is not an attempt", remedy="orch status lists attempts")
    return found


def _replay(settings: Settings, text: str) -> ReplayFolder:
    from orchestrator.report import lookup

    found = lookup.resolve(RunsFolder(settings.runs), text)
    if not isinstance(found, ReplayFolder):
        raise UsageError(f"{text} is not a replay", remedy="orch status lists runs")
    return found
