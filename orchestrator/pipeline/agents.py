"""Choose an agent and its model: what ``--agent``, ``--model`` and ``--effort`` come to."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.agents.registry import agent_names, make_agent, split_version
from orchestrator.domain.agent_package import InstalledAgent, PlannedPackage
from orchestrator.domain.interface import Interface
from orchestrator.domain.model import NO_MODEL, RECORDED, Dialect
from orchestrator.domain.records import AttemptPlan
from orchestrator.errors import UsageError
from orchestrator.evidence.context import Context
from orchestrator.evidence.model_room import effort_of
from orchestrator.ports import Agent, AgentPackages
from orchestrator.ports.models import ModelGateway
from orchestrator.storage.pack import Pack

_BUDGETED = frozenset({Dialect.MESSAGES, Dialect.GEMINI})
"""Dialects in which thinking may be measured in tokens."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """An agent that can be run. ``name`` holds its version, where it has one.

    ``stands_in`` says what its model is, where that is not a provider's.
    """

    name: str
    agent: Agent
    installed: InstalledAgent | None
    stands_in: str = ""

    def completed(self, plan: AttemptPlan) -> AttemptPlan:
        """Add to a plan what the agent and its model bring along.

        Raises:
            UsageError: the plan is official, and the model a recording or a local one.
        """
        if self.stands_in and plan.official:
            raise UsageError(
                f"{self.stands_in.partition(',')[0]}, which is never official",
                remedy="leave out --official for a local result",
            )
        relaxed = (self.stands_in,) if self.stands_in else ()
        package = None if self.installed is None else PlannedPackage.of(self.installed)
        return plan.model_copy(
            update={
                "agent_package": package,
                "auxiliary_models": self.agent.auxiliary,
                "relaxations": (*plan.relaxations, *relaxed),
            }
        )


@dataclass(frozen=True, slots=True)
class Supply:
    """Where agents' packages and models come from; neither is built before it is asked for."""

    packages: Callable[[], AgentPackages]
    models: Callable[[], ModelGateway]

    def choose(self, name: str, pack: Pack, *, model: str, effort: str) -> Chosen:
        """Check that the agent can be run with this model.

        Raises:
            UsageError: there is no such agent or model, it is not installed, one does not go with
                the other, or the model's key is missing.
            TaskPackError: the task lacks what the agent needs.
        """
        agent, (plain, version) = _made(name, pack), split_version(name)
        stands_in = self._check_model(agent, pack, model, effort)
        if agent.package is None:
            if version is not None:
                raise UsageError(f"agent {plain} comes with orch", remedy=f"--agent {plain}")
            return Chosen(name, agent, None, stands_in)
        installed = self.packages().find(agent.package, version)
        return Chosen(installed.package.name, agent, installed, stands_in)

    def _check_model(self, agent: Agent, pack: Pack, model: str, effort: str) -> str:
        """Return what the model is, where it stands in for a provider's."""
        dialect = agent.dialect
        if dialect is None:
            if model != NO_MODEL:
                raise UsageError(
                    f"agent {agent.name!r} works without a model, and {model!r} was given",
                    remedy="leave out --model, or give --model none",
                )
            if effort_of(effort):
                raise UsageError(
                    f"agent {agent.name!r} works without a model, and --effort {effort} was given",
                    remedy="leave out --effort, or give --effort none",
                )
            return ""
        if model == NO_MODEL:
            raise UsageError(
                f"agent {agent.name!r} needs a model",
                remedy="--model PROVIDER/NAME; see docs/models.md",
            )
        choice = self.models().choose(model, effort_of(effort), pack.spec.explore.budget)
        if dialect not in choice.dialects:
            add = ", or add the dialect to the provider in orch.toml" if choice.upstream else ""
            raise UsageError(
                f"agent {agent.name!r} speaks {_words((dialect,))}, "
                f"and {model} is served as {_words(choice.dialects)}",
                remedy=f"choose another agent{add}; docs/agents.md says what each speaks",
            )
        if choice.effort.isdecimal() and dialect not in _BUDGETED:
            raise UsageError(
                f"--effort {choice.effort} is a budget of thinking, and {dialect.value} has none",
                remedy="give a word that the provider takes, such as --effort low",
            )
        recording = _recording(model)
        return choice.stands_in if recording is None else f"the model is a recording, {recording}"


_WITHOUT_A_SHELL: Mapping[Interface, str] = {
    Interface.EDIT_TEST_SUBMIT: "editor",
    Interface.ANSWER: "answer",
}
"""The agent of each interface that has no shell."""


def _made(name: str, pack: Pack) -> Agent:
    """Make an agent that works on the task in the way the task has it.

    Raises:
        UsageError: it does not, or there is no such agent.
    """
    wanted = pack.spec.interface
    other = UsageError(
        f"task {pack.spec.name!r} gives no shell, and agent {name!r} works otherwise",
        remedy=f"--agent {_WITHOUT_A_SHELL.get(wanted, name)}",
    )
    try:
        agent = make_agent(name, pack)
    except UsageError as refused:
        # What one with a shell lacks is not what an operator wants to hear of here.
        shell_less = wanted in _WITHOUT_A_SHELL and name in agent_names()
        raise (other if shell_less else refused) from None
    if wanted in _WITHOUT_A_SHELL and agent.interface is not wanted:
        raise other
    return agent


def _recording(model: str) -> str | None:
    """Identify the recording that a model's name means; None where it is a provider's."""
    provider, _, name = model.partition("/")
    if provider != RECORDED:
        return None
    with Path(name).open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _words(dialects: tuple[Dialect, ...]) -> str:
    return ", ".join(dialect.value for dialect in dialects)


def verify_package(ctx: Context, plan: AttemptPlan) -> None:
    """Hash the agent's package, if it has one, right before it is used.

    Raises:
        AssetMismatchError: it is not what was fetched.
    """
    if plan.agent_package is not None:
        ctx.packages().verify(plan.agent_package.installed)
