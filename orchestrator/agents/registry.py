"""Find agents by name. Each is an entry point of the group ``orchestrator.agents``."""

import difflib
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, cast

from orchestrator.domain.agent_package import PackageSource
from orchestrator.errors import UsageError
from orchestrator.ports import Agent
from orchestrator.storage.pack import Pack

GROUP = "orchestrator.agents"


def agent_names() -> tuple[str, ...]:
    """Name every installed agent."""
    return tuple(sorted(point.name for point in entry_points(group=GROUP)))


def make_agent(name: str, pack: Pack) -> Agent:
    """Make the agent ``name`` for a task; ``NAME@VERSION`` is the same agent.

    Raises:
        UsageError: there is no such agent; near names are given.
        TaskPackError: the task lacks what the agent needs.
    """
    return cast("Callable[[Pack], Agent]", _factory(split_version(name)[0]))(pack)


def package_of(name: str) -> PackageSource | None:
    """Say what an agent needs from a registry; None for one that comes with orch.

    Raises:
        UsageError: there is no such agent; near names are given.
    """
    found = getattr(_factory(name), "source", None)
    return found if isinstance(found, PackageSource) else None


def split_version(name: str) -> tuple[str, str | None]:
    """Split ``NAME@VERSION``; without a version the second is None."""
    agent, _, version = name.partition("@")
    return agent, version or None


def _factory(name: str) -> Any:
    for point in entry_points(group=GROUP):
        if point.name == name:
            return point.load()
    known = agent_names()
    near = difflib.get_close_matches(name, known, n=3) or known
    raise UsageError(f"there is no agent {name!r}", remedy=f"try one of: {', '.join(near)}")
