"""``orch agents``: list what can explore, and fetch what comes from a registry."""

from typing import Annotated, Any

import typer

from orchestrator import wiring
from orchestrator.agents.registry import agent_names, package_of, split_version
from orchestrator.cli.context import invocation
from orchestrator.cli.render import Stream, emit, emit_json, table
from orchestrator.config import Settings
from orchestrator.domain.agent_package import AgentPackage
from orchestrator.errors import UsageError

app = typer.Typer(add_completion=False, rich_markup_mode=None)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.callback(invoke_without_command=True)
def root(context: typer.Context, *, json: Json = False) -> None:
    """List agents: those that come with orch, and those fetched from a registry."""
    if context.invoked_subcommand is None:
        _list(invocation(context).settings, json=json)


@app.command("list")
def list_(context: typer.Context, *, json: Json = False) -> None:
    """List agents with their versions, digests and sizes."""
    _list(invocation(context).settings, json=json)


@app.command()
def install(
    context: typer.Context,
    names: Annotated[
        list[str], typer.Argument(metavar="NAME[@VERSION]...", help="See orch agents.")
    ],
) -> None:
    """Fetch agents from npm or PyPI into this host's cache, each as the version that was tried."""
    packages = wiring.agent_packages(invocation(context).settings)
    wanted = []
    for name in names:
        plain, version = split_version(name)
        source = package_of(plain)
        if source is None:
            raise UsageError(f"agent {plain} comes with orch", remedy=f"--agent {plain} will do")
        wanted.append((source, version))
    for source, version in wanted:
        found = packages.install(source, version, lambda line: emit(line, to=Stream.ERR))
        emit(f"{found.package.name} is installed: {_size(found.package)}, {found.package.digest}")


def _list(settings: Settings, *, json: bool) -> None:
    rows = list(_rows(settings))
    if json:
        emit_json(rows)
        return
    cells = [
        (
            row["agent"],
            row["version"] or "-",
            "-" if row["size"] is None else f"{row['size'] / 1e6:.0f} MB",
            row["from"],
            row["digest"] or row["state"],
        )
        for row in rows
    ]
    emit("\n".join(table(("agent", "version", "size", "from", "digest"), cells)))


def _rows(settings: Settings) -> list[dict[str, Any]]:
    """Make a row of every package that is here, and of every agent that has none."""
    installed = [found.package for found in wiring.agent_packages(settings).installed()]
    rows: list[dict[str, Any]] = []
    for name in agent_names():
        source = package_of(name)
        here = [package for package in installed if package.agent == name]
        rows.extend(_row(package) for package in here)
        if not here:
            rows.append(
                {
                    "agent": name,
                    "version": None if source is None else source.version,
                    "state": "comes with orch" if source is None else "not installed",
                    "from": "orch" if source is None else f"{source.registry} {source.package}",
                    "size": None,
                    "digest": None,
                }
            )
    return rows


def _row(package: AgentPackage) -> dict[str, Any]:
    return {
        "agent": package.agent,
        "version": package.version,
        "state": "installed",
        "from": f"{package.registry} {package.package}",
        "size": package.size,
        "digest": package.digest,
    }


def _size(package: AgentPackage) -> str:
    return f"{package.size / 1e6:.0f} MB in {package.files} files"
