"""The commands that run something: ``explore``, ``replay``, ``submit-patch`` and ``score``."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator import wiring
from orchestrator.cli import logging
from orchestrator.cli.context import invocation
from orchestrator.cli.options import Agent, Gpu, Official, Wait
from orchestrator.cli.progress import Progress, interruptible
from orchestrator.cli.render import emit, emit_json
from orchestrator.domain.attempt import Through
from orchestrator.domain.gate import Asked
from orchestrator.domain.quantity import seconds
from orchestrator.domain.records import Aggregate
from orchestrator.errors import Exit, UsageError
from orchestrator.evidence.context import Context
from orchestrator.evidence.supervise import StopRequest
from orchestrator.lifecycle.machine import State
from orchestrator.pipeline import jobs, preview
from orchestrator.pipeline.reconcile import reconcile
from orchestrator.report import lookup
from orchestrator.report.ending import lines as result_lines
from orchestrator.storage.layout import AttemptFolder, ReplayFolder, ScoringFolder
from orchestrator.storage.records import load

Task = Annotated[
    Path, typer.Argument(metavar="TASK", help="task.yaml, its folder, or a bundled task's name.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the whole plan; start nothing.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document at the end.")]
FailOnBehavior = Annotated[
    bool,
    typer.Option("--fail-on-behavior", help="Exit 1 when the candidate came to no valid score."),
]

_GOOD = frozenset({State.SUBMITTED, State.SCORED})


@contextmanager
def working(
    context: typer.Context,
    *,
    dry_run: bool = False,
    replaying: str | None = None,
    asked: Asked | None = None,
) -> Iterator[Context]:
    """Wire everything up, deal with what an earlier command left, and watch for Ctrl-C.

    Args:
        replaying: an attempt whose unfinished replay the command goes on with itself.
        asked: what was asked for of the host besides.
    """
    call = invocation(context)
    logging.configure(call)
    stop, progress = StopRequest(), Progress()
    with interruptible(stop, progress):
        ctx = wiring.context(call.settings, stop, progress.say, progress.beat)
        ctx = replace(ctx, look=dry_run, asked=asked or ctx.asked)
        try:
            if not dry_run:
                mine = None if replaying is None else lookup.resolve(ctx.runs, replaying)
                reconcile(ctx, mine)
            yield ctx
        finally:
            ctx.devices.close()
            ctx.engine.close()


def explore(
    context: typer.Context,
    task: Task,
    *,
    agent: Agent = "scripted",
    model: Annotated[
        str,
        typer.Option(
            metavar="PROVIDER/NAME", help="The agent's model; none for agents without one."
        ),
    ] = "none",
    effort: Annotated[
        str, typer.Option(help="The model's effort; none leaves it to its provider.")
    ] = "none",
    gpu: Gpu = "auto",
    wait: Wait = "0",
    official: Official = False,
    dry_run: DryRun = False,
    json: Json = False,
    fail_on_behavior: FailOnBehavior = False,
) -> Exit:
    """Let an agent work on a task until it submits, gives up, or its time is over."""
    with working(context, dry_run=dry_run, asked=asked(context, gpu, wait)) as ctx:
        pack, plan = jobs.plan_explore(
            ctx, task, agent=agent, model=model, effort=effort, official=official
        )
        if dry_run:
            return _preview(preview.of_explore(ctx, pack, plan), json=json)
        folder, state = jobs.explore(ctx, pack, plan)
    return _told(((folder, state),), json=json, fail=fail_on_behavior)


def replay(
    context: typer.Context,
    attempt: Annotated[str, typer.Argument(metavar="ATTEMPT", help="The attempt's id.")],
    *,
    repeats: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Declare and run seeded members 1 to N.")
    ] = None,
    again: Annotated[
        str | None, typer.Option(help="Why a replay that a person stopped is run again.")
    ] = None,
    through: Annotated[Through, typer.Option(help="How far to go.")] = Through.SCORE,
    gpu: Gpu = "auto",
    wait: Wait = "0",
    official: Official = False,
    dry_run: DryRun = False,
    json: Json = False,
    fail_on_behavior: FailOnBehavior = False,
) -> Exit:
    """Run an attempt's candidate formally, then score it."""
    wanted = asked(context, gpu, wait)
    with working(context, dry_run=dry_run, replaying=attempt, asked=wanted) as ctx:
        found = lookup.resolve(ctx.runs, attempt)
        if not isinstance(found, AttemptFolder):
            raise UsageError(
                f"{attempt} is {lookup.path_id(found)}, not an attempt",
                remedy=f"its attempt: orch replay {lookup.path_id(lookup.attempt_of(found))}",
            )
        if dry_run:
            planned = preview.of_replay(ctx, found, repeats=repeats, official=official)
            return _preview(planned, json=json)
        done = jobs.replay(
            ctx, found, repeats=repeats, again=again, through=through, official=official
        )
    return _told(_steps(done), json=json, fail=fail_on_behavior)


def submit_patch(
    context: typer.Context,
    task: Task,
    patch: Annotated[Path, typer.Argument(metavar="FILE", help="The patch.")],
    *,
    official: Official = False,
    json: Json = False,
) -> Exit:
    """Enter a patch as a candidate, without an exploration."""
    with working(context) as ctx:
        step = jobs.submit_patch(ctx, task, patch, official=official)
    return _told((step,), json=json, fail=False)


def score(
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(metavar="REPLAY|TASK", help="A replay's id; with --checkpoint a task.")
    ],
    *,
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(metavar="N=DIR", help="Score this existing checkpoint; may be repeated."),
    ] = None,
    reference_run: Annotated[
        bool, typer.Option("--reference-run", help="Let the evaluator accept the start itself.")
    ] = False,
    gpu: Gpu = "auto",
    wait: Wait = "0",
    official: Official = False,
    json: Json = False,
    fail_on_behavior: FailOnBehavior = False,
) -> Exit:
    """Score a replay once more, or checkpoints that exist already."""
    with working(context, asked=asked(context, gpu, wait)) as ctx:
        if checkpoint:
            entered = jobs.score_checkpoints(
                ctx,
                Path(target),
                _named(checkpoint),
                reference_run=reference_run,
                official=official,
            )
            steps = _steps((entered,))
        else:
            found = lookup.resolve(ctx.runs, target)
            if not isinstance(found, ReplayFolder):
                raise UsageError(
                    f"{target} is {lookup.path_id(found)}, not a replay",
                    remedy=f"orch show {target} names the replay that it is of, or has",
                )
            steps = (jobs.score(ctx, found, reference_run=reference_run, official=official),)
    return _told(steps, json=json, fail=fail_on_behavior)


Step = tuple[AttemptFolder | ReplayFolder | ScoringFolder, State]


def _steps(done: tuple[jobs.Replayed, ...]) -> tuple[Step, ...]:
    """List what ended, in order."""
    found: list[Step] = []
    for item in done:
        found.append((item.folder, item.state))
        if item.scoring is not None and item.scored is not None:
            found.append((item.scoring, item.scored))
    return tuple(found)


def _told(steps: tuple[Step, ...], *, json: bool, fail: bool) -> Exit:
    """Print how each run ended and what to do next."""
    if json:
        emit_json([{**_document(folder), "state": state.value} for folder, state in steps])
    else:
        for folder, state in steps:
            emit("\n".join(result_lines(folder, state)))
    last = steps[-1][1]
    return Exit.FINDING if fail and last not in _GOOD else Exit.OK


def _document(folder: AttemptFolder | ReplayFolder | ScoringFolder) -> dict[str, Any]:
    found = {
        "id": lookup.path_id(folder),
        "run_id": lookup.run_id(folder),
        "path": str(folder.root),
    }
    if isinstance(folder, ScoringFolder) and folder.summary.exists():
        return {**found, "best": load(folder.summary, Aggregate).model_dump(mode="json")["best"]}
    return found


def _preview(document: Mapping[str, Any], *, json: bool) -> Exit:
    if json:
        emit_json(document)
    else:
        emit("\n".join(preview.lines(document)))
    return Exit.OK


def asked(context: typer.Context, gpu: str, wait: str) -> Asked:
    """Read ``--gpu`` and ``--wait``; the former's variable may be there for other tasks.

    Raises:
        UsageError: the latter is no duration.
    """
    source = context.get_parameter_source("gpu")
    typed = gpu != "auto" and source is not None and source.name == "COMMANDLINE"
    try:
        return Asked(gpu, seconds(wait), typed=typed)
    except ValueError as wrong:
        raise UsageError(f"--wait: {wrong}", remedy="--wait 30m") from wrong


def _named(checkpoints: list[str]) -> dict[str, Path]:
    """Split ``N=DIR`` options.

    Raises:
        UsageError: one is not of that form, or a number is given twice.
    """
    found: dict[str, Path] = {}
    for text in checkpoints:
        progress, equals, folder = text.partition("=")
        if not equals or progress in found:
            raise UsageError(
                f"--checkpoint {text!r} is not N=DIR, or N is given twice",
                remedy="--checkpoint 7800=path/to/folder",
            )
        found[progress] = Path(folder)
    return found
