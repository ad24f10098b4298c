"""``orch gpus``: this host's GPUs, who uses them, and whether they are idle."""

from contextlib import closing
from dataclasses import asdict
from typing import Annotated

import typer

from orchestrator import wiring
from orchestrator.cli.context import invocation
from orchestrator.cli.render import emit, emit_json, pairs, table
from orchestrator.config import Settings
from orchestrator.domain.container import DeviceClaim
from orchestrator.domain.device import DeviceLibrary
from orchestrator.errors import EngineUnavailableError
from orchestrator.report.gpus import GpuView, Host, look


def gpus(
    context: typer.Context,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show this host's GPUs, who uses them, and whether they are idle.

    That is one look, with the bounds that a task has when it says nothing else.
    """
    settings, clock = invocation(context).settings, wiring.system_clock()
    locks, permitted = wiring.device_locks(settings), wiring.permitted_holders(settings)
    with closing(wiring.devices()) as devices:
        library = devices.library()
        claims = None if library is None else _claims(settings)
        host = Host(devices, wiring.processes(), locks, clock, permitted, claims or ())
        views = look(host)
    if json:
        emit_json(
            {
                "library": None if library is None else asdict(library),
                "containers_known": claims is not None,
                "devices": [view.document() for view in views],
            }
        )
    elif library is None:
        emit("no GPU: there is no NVIDIA driver here (libnvidia-ml.so.1 cannot be loaded)")
    else:
        _print(library, views)
        if claims is None:
            emit("no container engine answers: which containers were given a GPU is not known")


def _claims(settings: Settings) -> tuple[DeviceClaim, ...] | None:
    """Ask the engine which containers were given devices; None where there is no engine."""
    try:
        with closing(wiring.engine(settings)) as engine:
            return engine.device_claims()
    except EngineUnavailableError:
        return None


def _print(library: DeviceLibrary, views: tuple[GpuView, ...]) -> None:
    if views:
        emit("\n".join(table(GpuView.HEADINGS, (view.cells() for view in views))))
    else:
        emit("no GPU: the NVIDIA driver knows none")
    if reasons := [(str(view.number), view.why) for view in views if view.why]:
        emit("\n".join(("", "why", *pairs(reasons))))
    if rows := [row for view in views for row in view.process_cells()]:
        emit("\n".join(("", *table(GpuView.PROCESS_HEADINGS, rows))))
    emit()
    emit(f"NVIDIA driver {library.driver}, {library.path}")
    if not library.official:
        emit("that library is a stand-in: nothing that runs on these devices is official")
