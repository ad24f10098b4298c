"""Something that explores, and what it is given to act with."""

import threading
from typing import Protocol

from orchestrator.domain.container import ExecResult


class AgentSession(Protocol):
    """What an agent is given: a prompt, a way to act in its container, and the time."""

    @property
    def instruction(self) -> str:
        """The rendered instruction of the task."""
        ...

    @property
    def stopping(self) -> threading.Event:
        """Set once the exploration is over; an agent returns soon after."""
        ...

    def time_left(self) -> float:
        """Seconds until the host ends the exploration."""
        ...

    def execute(self, command: str, *, timeout: float | None = None) -> ExecResult:
        """Run ``bash -c command`` in ``/workspace`` as the agent's user.

        ``timeout`` (at most the task's ``command_wall``) ends every process of the command.
        """
        ...

    def attach_terminal(self) -> int:
        """Give the operator's terminal a shell in the container; return its exit code."""
        ...

    def say(self, text: str) -> None:
        """Put a message of the agent's into the transcript."""
        ...


class Agent(Protocol):
    """Something that explores. It acts only through its session."""

    @property
    def name(self) -> str:
        """The name it is known by in configs."""
        ...

    @property
    def digest(self) -> str:
        """``sha256:...`` of what it is (its code or script)."""
        ...

    @property
    def interactive(self) -> bool:
        """Whether it uses the operator's terminal, so that nothing else may write there."""
        ...

    def run(self, session: AgentSession) -> None:
        """Work until done; returning without a submission is an early exit."""
        ...
