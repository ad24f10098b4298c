"""The runs folder as a command that reads finds it."""

import contextlib
import os
from pathlib import Path

import typer

from orchestrator.cli.context import invocation
from orchestrator.storage.durable import folder_faults
from orchestrator.storage.layout import RunsFolder


def runs_folder(context: typer.Context) -> RunsFolder:
    """Return the runs folder of this call, as ``readable`` does."""
    return readable(invocation(context).settings.runs)


def readable(root: Path) -> RunsFolder:
    """Return a runs folder; one that is not there yet holds nothing.

    Raises:
        UsageError: it is no folder, or may not be read.
    """
    unusable = folder_faults("the runs folder", root, "name another: --runs, or ORCH_RUNS")
    with unusable, contextlib.suppress(FileNotFoundError):
        os.scandir(root).close()
    return RunsFolder(root)
