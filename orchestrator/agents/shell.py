"""A person at a terminal, inside the exploration's container."""

from dataclasses import dataclass

from typing_extensions import override

from orchestrator import __version__
from orchestrator.ports import Agent, AgentSession
from orchestrator.storage.pack import Pack


@dataclass(frozen=True)
class ShellAgent(Agent):
    """Joins the operator's terminal to ``bash``; leaving the shell ends the exploration."""

    pack: Pack

    @property
    @override
    def name(self) -> str:
        return "shell"

    @property
    @override
    def digest(self) -> str:
        return f"orch:{__version__}"

    @property
    @override
    def interactive(self) -> bool:
        return True

    @override
    def run(self, session: AgentSession) -> None:
        session.attach_terminal()
