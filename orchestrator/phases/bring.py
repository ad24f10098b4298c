"""Bring: copy what the operator has already into the assets of a task, held to what it should be.

Links are followed, for a hub's own cache is full of them; ``.cache`` folders stay behind.
"""

import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from orchestrator.domain.source import LocalSource
from orchestrator.domain.task import Asset
from orchestrator.errors import AssetMismatchError, UsageError
from orchestrator.evidence.tree import Kind, Manifest, manifest_of
from orchestrator.storage.durable import folder_faults, storage_faults
from orchestrator.storage.pack import Pack

_LEFT_BEHIND = ".cache"
_DEEPEST = 32
"""Folders that a file may lie in, one in another; a circle of links is deeper."""


def require_given(pack: Pack, assets: Sequence[str], given: Path | None) -> None:
    """Refuse to begin while an asset that the operator brings is not where it should be.

    Raises:
        UsageError: one is not there, or is a folder instead of a file or the reverse; all such in
            one message.
    """
    problems = []
    for name, asset, source in _local(pack, assets):
        if given is None:
            problems.append(f"asset {name} is yours to bring: {_what(asset)} {source.local}")
            continue
        path = given / source.local
        if not (path.is_file() if asset.file else path.is_dir()):
            problems.append(f"asset {name}: {path} is no {_what(asset)}")
    if problems:
        raise UsageError(
            "\n".join(problems),
            remedy=f"orch task prepare {shlex.quote(str(pack.argument))} --from DIR    "
            "with all of them in DIR",
        )


def lay_local(pack: Pack, assets: Sequence[str], given: Path | None, out: Path) -> None:
    """Copy what the operator brings below ``out``, each asset in a folder of its name.

    Raises:
        AssetMismatchError: one is not what the task says it is published as.
        UsageError: one cannot be read, or holds what is no file.
        StorageFullError: no space.
    """
    wrong = []
    for name, asset, source in _local(pack, assets):
        assert given is not None  # noqa: S101 - require_given saw to it
        target, origin = out / name, given / source.local
        unreadable = folder_faults(f"asset {name}:", origin, "make all of it readable")
        with unreadable, storage_faults(target):
            target.mkdir(parents=True)
            if asset.file:
                shutil.copyfile(origin, target / PurePosixPath(name).name)
            else:
                _copy(origin, target)
        found = published_sha256(manifest_of(target), file=asset.file)
        if source.sha256 is not None and found != source.sha256:
            wrong.append(f"asset {name}: {origin} is {found}, task.yaml says {source.sha256}")
    if wrong:
        raise AssetMismatchError("\n".join(wrong), remedy="bring what was published")


def _copy(origin: Path, target: Path) -> None:
    """Copy a folder's files, links followed; a folder without any file is no part of an asset."""
    for file in tuple(_files(origin)):  # all are known before the first is copied
        copy = target / file.relative_to(origin)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)


def _files(origin: Path) -> Iterator[Path]:
    for here, folders, names in os.walk(origin, followlinks=True, onerror=_raise):
        folders[:] = [name for name in folders if name != _LEFT_BEHIND]
        if len(Path(here).relative_to(origin).parts) > _DEEPEST:
            raise UsageError(f"{here} is nested too deeply, or its links lead in a circle")
        for name in names:
            file = Path(here, name)
            if not file.is_file():
                raise UsageError(f"{file} is neither a file nor a folder, nor a link to one")
            yield file


def _raise(error: OSError) -> None:
    raise error


def published_sha256(manifest: Manifest, *, file: bool) -> str:
    """Compute what ``LocalSource.sha256`` is held against, see there."""
    files = [entry for entry in manifest.entries if entry.kind is Kind.FILE]
    if file:
        return files[0].sha256
    rows = [
        {"path": os.fsdecode(entry.path), "sha256": entry.sha256, "size_bytes": entry.size}
        for entry in sorted(files, key=lambda entry: PurePosixPath(os.fsdecode(entry.path)))
    ]
    text = json.dumps(rows, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _local(pack: Pack, assets: Sequence[str]) -> Iterator[tuple[str, Asset, LocalSource]]:
    for name in assets:
        asset = pack.spec.assets[name]
        if isinstance(asset.source, LocalSource):
            yield name, asset, asset.source


def _what(asset: Asset) -> str:
    return "file" if asset.file else "folder"
