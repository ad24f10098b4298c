"""Prepare: fetch a task's assets, or make them in a container of its own, and lock their digests.

The container sees the whole pack, the downloads that the script names, and nothing else. What is
fetched or made goes into the asset store, read-only. An asset without a lock gets one in
``task.yaml``; one that differs from its lock is refused, unless the operator asked for new locks.
What is there and intact is not made again.
"""

import dataclasses
import os
import secrets
import shlex
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath

from orchestrator.domain.container import ContainerSpec, Mount
from orchestrator.domain.image import image_reference
from orchestrator.domain.roles import Phase
from orchestrator.domain.source import LocalSource, ScriptSource
from orchestrator.domain.task import merge
from orchestrator.errors import AssetMismatchError, TaskPackError
from orchestrator.evidence.tree import tree_digest
from orchestrator.phases.bring import lay_local, require_given
from orchestrator.phases.fetch import Downloads, differing
from orchestrator.ports import Clock, ContainerEngine
from orchestrator.ports.fetching import Fetcher
from orchestrator.sandbox import PHASE_LABEL, Users, container_spec
from orchestrator.storage.assets import AssetStore, seal
from orchestrator.storage.durable import make_folder, write_file
from orchestrator.storage.located_yaml import Document, parse, set_in_mapping
from orchestrator.storage.pack import Pack

INPUTS = "/opt/downloads"
"""Where a script finds what it names, each download in a folder of its name."""
WALL = 3600.0
"""Seconds that one prepare script may take."""
_IMAGE = "prepare-sklearn"
_TICK = 0.5
_NS = 1_000_000_000
_TAIL = 4096


@dataclass(frozen=True, slots=True)
class PreparePlan:
    """What to prepare. ``update`` makes everything again and replaces locks that differ.

    What was fetched and is what ``task.yaml`` says is not fetched again even then.
    ``given`` is the folder in which the operator has the assets whose source says ``local``.
    """

    pack: Pack
    update: bool = False
    given: Path | None = None


@dataclass(frozen=True, slots=True)
class PreparePorts:
    """What preparing needs from outside; the fetcher is built where there is what to fetch."""

    engine: ContainerEngine
    store: AssetStore
    fetcher: Callable[[], Fetcher]
    clock: Clock
    users: Users
    say: Callable[[str], None]


class How(StrEnum):
    """What became of one asset."""

    PRESENT = "present"
    MADE = "made"
    LOCKED = "made and locked"
    RELOCKED = "made and locked anew"


@dataclass(frozen=True, slots=True)
class Prepared:
    """One asset, ready in the store at ``folder``."""

    asset: str
    digest: str
    folder: Path
    how: How


class _Tail:
    """Keeps the end of what a script prints, to show when it fails."""

    def __init__(self) -> None:
        self.kept = b""

    def write(self, stream: str, data: bytes) -> None:
        del stream
        self.kept = (self.kept + data)[-_TAIL:]


def run(plan: PreparePlan, ports: PreparePorts) -> tuple[Prepared, ...]:
    """Fetch or make what is missing or damaged, and lock what has no lock.

    Raises:
        TaskPackError: a script failed or did not make what the task promises, or a file that is
            to be fetched does not exist.
        AssetMismatchError: what was made or fetched differs from its lock; nothing was stored.
        UsageError: the image is not there, or a file is not open to this host.
        InfrastructureError: a server cannot be reached; what came so far is kept.
    """
    with ports.store.exclusive(ports.say):
        done = _present(plan, ports.store)
        todo = sorted(set(plan.pack.spec.assets) - {asset.asset for asset in done})
        if todo:
            require_given(plan.pack, todo, plan.given)
            downloads = Downloads(ports.store.downloads, ports.fetcher, ports.say)
            downloads.bring(plan.pack, todo)
            with ports.store.scratch() as scratch:
                done += _make(plan, todo, scratch, downloads, ports)
    return tuple(sorted(done, key=lambda asset: asset.asset))


def _make(
    plan: PreparePlan, todo: list[str], scratch: Path, downloads: Downloads, ports: PreparePorts
) -> list[Prepared]:
    """Lay and make ``todo``, compare with the locks, store, lock."""
    pack, out = plan.pack, scratch / "out"
    make_folder(out)
    _give(out, ports.users)
    sources = [pack.spec.assets[asset].source for asset in todo]
    for script in sorted({one.prepare for one in sources if isinstance(one, ScriptSource)}):
        inputs = scratch / "inputs" / script
        has_inputs = downloads.lay_inputs(pack, script, inputs)
        _run_script(pack, script, (Mount(inputs, INPUTS),) if has_inputs else (), out, ports)
    laid = downloads.lay_assets(pack, todo, out)
    lay_local(pack, todo, plan.given, out)
    made = {asset: _identify(pack, asset, out / asset) for asset in todo}
    if not plan.update:
        _refuse_mismatch(pack, made)
    for file in laid:
        file.unlink()  # before it is an asset, whose identity has its number of links in it
    for asset, digest in made.items():
        # One that is intact stays where it is: a running container may have it mounted.
        if not _is_intact(ports.store.folder(pack, asset, digest), digest):
            ports.store.adopt(pack, asset, out / asset, digest)
    _lock(pack, made)
    return [
        Prepared(asset, digest, ports.store.folder(pack, asset, digest), _how(pack, asset, digest))
        for asset, digest in made.items()
    ]


def _present(plan: PreparePlan, store: AssetStore) -> list[Prepared]:
    """Find what need not be made: intact, and not asked for anew or not what a script makes."""
    found = []
    for name, asset in plan.pack.spec.assets.items():
        if asset.digest is None:
            continue
        folder = store.folder(plan.pack, name, asset.digest)
        match asset.source:
            case ScriptSource():
                wanted = not plan.update
            case LocalSource():
                wanted = not (plan.update and plan.given)
            case _:
                wanted = folder.is_dir() and not differing(asset.source, folder)
        if wanted and _is_intact(folder, asset.digest):
            found.append(Prepared(name, asset.digest, folder, How.PRESENT))
    return found


def _is_intact(folder: Path, digest: str) -> bool:
    return folder.is_dir() and tree_digest(folder) == digest


def _run_script(
    pack: Pack, script: str, inputs: tuple[Mount, ...], out: Path, ports: PreparePorts
) -> None:
    """Run one script of the pack to its end."""
    ports.say(f"running {script} of {pack.spec.name}")
    output = _Tail()
    deadline = ports.clock.boottime_ns() + int(WALL * _NS)
    container = ports.engine.create(_spec(pack, script, inputs, out, ports))
    try:
        container.start(output)
        while (end := container.wait(_TICK)) is None:
            if ports.clock.boottime_ns() > deadline:
                raise TaskPackError(f"{pack.folder / script} ran for more than {WALL:.0f} s")
    finally:
        container.remove()
    if end.state.exit_code != 0:
        tail = output.kept.decode("utf-8", "replace").strip()
        memory = " (out of memory)" if end.state.oom_killed else ""
        raise TaskPackError(
            f"{pack.folder / script} failed with exit {end.state.exit_code}{memory}:\n{tail}"
        )


def _spec(
    pack: Pack, script: str, inputs: tuple[Mount, ...], out: Path, ports: PreparePorts
) -> ContainerSpec:
    resources = merge(pack.spec.defaults, pack.spec.prepare)
    image = image_reference(pack.spec.prepare.image or _IMAGE)
    ports.engine.image(image)
    spec = container_spec(
        name=f"orch-prepare-{secrets.token_hex(6)}",
        phase=Phase.EXPLORE,
        image=image,
        argv=("python3", f"/opt/pack/{script}", "/out"),
        user=ports.users.agent,
        agent=ports.users.agent,
        resources=resources,
        mounts=(Mount(pack.folder, "/opt/pack"), *inputs, Mount(out, "/out", writable=True)),
        env={},
        labels={},
        workdir="/",
    )
    return dataclasses.replace(spec, labels={**spec.labels, PHASE_LABEL: "prepare"})


def _give(folder: Path, users: Users) -> None:
    """Let the container's user write here; an ordinary user's containers run as that user."""
    if os.geteuid() == 0:
        os.chown(folder, *users.agent)


def _identify(pack: Pack, asset: str, made: Path) -> str:
    """Seal what a script made and return its digest."""
    if not made.is_dir():
        raise TaskPackError(
            f"{pack.source}: its source did not make the asset {asset} (no folder /out/{asset})"
        )
    file = made / PurePosixPath(asset).name
    if pack.spec.assets[asset].file and [*made.iterdir()] != [file]:
        raise TaskPackError(
            f"{pack.source}: asset {asset} is one file, and not just {file.name} was made in it"
        )
    seal(made)
    return tree_digest(made)


def _refuse_mismatch(pack: Pack, made: Mapping[str, str]) -> None:
    """Refuse what differs from its lock, all assets in one message.

    Raises:
        AssetMismatchError: at least one differs.
    """
    wrong = [
        f"asset {asset} of task {pack.spec.name} came out as {digest}, task.yaml locks {locked}"
        for asset, digest in sorted(made.items())
        if (locked := pack.spec.assets[asset].digest) is not None and locked != digest
    ]
    if wrong:
        remedy = f"orch task prepare --update {shlex.quote(str(pack.argument))}    makes new locks"
        raise AssetMismatchError("\n".join(wrong), remedy=remedy)


def _how(pack: Pack, asset: str, digest: str) -> How:
    locked = pack.spec.assets[asset].digest
    if locked is None:
        return How.LOCKED
    return How.MADE if locked == digest else How.RELOCKED


def _lock(pack: Pack, made: Mapping[str, str]) -> None:
    """Write locks that are new into ``task.yaml``; every other byte of it stays.

    Raises:
        TaskPackError: the file is not one that can be edited; it is as it was.
    """
    document: Document | None = pack.document
    for asset, digest in made.items():
        if document is not None and pack.spec.assets[asset].digest != digest:
            text = set_in_mapping(document, ("assets", asset), "digest", digest)
            document, _ = parse(text)
    if document is None or any(
        document.data["assets"][asset].get("digest") != digest for asset, digest in made.items()
    ):
        raise TaskPackError(f"{pack.source}: no digest can be written into this file")
    if document is not pack.document:
        mode = stat.S_IMODE(pack.source.stat().st_mode)
        write_file(pack.source, document.text.encode(), replace=True, mode=mode)
