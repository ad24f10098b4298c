"""Assets of an AI4AI-Bench task: by where they are mounted, the role that keeps them just there."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

import yaml

from orchestrator.domain.roles import DataRole, Phase
from orchestrator.errors import TaskPackError
from orchestrator.importing.ai4ai_phases import Wanted, asset_mounts
from orchestrator.importing.declaration import FILE
from orchestrator.importing.model import Findings, text_of

Assets = dict[str, dict[str, Any]]
"""Assets by their names, as ``task.yaml`` has them."""

_ROOT = PurePosixPath("/assets")
_KINDS = frozenset({"models", "data"})
_ALIKE: Mapping[frozenset[Phase], tuple[DataRole, DataRole]] = MappingProxyType(
    {
        frozenset({Phase.EXPLORE}): (DataRole.PROXY, DataRole.PROXY),
        frozenset({Phase.EXPLORE, Phase.REPLAY}): (DataRole.ANCHOR, DataRole.TRAIN),
        frozenset({Phase.EXPLORE, Phase.REPLAY, Phase.SCORE}): (DataRole.ANCHOR, DataRole.TRAIN),
        frozenset({Phase.SCORE}): (DataRole.REFERENCE, DataRole.FINAL),
    }
)
"""Phases that mount an asset, to the role of a model and of data; validation follows from score."""


@dataclass(frozen=True, slots=True)
class Lock:
    """What ``assets.lock.yaml`` says an asset is: its sha256, of a file or of a whole tree."""

    sha256: str
    of_file: bool


def read_lock(path: Path) -> dict[str, Lock]:
    """Read the identities of assets, as far as they are there in a form that is known.

    Raises:
        TaskPackError: there is a file that cannot be read.
    """
    try:
        document = yaml.safe_load(text_of(path))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, TaskPackError, yaml.YAMLError, RecursionError) as fault:
        first = str(fault).partition("\n")[0]
        raise TaskPackError(
            f"{path.name}: cannot be read, so what it locks cannot be kept: {first}"
        ) from fault
    if not isinstance(document, dict):
        return {}
    listed = document.get("assets")
    if not isinstance(listed, dict):
        listed = {
            f"{group}/{name}": entry
            for group in sorted(_KINDS)
            if isinstance(below := document.get(group), dict)
            for name, entry in below.items()
        }
    kinds = {"file_sha256": True, "tree_manifest_sha256": False}
    return {
        str(name): Lock(str(entry["content_sha256"]), kinds[entry["hash_kind"]])
        for name, entry in listed.items()
        if isinstance(entry, dict)
        and entry.get("hash_kind") in kinds
        and _is_sha256(entry.get("content_sha256"))
    }


def assets_of(wanted: Wanted, lock: Mapping[str, Lock], findings: Findings) -> Assets:
    """Return the pack's assets, in the order in which phases mount them."""
    places: dict[str, set[str]] = {}
    seen: dict[str, set[Phase]] = {}
    for phase, declared in wanted.of():
        for name, target in asset_mounts(declared).items():
            places.setdefault(name, set()).add(target)
            seen.setdefault(name, set()).add(phase)
    assets = {}
    for name, phases in seen.items():
        asset = _asset(name, places[name], frozenset(phases), lock.get(name), findings)
        if asset is not None:
            assets[name] = asset
    _stand_ins(wanted, assets)
    return assets


def _asset(
    name: str, places: set[str], phases: frozenset[Phase], lock: Lock | None, findings: Findings
) -> dict[str, Any] | None:
    where = f"{FILE}: asset {name!r}"
    if len(places) > 1:
        findings.refuse(where, f"lies at several places: {', '.join(sorted(places))}")
        return None
    place = PurePosixPath(next(iter(places)))
    below = place.relative_to(_ROOT) if place.is_relative_to(_ROOT) else PurePosixPath()
    for path in (PurePosixPath(name), below):
        if not path.parts or path.parts[0] not in _KINDS or ".." in path.parts:
            findings.refuse(where, f"at {place}: only models/ and data/ below /assets are kept")
            return None
    roles = _ALIKE.get(phases - {Phase.VALIDATE})
    if roles is None or (Phase.VALIDATE in phases and Phase.SCORE not in phases):
        findings.refuse(where, f"is mounted in {', '.join(sorted(phases))}: no role is seen so")
        return None
    role = roles[0] if name.startswith("models/") else roles[1]
    also = [
        phase
        for phase in (Phase.VALIDATE, Phase.SCORE)
        if phase in phases
        and (role is DataRole.TRAIN or (role is DataRole.ANCHOR and phase is Phase.SCORE))
    ]
    suffix = PurePosixPath(name).suffix[1:2]
    file = name.startswith("data/") and suffix.isalpha() and (lock is None or lock.of_file)
    known = lock is not None and lock.of_file is file
    return {
        "role": role.value,
        **({"also": [phase.value for phase in also]} if also else {}),
        **({} if str(below) == name else {"at": str(below)}),
        **({"file": True} if file else {}),
        "source": {"local": name, **({"sha256": lock.sha256} if lock and known else {})},
    }


def _stand_ins(wanted: Wanted, assets: Mapping[str, dict[str, Any]]) -> None:
    """Show the validator train-role data that lies where it would find what it may not see."""
    theirs = asset_mounts(wanted.validate)
    dropped = {theirs[name] for name in theirs if assets.get(name, {}).get("role") == "final"}
    for name, asset in assets.items():
        if asset["role"] == "train" and f"/assets/{asset.get('at', name)}" in dropped:
            asset["also"] = sorted({*asset.get("also", ()), "validate"}, reverse=True)


def _is_sha256(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")  # noqa: PLR2004 - hexadecimal digits of a sha256
