"""A person at a terminal, inside the exploration's container."""

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import override

from orchestrator.errors import UsageError
from orchestrator.ports import Agent, AgentSession
from orchestrator.storage.pack import Pack


@dataclass(frozen=True)
class ShellAgent(Agent):
    """Joins the operator's terminal to ``bash``; leaving the shell ends the exploration."""

    pack: Pack

    def __post_init__(self) -> None:
        if not sys.stdin.isatty():
            raise UsageError(
                "agent 'shell' is a person at a terminal, and this is none",
                remedy="run it in a terminal, or choose another --agent",
            )

    @property
    @override
    def name(self) -> str:
        return "shell"

    @property
    @override
    def digest(self) -> str:
        """What it is: this file. What the person is, no digest says."""
        return "sha256:" + hashlib.sha256(Path(__file__).read_bytes()).hexdigest()

    @property
    @override
    def interactive(self) -> bool:
        return True

    @override
    def run(self, session: AgentSession) -> None:
        session.attach_terminal()
