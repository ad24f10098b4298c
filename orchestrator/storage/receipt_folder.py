"""The receipts of one run on disk: minted once each, and the commit record linked last."""

import re
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import TaskPackError
from orchestrator.storage import durable
from receipts.canonical import sha256_hex
from receipts.complete import commit_record
from receipts.envelope import parse_envelope, sign
from receipts.errors import MalformedError
from receipts.keys import SigningKey
from receipts.statement import Statement

_NAME = re.compile(r"([0-9]{3})-[a-z]+\.json")
_MAX_RECEIPT = 16 * 1024**2


@dataclass(frozen=True, slots=True)
class Minted:
    """A receipt on disk. Both hashes are hexadecimal digits."""

    path: Path
    payload_sha256: str
    envelope_sha256: str

    @property
    def number(self) -> int:
        """Its number in the chain."""
        return int(self.path.name[:3])

    @property
    def digest(self) -> str:
        """What the next receipt names as ``prev``."""
        return f"sha256:{self.payload_sha256}"


def mint(folder: Path, number: int, statement: Statement, key: SigningKey) -> Minted:
    """Sign ``statement`` and write it as ``NNN-<phase>.json`` of ``folder`` (made when missing).

    Minting the same again returns what is there, so a crash between two steps can be repaired.

    Raises:
        TaskPackError: that number already says something else.
        receipts.errors.CanonicalError: an integer beyond 2^53 is in it.
        StorageFullError: no space; nothing is half there.
    """
    payload = statement.payload()
    path = folder / f"{number:03d}-{statement.predicate.phase}.json"
    durable.make_folder(folder, exist_ok=True)
    for other in _receipts(folder):
        if other.name.startswith(f"{number:03d}-"):
            found = _load(other)
            if found.payload_sha256 != sha256_hex(payload):
                raise TaskPackError(f"{other}: receipt {number} already says something else")
            return found
    envelope = sign(payload, key)
    durable.write_file(path, envelope)
    return Minted(path, sha256_hex(payload), sha256_hex(envelope))


def last_receipt(folder: Path) -> Minted | None:
    """Return the receipt with the greatest number; None where there is none.

    Raises:
        TaskPackError: it is not an envelope.
    """
    found = _receipts(folder)
    return _load(found[-1]) if found else None


def write_complete(marker: Path, receipt: Path, summary: Path | None) -> None:
    """Link the commit record of a run over its last receipt and its summary; the last write of all.

    Raises:
        TaskPackError: the marker is there and commits to something else, or a file it is to name
            is missing or empty.
        StorageFullError: no space; no marker is there.
    """
    try:
        data = commit_record(marker.parent, receipt, summary).encode()
    except (FileNotFoundError, MalformedError, ValueError) as error:
        raise TaskPackError(f"{marker}: cannot commit: {error}") from error
    try:
        durable.write_file(marker, data)
    except FileExistsError as error:
        if durable.read_bytes(marker) != data:
            raise TaskPackError(f"{marker}: already commits to something else") from error


def _receipts(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))


def _load(path: Path) -> Minted:
    data = durable.read_bytes(path, max_bytes=_MAX_RECEIPT)
    try:
        envelope = parse_envelope(data)
    except MalformedError as error:
        raise TaskPackError(f"{path}: {error}") from error
    return Minted(path, sha256_hex(envelope.payload), sha256_hex(data))
