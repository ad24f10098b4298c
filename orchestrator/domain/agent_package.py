"""Agents that come from a package registry: what to fetch, and what was fetched."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field

from orchestrator.domain.schema import Digest, Strict

AGENT_FOLDER = "/opt/agent"
"""Where an agent's package is mounted, read-only, in the container that explores."""

Version = Annotated[str, Field(pattern=r"^[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}$")]


class Registry(StrEnum):
    """Where packages come from."""

    NPM = "npm"
    PYPI = "PyPI"


@dataclass(frozen=True, slots=True)
class PackageSource:
    """What an agent consists of, as its own file in ``agents/`` says.

    Attributes:
        agent: the agent's name.
        package: its name in the registry.
        version: what is fetched when nobody asks for another: the one that was tried.
        program: globs below the fetched folder; the files found, in this order, are what runs.
        beside: further packages, with their exact versions, as the registry's client takes them.
            ``{machine}`` stands for the processor in the registry's words.
        lean: whether what the registry's client takes for optional is left out.
        pieces: a glob of files that are one in the order of their names: the first of ``program``.
        command: what installs it, where that is not ``orch agents install``.
    """

    agent: str
    registry: Registry
    package: str
    version: str
    program: tuple[str, ...]
    beside: tuple[str, ...] = ()
    lean: bool = False
    pieces: str = ""
    command: str = ""

    @property
    def again(self) -> str:
        """The command that installs it."""
        return self.command or f"orch agents install {self.agent}"


class AgentPackage(Strict):
    """A package as it was fetched: written beside its folder, and into every plan that uses it.

    ``digest`` is the folder's tree identity, ``size`` its bytes; ``program`` is below the folder.
    """

    format: Literal[1] = 1
    agent: str
    registry: Registry
    package: str
    version: Version
    beside: tuple[str, ...] = ()
    program: tuple[str, ...]
    digest: Digest
    size: int
    files: int
    fetched: str

    @property
    def name(self) -> str:
        """The agent by name and version, as ``--agent`` takes it."""
        return f"{self.agent}@{self.version}"


@dataclass(frozen=True, slots=True)
class InstalledAgent:
    """A package in this host's cache."""

    package: AgentPackage
    folder: Path

    def argv(self) -> tuple[str, ...]:
        """How it is run inside the container, up to its own arguments."""
        return tuple(f"{AGENT_FOLDER}/{path}" for path in self.package.program)


class PlannedPackage(Strict):
    """A package as it was found when a plan was made, in ``folder`` of the host."""

    package: AgentPackage
    folder: str

    @classmethod
    def of(cls, agent: InstalledAgent) -> Self:
        """Put what is installed into a plan."""
        return cls(package=agent.package, folder=str(agent.folder))

    @property
    def installed(self) -> InstalledAgent:
        """What the plan found."""
        return InstalledAgent(self.package, Path(self.folder))
