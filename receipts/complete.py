"""``.complete``: the commit record that is linked last and says what it commits to.

It names a receipt by the sha256 of its envelope file, and a summary by sha256 and size. A bare
marker is corrupt; a summary without a marker is incomplete.
"""

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError

from receipts.canonical import sha256_hex
from receipts.errors import MalformedError
from receipts.model import Strict, faults
from receipts.reading import parse_json, read_file

VERSION = 1
MAX_FILE = 64 * 1024**2
_CHECKPOINT = re.compile(r"checkpoint-[0-9]{1,12}")


class Completeness(StrEnum):
    """What a marker and what it names amount to."""

    ABSENT = "absent"
    COMPLETE = "complete"
    CORRUPT = "corrupt"
    INCOMPLETE = "incomplete"


def _inside(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
        raise ValueError(f"{name!r} leads out of the folder")
    return name


Name = Annotated[str, AfterValidator(_inside)]
Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ReceiptReference(Strict):
    """A receipt's envelope file, by its path from the marker's folder."""

    name: Name
    sha256: Hex


class SummaryReference(Strict):
    """A summary, by its path from the marker's folder. ``size`` in bytes."""

    name: Name
    sha256: Hex
    size: int = Field(gt=0)


class CommitRecord(Strict):
    """The content of ``.complete``."""

    version: Literal[1] = 1
    receipt: ReceiptReference
    summary: SummaryReference | None

    def encode(self) -> bytes:
        """Return the marker's bytes."""
        return json.dumps(self.model_dump(), indent=2, sort_keys=True).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class Finding:
    """What ``check`` found. ``reason`` names the file; ``record`` is there when it is complete."""

    completeness: Completeness
    reason: str = ""
    record: CommitRecord | None = None


def commit_record(folder: Path, receipt: Path, summary: Path | None) -> CommitRecord:
    """Describe what a marker in ``folder`` is to commit to, from the files as they are.

    Raises:
        FileNotFoundError: one is not there.
        ValueError: one does not lie under ``folder``, or the summary is empty.
        MalformedError: one is no regular file.
    """
    envelope = read_file(receipt, max_bytes=MAX_FILE)
    result = None
    if summary is not None:
        data = read_file(summary, max_bytes=MAX_FILE)
        name = summary.relative_to(folder).as_posix()
        result = SummaryReference(name=name, sha256=sha256_hex(data), size=len(data))
    name = receipt.relative_to(folder).as_posix()
    return CommitRecord(
        receipt=ReceiptReference(name=name, sha256=sha256_hex(envelope)), summary=result
    )


def check(marker: Path) -> Finding:
    """Judge a marker by the files it names. Never raises for what is on disk."""
    folder = marker.parent
    summary = _summary_of(folder)
    try:
        record = _parse(read_file(marker, max_bytes=MAX_FILE))
    except FileNotFoundError:
        if summary.is_symlink() or summary.exists():
            return Finding(Completeness.INCOMPLETE, f"{summary}: there is no {marker.name} for it")
        return Finding(Completeness.ABSENT, f"{marker}: not there")
    except (MalformedError, OSError) as error:
        return Finding(Completeness.CORRUPT, f"{marker}: {error}")
    if record.summary is None and summary.exists():
        return Finding(Completeness.CORRUPT, f"{summary}: {marker.name} does not name it")
    for reference in (record.receipt, record.summary):
        if reference is not None and (fault := _fault(folder, reference)):
            return Finding(Completeness.CORRUPT, fault)
    return Finding(Completeness.COMPLETE, record=record)


def _summary_of(folder: Path) -> Path:
    """Where a folder's summary lies: a checkpoint's score keeps it under ``out/``.

    Elsewhere ``out/`` is the candidate's and nothing in it counts.
    """
    if _CHECKPOINT.fullmatch(folder.name):
        return folder / "out" / "summary.json"
    return folder / "summary.json"


def _parse(data: bytes) -> CommitRecord:
    if not data.strip():
        raise MalformedError("a bare marker that commits to nothing")
    raw = parse_json(data)
    version = raw.get("version", VERSION) if isinstance(raw, dict) else VERSION
    if version != VERSION:
        raise MalformedError(f"has version {version!r}; this reader knows version {VERSION} alone")
    try:
        return CommitRecord.model_validate(raw)
    except ValidationError as error:
        raise MalformedError(f"not a commit record: {faults(error)}") from error


def _fault(folder: Path, reference: ReceiptReference | SummaryReference) -> str:
    path = folder / reference.name
    try:
        data = read_file(path, max_bytes=MAX_FILE)
    except FileNotFoundError:
        return f"{path}: missing"
    except (MalformedError, OSError) as error:
        return f"{path}: {error}"
    if isinstance(reference, SummaryReference) and len(data) != reference.size:
        return f"{path}: {len(data)} bytes where {reference.size} were committed"
    if sha256_hex(data) != reference.sha256:
        return f"{path}: not the bytes that were committed"
    return ""
