"""The only reader of environment variables, and the finder of what is bundled with the package."""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from orchestrator.errors import UsageError

_SECTIONS = ("gpu", "providers")
"""What ``orch.toml`` may hold."""


@dataclass(frozen=True)
class Settings:
    """Where things live. Every field has one variable; see README, "Settings".

    Attributes:
        runs: the runs folder, ``ORCH_RUNS``, default ``./runs``.
        home: keys and the user's ``orch.toml``, ``ORCH_HOME``, default ``~/.config/orch``.
        assets: prepared assets, ``ORCH_ASSETS``, default ``~/.cache/orch/assets``.
        host: host-wide locks and reservations, ``ORCH_HOST``, default ``/run/lock/orch``.
        runtime: what runs containers, by the engine's name for it, ``ORCH_RUNTIME``, default runc.
    """

    runs: Path
    home: Path
    assets: Path
    host: Path
    runtime: str = "runc"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "Settings":
        """Read the settings; ``environment`` is for tests."""
        env = os.environ if environment is None else environment
        user = Path(env.get("HOME") or tempfile.gettempdir())
        config = Path(env.get("XDG_CONFIG_HOME") or user / ".config")
        cache = Path(env.get("XDG_CACHE_HOME") or user / ".cache")
        locks = Path("/run/lock")
        host = locks / "orch" if locks.is_dir() else Path(tempfile.gettempdir()) / "orch-host"
        return cls(
            runs=Path(env.get("ORCH_RUNS") or "runs").absolute(),
            home=Path(env.get("ORCH_HOME") or config / "orch").absolute(),
            assets=Path(env.get("ORCH_ASSETS") or cache / "orch" / "assets").absolute(),
            host=Path(env.get("ORCH_HOST") or host).absolute(),
            runtime=env.get("ORCH_RUNTIME") or "runc",
        )

    def environment(self) -> dict[str, str]:
        """Make the environment of a child that shall find everything where we do."""
        own = {
            "ORCH_RUNS": self.runs,
            "ORCH_HOME": self.home,
            "ORCH_ASSETS": self.assets,
            "ORCH_HOST": self.host,
            "ORCH_RUNTIME": self.runtime,
        }
        return {**os.environ, **{name: str(value) for name, value in own.items()}}

    @cached_property
    def engine_address(self) -> str | None:
        """``DOCKER_HOST`` when set; None means the engine's default socket."""
        return os.environ.get("DOCKER_HOST") or None

    @cached_property
    def hub_endpoint(self) -> str | None:
        """``HF_ENDPOINT`` when set: a mirror of the hub; None means the hub itself."""
        return (os.environ.get("HF_ENDPOINT") or "").rstrip("/") or None

    @cached_property
    def hub_token(self) -> str | None:
        """``HF_TOKEN`` when set. It goes to the hub alone; nothing records or prints it."""
        return (os.environ.get("HF_TOKEN") or "").strip() or None

    @property
    def file(self) -> Path:
        """The user's settings of this host, ``orch.toml``; it need not exist."""
        return self.home / "orch.toml"

    def from_file(self) -> dict[str, Any]:
        """Read ``orch.toml``; empty where there is none.

        Raises:
            UsageError: it cannot be read, is no TOML (the message names the line), or has a
                section that nobody reads: a misspelt one must not count as none.
        """
        import tomllib  # noqa: PLC0415 - few commands need it

        remedy = "see README, GPUs and Models, or remove the file"
        try:
            sections = tomllib.loads(self.file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as fault:
            raise UsageError(f"{self.file}: {fault}", remedy=remedy) from fault
        for name in sorted(sections.keys() - set(_SECTIONS)):
            known = " and ".join(f"[{one}]" for one in _SECTIONS)
            raise UsageError(
                f"{self.file}: [{name}] is no section of it; {known} are", remedy=remedy
            )
        return sections

    @staticmethod
    def variable(name: str) -> str | None:
        """Read the variable that a provider's section of ``orch.toml`` names; a key, as a rule."""
        return os.environ.get(name)

    @cached_property
    def wheels(self) -> Path:
        """Downloaded wheels for image builds, under ``XDG_CACHE_HOME`` or ``~/.cache``."""
        return _cache("wheels")

    @cached_property
    def agents(self) -> Path:
        """Packages of agents, under ``XDG_CACHE_HOME`` or ``~/.cache``."""
        return _cache("agents")

    @cached_property
    def models(self) -> Path:
        """Weights of local models and what runs them, beside the agents' packages."""
        return _cache("models")


def _cache(name: str) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "orch", name).absolute()


def bundled(name: str) -> Path:
    """Find a folder of the package: ``harness``, ``containers``, ``tasks`` and their like.

    Package data first (an installed wheel), then the checkout (an editable install).

    Raises:
        FileNotFoundError: neither has it; the installation is broken.
    """
    here = Path(__file__).resolve().parent
    for candidate in (here / "_bundled" / name, here.parent / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"{name}/ is neither in {here / '_bundled'} nor in {here.parent}")
