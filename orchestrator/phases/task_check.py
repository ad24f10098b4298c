"""Check a task pack: every fault that can be found, in one pass, with file and line.

The text and the folder first; then, as far as they are there, the locks, the images and the rows
of the final and reference roles against everything a candidate can see.
"""

import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from orchestrator.domain.image import image_reference
from orchestrator.domain.roles import VISIBLE_ROLES, DataRole, Phase
from orchestrator.domain.task import Asset, BuiltinValidator
from orchestrator.errors import (
    AssetMismatchError,
    EngineUnavailableError,
    TaskPackError,
    UsageError,
)
from orchestrator.evidence.image_workspace import WORKSPACE, added_to, has_run_script, lay
from orchestrator.evidence.instruction import render
from orchestrator.evidence.overlap import HiddenAsset, Overlap, RowIndex
from orchestrator.evidence.tree import tree_digest
from orchestrator.phases.fetch import Published, differing
from orchestrator.ports import ContainerEngine
from orchestrator.storage.assets import AssetStore
from orchestrator.storage.pack import Fault, Pack, Severity, examine

_PYTHON_PACKAGE = re.compile(r"(?:^|/)(?:dist|site)-packages/([a-z0-9_]+)/__init__\.py$")
_CANDIDATE_PHASES = (Phase.EXPLORE, Phase.REPLAY, Phase.VALIDATE)
_SEEN = frozenset[DataRole]().union(*(VISIBLE_ROLES[phase] for phase in _CANDIDATE_PHASES))


@dataclass(frozen=True, slots=True)
class CheckPorts:
    """What checking needs from outside."""

    engine: ContainerEngine
    store: AssetStore


def run(path: Path, ports: CheckPorts) -> tuple[Fault, ...]:
    """Return every fault of the pack at ``path``; an empty result is a sound, prepared pack.

    Raises:
        UsageError: there is no such task.
    """
    pack, faults = examine(path)
    if pack is None:
        return faults
    found = [*faults, *_instruction(pack), *_assets(pack, ports.store)]
    ready = {name for name in pack.spec.assets if _is_ready(pack, name, ports.store)}
    index = _hidden_rows(pack, ready, ports.store)
    found += (
        pack.fault("assets", asset, message=f"not compared: {what}", severity=Severity.WARNING)
        for asset, what in index.unread
    )
    for name in sorted(ready):
        if pack.spec.assets[name].role in _SEEN:
            hits = index.in_asset(name, ports.store.locate(pack, name))
            found += (_overlap(pack, hit) for hit in hits)
    found += _images(pack, index, ports.engine)
    found += _workspace(pack, ports.engine)
    return tuple(sorted(set(found)))


def _instruction(pack: Pack) -> Iterator[Fault]:
    """Render the instruction; a file that is not there was told with the text."""
    if (pack.folder / pack.spec.instructions).is_file():
        try:
            render(pack, pack.spec, pack.spec.explore.wall)
        except TaskPackError as fault:
            yield pack.fault("instructions", message=str(fault))


def _workspace(pack: Pack, engine: ContainerEngine) -> Iterator[Fault]:
    """Look at the shipped solution that an image brings, where the image is here."""
    if not pack.spec.workspace.in_image:
        return
    reference = image_reference(pack.spec.resources(Phase.REPLAY).image)
    try:
        engine.image(reference)
    except (UsageError, EngineUnavailableError):
        return  # told with the images
    with tempfile.TemporaryDirectory(prefix="orch-check-") as scratch:
        try:
            whole = has_run_script(lay(engine, reference, added_to(pack), Path(scratch)))
            message = "" if whole else f"{WORKSPACE} of {reference} holds no executable run.sh"
        except UsageError as absent:
            message = str(absent)
    if message:
        yield pack.fault("workspace", "from", message=message)


def _assets(pack: Pack, store: AssetStore) -> Iterator[Fault]:
    for name, asset in pack.spec.assets.items():
        if asset.digest is None:
            message = "no locked digest: never official (orch task prepare locks it)"
            yield pack.fault("assets", name, message=message, severity=Severity.WARNING)
            continue
        folder = store.folder(pack, name, asset.digest)
        if not folder.is_dir():
            message = "not prepared on this host, so its rows are not compared"
            yield pack.fault("assets", name, message=message, severity=Severity.WARNING)
        elif (found := _digest(folder)) != asset.digest:
            message = f"is {found} in {folder}, not what is locked (orch task prepare mends it)"
            yield pack.fault("assets", name, "digest", message=message)
        elif isinstance(asset.source, Published) and (other := differing(asset.source, folder)):
            message = (
                f"names {', '.join(other)} otherwise than the locked asset has it"
                " (orch task prepare --update locks what is named now)"
            )
            yield pack.fault("assets", name, "source", message=message)


def _is_ready(pack: Pack, name: str, store: AssetStore) -> bool:
    digest = pack.spec.assets[name].digest
    return digest is not None and store.folder(pack, name, digest).is_dir()


def _digest(folder: Path) -> str:
    try:
        return tree_digest(folder)
    except AssetMismatchError as error:
        return f"no asset ({error})"


def _hidden_rows(pack: Pack, ready: set[str], store: AssetStore) -> RowIndex:
    index = RowIndex()
    for name in sorted(ready):
        asset = pack.spec.assets[name]
        if asset.role not in _SEEN:
            index.add(_hidden(name, asset, store.locate(pack, name)))
    return index


def _hidden(name: str, asset: Asset, folder: Path) -> HiddenAsset:
    final = asset.role is DataRole.FINAL
    return HiddenAsset(name, folder, final=final, allowed=frozenset(asset.overlap))


def _images(pack: Pack, index: RowIndex, engine: ContainerEngine) -> Iterator[Fault]:
    """Look into every image that a candidate's code runs in."""
    phases: dict[str, Phase] = {}
    for phase in _CANDIDATE_PHASES:
        phases.setdefault(pack.spec.resources(phase).image, phase)
    for name, phase in phases.items():
        loc = (phase.value, "image")
        where = loc if loc in pack.document.nodes else ("defaults", "image")
        lacking = _needed(pack, name)
        try:
            reference = image_reference(name)
            engine.image(reference)
            files = _notice(engine.image_files(reference), lacking)
            for hit in index.in_image(name, files):
                yield _overlap(pack, hit, *where)
            if lacking:
                message = f"lacks what the validator needs: {', '.join(sorted(lacking))}"
                yield pack.fault(*where, message=message)
        except UsageError as missing:
            message = f"{missing} ({missing.remedy})"
            yield pack.fault(*where, message=message, severity=Severity.WARNING)
        except EngineUnavailableError as down:
            message = f"the image was not looked into: {down}"
            yield pack.fault(*where, message=message, severity=Severity.WARNING)


def _needed(pack: Pack, image: str) -> set[str]:
    """Name the Python packages that an image must have for the validator that comes with orch."""
    validator = pack.spec.validate_.validator
    if pack.spec.resources(Phase.VALIDATE).image != image:
        return set()
    return set(validator.packages) if isinstance(validator, BuiltinValidator) else set()


def _notice(
    files: Iterator[tuple[str, IO[bytes]]], lacking: set[str]
) -> Iterator[tuple[str, IO[bytes]]]:
    """Pass an image's files on, and take out of ``lacking`` the packages that go by."""
    for name, content in files:
        package = _PYTHON_PACKAGE.search(name)
        if package:
            lacking.discard(package.group(1))
        yield name, content


def _overlap(pack: Pack, hit: Overlap, *where: str) -> Fault:
    message = (
        f"{hit.rows} of its rows are also in {hit.other}, {hit.file}"
        if not where
        else f"{hit.rows} rows of {hit.asset} are in image {hit.other}, {hit.file}"
    )
    return pack.fault(*(where or ("assets", hit.asset)), message=message)
