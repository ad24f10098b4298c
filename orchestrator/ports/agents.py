"""Something that explores, and what it is given to act with."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from orchestrator.domain.agent_package import InstalledAgent, PackageSource
from orchestrator.domain.container import ExecResult
from orchestrator.domain.interface import Interface
from orchestrator.domain.model import Dialect


@dataclass(frozen=True, slots=True)
class SessionModel:
    """The model that an agent is given, as a program in the container reaches it.

    Attributes:
        name: what its requests must name.
        effort: the config's own; empty where it is left to the provider.
        origin: ``http://127.0.0.1:PORT`` of the container's own loopback.
        key: what programs show that insist on a key. It opens nothing.
    """

    name: str
    effort: str
    origin: str
    key: str = "orch-has-the-key"


class ModelRefused(Exception):  # noqa: N818 - a value for the agent, told as its provider would
    """The gateway or the provider answered something else than a completion."""


class AgentSession(Protocol):
    """What an agent is given: a prompt, a way to act in its container, a model, and the time."""

    @property
    def instruction(self) -> str:
        """The rendered instruction of the task."""
        ...

    @property
    def stopping(self) -> threading.Event:
        """Set once the exploration is over; an agent returns soon after."""
        ...

    @property
    def model(self) -> SessionModel:
        """The agent's model. Only an agent that speaks a dialect has one."""
        ...

    @property
    def program(self) -> tuple[str, ...]:
        """How the agent's package is run in the container, up to its own arguments."""
        ...

    def time_left(self) -> float:
        """Seconds until the host ends the exploration."""
        ...

    def execute(self, command: str, *, timeout: float | None = None) -> ExecResult:
        """Run ``bash -c command`` in ``/workspace`` as the agent's user.

        ``timeout`` (at most the task's ``command_wall``) ends every process of the command.
        """
        ...

    def run_program(
        self, argv: tuple[str, ...], env: Mapping[str, str], on_line: Callable[[str], None]
    ) -> ExecResult:
        """Run an agent's own program in ``/workspace``, for as long as it takes.

        It reaches the model at ``model.origin``. What it prints is kept as it comes, and handed
        on line by line.
        """
        ...

    def put(self, changed: Mapping[str, str]) -> None:
        """Make ``/workspace`` the shipped solution with these files, by path and whole text.

        For an agent without a shell, as ``test``.
        """
        ...

    def test(self, changed: Mapping[str, str]) -> ExecResult:
        """Run the shipped solution with these files in a fresh container, on the train role."""
        ...

    def ask(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask the model for one chat completion and return it.

        Raises:
            ModelRefused: there was none; the text says why.
        """
        ...

    def model_asked(self) -> bool:
        """Tell whether anything was asked of the model so far, by the host's own count."""
        ...

    def provider_failed(self) -> bool:
        """Tell whether the last thing that was asked of the model failed for its provider."""
        ...

    def attach_terminal(self) -> int:
        """Give the operator's terminal a shell in the container; return its exit code."""
        ...

    def say(self, text: str) -> None:
        """Put a message of the agent's into the transcript."""
        ...

    def think(self, text: str) -> None:
        """Put a thought of the agent's into the transcript."""
        ...

    def call(self, tool: str, arguments: str) -> None:
        """Put a use of a tool into the transcript that the agent's program made by itself."""
        ...

    def output(self, text: str, exit_code: int | None = None) -> None:
        """Put what such a tool answered into the transcript."""
        ...

    def note(self, what: str, **facts: Any) -> None:
        """Put a fact about how the agent is run into the lifecycle."""
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

    @property
    def interface(self) -> Interface:
        """How it works on a task: in a shell, if it says nothing else."""
        return Interface.SHELL

    @property
    def dialect(self) -> Dialect | None:
        """What it speaks to its model; None for an agent that has none."""
        return None

    @property
    def package(self) -> PackageSource | None:
        """What it needs from a registry; None for one that comes with orch."""
        return None

    @property
    def auxiliary(self) -> tuple[str, ...]:
        """Other models that it may name; the config's own answers for them."""
        return ()

    def run(self, session: AgentSession) -> None:
        """Work until done; returning without a submission is an early exit."""
        ...


class AgentPackages(Protocol):
    """The packages of agents that this host has."""

    def installed(self) -> tuple[InstalledAgent, ...]:
        """List them.

        Raises:
            TaskPackError: a record is faulty.
        """
        ...

    def find(self, source: PackageSource, version: str | None) -> InstalledAgent:
        """Find one; without a version the one that was tried, else the latest fetched.

        Raises:
            UsageError: it is not installed.
        """
        ...

    def verify(self, agent: InstalledAgent) -> None:
        """Hash it.

        Raises:
            AssetMismatchError: it is not what was fetched.
        """
        ...

    def install(
        self, source: PackageSource, version: str | None, say: Callable[[str], None]
    ) -> InstalledAgent:
        """Fetch one, unless it is there; ``say`` hears how it goes.

        Raises:
            UsageError: the registry has no such version, or its client is not installed.
            InfrastructureError: the registry cannot be reached, or refused.
        """
        ...
