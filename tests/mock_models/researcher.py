"""A mock model that drives a shell tool, whatever the agent calls it: one step a request."""

import threading
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tests.mock_models.turns import Act, Seen, Turn

_TOOLS = {
    "exec_command": "cmd",
    "Bash": "command",
    "bash": "command",
    "shell": "command",
    "run_shell_command": "command",
}
"""Each agent's shell by its name, and what it calls a command."""
_MORE: Mapping[str, Mapping[str, Any]] = {
    "exec_command": {"yield_time_ms": 120_000},
    "Bash": {"description": "a step"},
    "bash": {"description": "a step"},
    "run_shell_command": {"description": "a step"},
}


_SUBSTITUTES = frozenset("$`")
"""Gemini CLI refuses what puts one command into another, and sees that also where it is none."""


class Researcher:
    """Answers a request that offers a shell with the next step; None ends the agent's turn."""

    def __init__(self, steps: Iterable[str | None]) -> None:
        self._steps = iter(steps)
        self._lock = threading.Lock()

    def __call__(self, seen: Seen) -> Act:
        names = set(_names(seen.body or {}))
        tool = next((name for name in _TOOLS if name in names), None)
        if tool is None:
            return Turn(text="A title")
        with self._lock:
            step = next(self._steps, None)
        if step is None:
            return Turn(text="That is all.")
        if tool == "run_shell_command" and not _SUBSTITUTES.isdisjoint(step):
            step = f"echo {b64encode(step.encode()).decode()} | base64 -d | bash"
        arguments = {_TOOLS[tool]: step, **_MORE.get(tool, {})}
        return Turn(text="The next step.", tool=tool, arguments=arguments)


def _names(body: Mapping[str, Any]) -> Iterator[str]:
    for entry in body.get("tools") or ():
        for declared in entry.get("functionDeclarations") or [entry]:
            yield (declared.get("function") or declared).get("name", "")
