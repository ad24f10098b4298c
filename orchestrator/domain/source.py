"""Where an asset of a task comes from: made by a script, fetched, or brought by the operator."""

from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, Discriminator, Field, Tag

from orchestrator.domain.schema import FilePath, RelativePath, Sha256, Strict


def _apart(files: dict[str, Any]) -> dict[str, Any]:
    for path in files:
        for parent in PurePosixPath(path).parents:
            if str(parent) in files:
                raise ValueError(f"{str(parent)!r} cannot be a file and the folder of {path!r}")
    return files


class ScriptSource(Strict):
    """An asset is made by a script of the pack, run in a container of its own, offline.

    ``inputs`` (``from`` in the file) names the ``downloads`` that the script reads.
    """

    prepare: RelativePath
    inputs: tuple[str, ...] = Field(default=(), alias="from")


class HubKind(StrEnum):
    """What a repository of the hub holds."""

    MODEL = "model"
    DATASET = "dataset"


class HubFile(Strict):
    """A file of a repository, by its path there."""

    path: FilePath
    sha256: Sha256


class HubRepository(Strict):
    """Files of one pinned revision of a repository of the hub.

    ``files`` maps a path in the asset to the sha256 of the file that has the same path in the
    repository, or to the path and sha256 of another.
    """

    repo: Annotated[str, Field(pattern=r"^(?:[\w.-]+/)?[\w.-]+$", max_length=200)]
    kind: HubKind
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    files: Annotated[dict[FilePath, Sha256 | HubFile], AfterValidator(_apart), Field(min_length=1)]


class UrlFile(Strict):
    """A published file, and the sha256 it must have."""

    url: Annotated[str, Field(pattern=r"^https?://[^/@\s]+/[^\s#]*$", max_length=2000)]
    sha256: Sha256


class HubSource(Strict):
    """Files fetched from the hub, as they are."""

    hub: HubRepository


class UrlSource(Strict):
    """Published files, fetched as they are; each by its path in the asset."""

    urls: Annotated[dict[FilePath, UrlFile], AfterValidator(_apart), Field(min_length=1)]


class LocalSource(Strict):
    """What the operator has already, by its path in a folder named when assets are prepared.

    ``sha256`` is what it is published as: that of the file, or, of a folder, that of the compact
    JSON list of its files, ``{path, sha256, size_bytes}`` each, in the order of their paths' parts;
    after AI4AI-Bench v1.5.
    """

    local: FilePath
    sha256: Sha256 | None = None


_SOURCES = {"prepare": ScriptSource, "hub": HubSource, "urls": UrlSource, "local": LocalSource}


def _kind_of_source(value: Any) -> str | None:
    """Name the one key that says what a source is; None where there is none, or two."""
    found = [key for key in _SOURCES if key in value] if isinstance(value, dict) else []
    if len(found) == 1:
        return f"<{found[0]}>"
    return next((f"<{key}>" for key, kind in _SOURCES.items() if isinstance(value, kind)), None)


Download = Annotated[
    Annotated[HubSource, Tag("<hub>")] | Annotated[UrlSource, Tag("<urls>")],
    Discriminator(
        _kind_of_source,
        custom_error_type="source",
        custom_error_message="needs exactly one of the keys hub and urls",
    ),
]
"""Files that are fetched on a networked host, each held to its sha256."""

Source = Annotated[
    Annotated[ScriptSource, Tag("<prepare>")]
    | Annotated[HubSource, Tag("<hub>")]
    | Annotated[UrlSource, Tag("<urls>")]
    | Annotated[LocalSource, Tag("<local>")],
    Discriminator(
        _kind_of_source,
        custom_error_type="source",
        custom_error_message="needs exactly one of the keys prepare, hub, urls and local",
    ),
]
"""Where an asset comes from: made by a script, fetched, or brought by the operator."""

DownloadName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
