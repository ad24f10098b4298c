"""Build the adapters and hand them to the pipeline: the only importer of ``adapters``.

An adapter is imported where it is built, so that a command pays for what it uses alone: reading
needs a clock, not an engine.
"""
# ruff: noqa: PLC0415

import hashlib
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.config import Settings, bundled
from orchestrator.domain.container import HostAbilities
from orchestrator.errors import UsageError
from orchestrator.ports import Clock, ContainerEngine, DeviceProbe, OldImages, ProcessTable
from orchestrator.sandbox import Isolation, Users

if TYPE_CHECKING:
    from orchestrator.adapters.host_probe import HostProbe
    from orchestrator.adapters.image_builder import ImageBuilder
    from orchestrator.adapters.local_models import LocalModels
    from orchestrator.domain.gate import PermittedHolder
    from orchestrator.evidence.context import Context
    from orchestrator.evidence.supervise import Beat, StopRequest
    from orchestrator.ports import AgentPackages
    from orchestrator.ports.fetching import Fetcher
    from orchestrator.ports.models import ModelGateway
    from orchestrator.storage.device_locks import DeviceLocks
    from orchestrator.storage.layout import RunsFolder
    from orchestrator.storage.queue import Queue
    from receipts.keys import SigningKey


def system_clock() -> Clock:
    """Return this host's clock."""
    from orchestrator.adapters.system_clock import SystemClock

    return SystemClock()


def engine(settings: Settings) -> ContainerEngine:
    """Return the container engine that the settings name; it is asked when used."""
    from orchestrator.adapters.docker_engine import DockerEngine

    return DockerEngine(settings.engine_address)


def devices() -> DeviceProbe:
    """Return what looks at this host's GPUs; nothing is asked before it is used."""
    from orchestrator.adapters.nvml import NvmlProbe

    return NvmlProbe(system_clock())


def processes() -> ProcessTable:
    """Return what reads this host's processes."""
    from orchestrator.adapters.process_table import HostProcesses

    return HostProcesses()


def device_locks(settings: Settings) -> "DeviceLocks":
    """Return who has which GPU of this host, to be read."""
    from orchestrator.storage.ledger import Capacity, Ledger

    return Ledger(settings.host, Capacity(cpus=0, memory=0), system_clock()).devices


def fetcher(settings: Settings) -> "Fetcher":
    """Return what fetches published files; nothing is asked before it is used."""
    from orchestrator.adapters.download import HttpFetcher
    from orchestrator.adapters.hub import Hub

    return HttpFetcher(Hub(settings.hub_endpoint, settings.hub_token).locate)


def image_builder(settings: Settings) -> "ImageBuilder":
    """Return what makes and lists the images of ``containers/``."""
    from orchestrator.adapters.image_builder import ImageBuilder

    return ImageBuilder(settings.engine_address, bundled("containers"), settings.wheels)


def old_images(settings: Settings) -> OldImages:
    """Return what finds images of ours that a newer build has replaced."""
    from orchestrator.adapters.old_images import ReplacedImages

    return ReplacedImages(settings.engine_address)


def host_probe(settings: Settings) -> "HostProbe":
    """Return what looks at this host for ``orch doctor``."""
    from orchestrator.adapters.host_probe import HostProbe

    return HostProbe(settings, engine(settings), devices(), system_clock())


def users() -> Users:
    """Choose the owners inside containers: an ordinary user's agent is that user.

    The keeper is always somebody else, so that the agent cannot end what keeps its container.
    """
    usual = Users()
    if os.geteuid() == 0:
        return usual
    own = (os.getuid(), os.getgid())
    keeper = usual.keeper if own[0] != usual.keeper[0] else usual.agent
    return Users(agent=own, keeper=keeper)


def isolation(settings: Settings, abilities: HostAbilities) -> Isolation:
    """Choose runtime and system call filter.

    Raises:
        UsageError: the engine has no such runtime.
    """
    profile = bundled("profiles") / "seccomp.json"
    text = profile.read_text(encoding="utf-8")
    if not abilities.seccomp:
        chosen = Isolation(settings.runtime)
    else:
        filter_ = str(profile) if abilities.filter_by_name else json.dumps(json.loads(text))
        digest = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
        chosen = Isolation(settings.runtime, filter_, digest)
    chosen.require(abilities)
    return chosen


def _open_runs(root: Path) -> "RunsFolder":
    """Make the runs folder where there is none, on a file system that keeps what it is given."""
    from orchestrator.storage.durable import folder_faults, make_folder, require_writable
    from orchestrator.storage.layout import RunsFolder
    from orchestrator.storage.probe import require_file_system

    with folder_faults("the runs folder", root, "name another: --runs, or ORCH_RUNS"):
        root.parent.mkdir(parents=True, exist_ok=True)
        if not root.is_dir():
            make_folder(root, exist_ok=True)
            require_file_system(root)
        require_writable(root)
    return RunsFolder(root)


def _open_key(home: Path, runs: "RunsFolder") -> "SigningKey":
    """Load the signing key, made at first use, and publish its public half into the runs folder."""
    from orchestrator.storage.durable import folder_faults, storage_faults
    from receipts.errors import KeyUnusableError
    from receipts.keys import load_or_create, publish

    unusable = folder_faults("the folder of keys", home, "name another: ORCH_HOME")
    try:
        with unusable, storage_faults(home):
            key = load_or_create(home)
        with storage_faults(runs.keys):
            publish(key, runs.keys)
    except KeyUnusableError as refusal:
        raise UsageError(str(refusal), remedy="see README, Receipts and keys") from refusal
    return key


def queue(settings: Settings, say: Callable[[str], None]) -> "Queue":
    """Open the queue of the runs folder for writing; ``say`` hears of lines that are no rows.

    Raises:
        UsageError: the runs folder cannot be used.
    """
    from orchestrator.storage.queue import Queue

    return Queue(_open_runs(settings.runs), system_clock(), say)


def permitted_holders(settings: Settings) -> tuple["PermittedHolder", ...]:
    """Read who may be on a GPU that is to be idle, with links in their paths followed.

    Raises:
        UsageError: ``orch.toml`` says something else than it can; the message names the key.
    """
    from pydantic import ValidationError

    from orchestrator.domain.gate import PermittedHolder
    from orchestrator.domain.host_settings import GpuSettings

    try:
        found = GpuSettings.model_validate(settings.from_file().get("gpu", {})).permitted
    except ValidationError as faults:
        first = faults.errors()[0]
        key = ".".join(map(str, ("gpu", *first["loc"])))
        raise UsageError(
            f"{settings.file}: {key}: {first['msg']}", remedy="see README, GPUs, for an example"
        ) from faults
    return tuple(
        PermittedHolder(str(Path(holder.executable).resolve()), holder.memory) for holder in found
    )


def model_gateway(settings: Settings) -> "ModelGateway":
    """Return what lets agents talk to the models of ``orch.toml`` and of the usual providers.

    Raises:
        UsageError: ``orch.toml`` says something else than it can; the message names the key.
    """
    from pydantic import ValidationError

    from orchestrator.adapters.model_gateway.gateway import HostModelGateway
    from orchestrator.domain.model import read_providers

    try:
        providers = read_providers(settings.from_file().get("providers", {}))
    except ValidationError as faults:
        first = faults.errors()[0]
        key = ".".join(map(str, ("providers", *first["loc"])))
        raise UsageError(
            f"{settings.file}: {key}: {first['msg']}", remedy="see docs/models.md for an example"
        ) from faults
    return HostModelGateway(
        providers,
        settings.host,
        system_clock(),
        settings.variable,
        local=local_models(settings),
    )


def local_models(settings: Settings) -> "LocalModels":
    """Return the models that this host can run itself."""
    from orchestrator.adapters.agent_store import AgentStore
    from orchestrator.adapters.local_models import LocalModels

    return LocalModels(AgentStore(settings.models, system_clock()))


def agent_packages(settings: Settings) -> "AgentPackages":
    """Return the packages of agents that this host has."""
    from orchestrator.adapters.agent_store import AgentStore

    return AgentStore(settings.agents, system_clock())


def context(
    settings: Settings,
    stop: "StopRequest",
    say: Callable[[str], None],
    beat: Callable[["Beat"], None],
) -> "Context":
    """Build everything a writing command needs.

    Raises:
        EngineUnavailableError: no engine answers.
        UsageError: one of the folders or the signing key cannot be used.
    """
    from orchestrator.adapters.detached import DetachedGuards
    from orchestrator.adapters.git_store import GitTreeStore
    from orchestrator.adapters.loop_volumes import open_volumes
    from orchestrator.adapters.overlay_views import open_views
    from orchestrator.evidence.context import Context
    from orchestrator.storage.assets import AssetStore
    from orchestrator.storage.campaign import Campaign
    from orchestrator.storage.durable import folder_faults, require_writable
    from orchestrator.storage.ledger import Capacity, Ledger

    clock, found = system_clock(), engine(settings)
    abilities = found.abilities()
    runs = _open_runs(settings.runs)
    ledger = Ledger(settings.host, Capacity(abilities.cpus, abilities.memory), clock)
    with folder_faults("the host folder", settings.host, "name another: ORCH_HOST"):
        ledger.make_folder()
        require_writable(settings.host)
    key = _open_key(settings.home, runs)
    with folder_faults("the assets folder", settings.assets, "name another: ORCH_ASSETS"):
        views = open_views(settings.assets)
    return Context(
        runs=runs,
        engine=found,
        volumes=open_volumes(),
        views=views,
        isolation=isolation(settings, abilities),
        store=GitTreeStore(),
        clock=clock,
        devices=devices(),
        processes=processes(),
        campaign=Campaign(runs.campaign, clock),
        ledger=ledger,
        assets=AssetStore(settings.assets),
        users=users(),
        key=key,
        guards=DetachedGuards(settings),
        stop=stop,
        say=say,
        beat=beat,
        harness=bundled("harness"),
        models=partial(model_gateway, settings),
        packages=partial(agent_packages, settings),
        permitted=partial(permitted_holders, settings),
    )
