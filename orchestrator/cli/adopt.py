"""``orch adopt``, which watchdogs start and nobody types: see ``orchestrator/watchdog.py``."""

import signal
from pathlib import Path
from typing import Annotated

import typer

from orchestrator import wiring
from orchestrator.cli import logging
from orchestrator.cli.context import invocation
from orchestrator.cli.progress import Progress, interruptible
from orchestrator.evidence.supervise import StopRequest
from orchestrator.pipeline.adopt import adopt as take_over


def adopt(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")],
    *,
    lock: Annotated[int, typer.Option(help="Its lock: an open descriptor.")],
    since: Annotated[int, typer.Option(help="When its supervisor was gone, by CLOCK_BOOTTIME.")],
    inherited: Annotated[str, typer.Option(help="What that had reserved: descriptors.")] = "",
) -> None:
    """Take over a run whose supervisor is gone.

    SIGINT asks it to stop the run. SIGTERM, which a host that shuts down sends to everybody, is no
    person's wish about the run, and ends this process alone.
    """
    call = invocation(context)
    logging.configure(call)
    stop, progress = StopRequest(), Progress()
    with interruptible(stop, progress):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ctx = wiring.context(call.settings, stop, progress.say, progress.beat)
        try:
            descriptors = tuple(int(number) for number in inherited.split(",") if number)
            take_over(ctx, run, lock, since_ns=since, descriptors=descriptors)
        finally:
            ctx.engine.close()
