"""``orch doctor``: what this host can and cannot do, each with a remedy."""

from contextlib import closing
from dataclasses import asdict
from typing import Annotated

import typer

from orchestrator import wiring
from orchestrator.cli.context import invocation
from orchestrator.cli.render import emit, emit_json, pairs, table
from orchestrator.domain.host import Ability, Level
from orchestrator.errors import Exit


def doctor(
    context: typer.Context,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> Exit | int:
    """Say what this host can and cannot do, each with a remedy."""
    with closing(wiring.host_probe(invocation(context).settings)) as probe:
        abilities = probe.abilities()
    if json:
        emit_json([asdict(ability) for ability in abilities])
    else:
        _print(abilities)
    return next((a.exit_code for a in abilities if a.level is Level.MISSING), Exit.OK)


def _print(abilities: tuple[Ability, ...]) -> None:
    emit("\n".join(table(("", "what", "found"), ((a.level, a.name, a.fact) for a in abilities))))
    lacking = [(a.name, a.remedy) for a in abilities if a.remedy]
    if lacking:
        emit("\n".join(("", "what to do", *pairs(lacking))))
