"""Find agents by name. Each is an entry point of the group ``orchestrator.agents``."""

import difflib
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import cast

from orchestrator.errors import UsageError
from orchestrator.ports import Agent
from orchestrator.storage.pack import Pack

GROUP = "orchestrator.agents"


def agent_names() -> tuple[str, ...]:
    """Name every installed agent."""
    return tuple(sorted(point.name for point in entry_points(group=GROUP)))


def make_agent(name: str, pack: Pack) -> Agent:
    """Make the agent ``name`` for a task.

    Raises:
        UsageError: there is no such agent; near names are given.
        TaskPackError: the task lacks what the agent needs.
    """
    for point in entry_points(group=GROUP):
        if point.name == name:
            factory = cast("Callable[[Pack], Agent]", point.load())
            return factory(pack)
    known = agent_names()
    near = difflib.get_close_matches(name, known, n=3) or known
    raise UsageError(f"there is no agent {name!r}", remedy=f"try one of: {', '.join(near)}")
