"""What a tree is: its files and links, what git cannot carry of it, and its identity.

The recipe ``tree:v1`` (README, "Formats"): the sha256 of the RFC 8785 form of the entries
``{path, type, mode, size, sha256}``, sorted by the bytes of their paths. ``mode`` is git's; the
content of a link is its target; paths are percent-encoded bytes (all but
``A-Z a-z 0-9 _ . - ~ /``). Folders have no entry of their own.
"""

import fnmatch
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.errors import AssetMismatchError, TaskPackError
from orchestrator.evidence.walk import PATH_LIMIT, Found, Visit, open_file, walk
from orchestrator.storage.durable import parse_json

CHUNK = 1024 * 1024
_SCHEMA = "orch.manifest/1"
_PLAIN_MODES = frozenset({0o644, 0o755})


class Kind(StrEnum):
    """What an entry is; folders are not entries."""

    FILE = "file"
    LINK = "symlink"


class Reason(StrEnum):
    """Why something of a tree is not, or not wholly, carried."""

    EXCLUDED = "excluded_by_rule"
    EMPTY_FOLDER = "empty_folder"
    SPECIAL_FILE = "special_file"
    NESTED_REPOSITORY = "nested_repository"
    MODE_BITS = "mode_bits"
    TOO_DEEP = "too_deep"
    TOO_LARGE = "too_large"
    UNREADABLE = "unreadable"


class Entry(NamedTuple):
    """A file or link. ``mode`` is ``100644``, ``100755`` or ``120000``; ``size`` in bytes."""

    path: bytes
    kind: Kind
    mode: str
    size: int
    sha256: str


class LeftOut(NamedTuple):
    """Something that does not cross; ``detail`` is the mode bits where those are the reason.

    An entry with ``mode_bits`` crosses, but with git's mode.
    """

    path: bytes
    reason: Reason
    detail: str = ""


class TreeTooLargeError(Exception):
    """The files together are larger than was asked for; the caller knows what that means."""

    def __init__(self, size: int) -> None:
        super().__init__(f"the tree holds at least {size} bytes")
        self.size = size


@dataclass(frozen=True)
class Manifest:
    """The entries of a tree in path order, and what was left out, in path order."""

    entries: tuple[Entry, ...]
    left_out: tuple[LeftOut, ...] = ()

    @cached_property
    def digest(self) -> str:
        """The tree's identity, ``tree:v1:sha256:...``; what was left out is no part of it."""
        return f"tree:v1:sha256:{hashlib.sha256(_canonical(self.entries)).hexdigest()}"

    @cached_property
    def size(self) -> int:
        """Bytes of all entries together."""
        return sum(entry.size for entry in self.entries)

    def by_path(self) -> dict[bytes, Entry]:
        """The entries by their paths."""
        return {entry.path: entry for entry in self.entries}

    def to_json(self) -> bytes:
        """Write it as JSON, with its digest."""
        left_out = [
            {"path": encode_path(left.path), "reason": left.reason, "detail": left.detail}
            for left in self.left_out
        ]
        record = {
            "schema": _SCHEMA,
            "digest": self.digest,
            "entries": [_row(entry) for entry in self.entries],
            "left_out": left_out,
        }
        return json.dumps(record, sort_keys=True).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> "Manifest":
        """Read what ``to_json`` wrote.

        Raises:
            TaskPackError: it is not a manifest, or does not match the digest in it.
        """
        try:
            record = _Record.model_validate(parse_json(data))
        except ValidationError as error:
            raise TaskPackError(f"not a tree manifest: {error}") from error
        manifest = cls(
            tuple(
                Entry(decode_path(row.path), row.type, row.mode, row.size, row.sha256)
                for row in record.entries
            ),
            tuple(LeftOut(decode_path(r.path), r.reason, r.detail) for r in record.left_out),
        )
        paths = [entry.path for entry in manifest.entries]
        if manifest.digest != record.digest or paths != sorted(set(paths)):
            raise TaskPackError(f"the manifest's entries are not those of {record.digest}")
        return manifest


class Rules:
    """Exclusion by name: ``name/`` is any folder so named, ``*.ext`` a pattern for any basename.

    Names are compared as bytes, and case counts.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        encoded = [os.fsencode(pattern) for pattern in patterns]
        self._folders = [pattern[:-1] for pattern in encoded if pattern.endswith(b"/")]
        self._names = [pattern for pattern in encoded if not pattern.endswith(b"/")]

    def match(self, name: bytes, *, is_folder: bool) -> bool:
        """Tell whether an entry with this basename is excluded."""
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in self._names):
            return True
        return is_folder and any(fnmatch.fnmatchcase(name, pattern) for pattern in self._folders)

    def match_path(self, path: bytes) -> bool:
        """Tell whether a file of this path, or a folder above it, is excluded."""
        *folders, name = path.split(b"/")
        return self.match(name, is_folder=False) or any(
            self.match(folder, is_folder=True) for folder in folders
        )


def manifest_of(
    root: Path,
    *,
    exclude: tuple[str, ...] = (),
    max_bytes: int | None = None,
    leave_large: bool = False,
) -> Manifest:
    """Read a workspace as git could carry it; the rest is listed in ``left_out``.

    Args:
        root: the workspace.
        exclude: names to leave out.
        max_bytes: how much it may hold, by apparent sizes, so that holes and second names count.
        leave_large: leave out what would be more than that, instead of raising.

    Raises:
        TreeTooLargeError: it holds more than ``max_bytes``; found before that much is read.
        TreeChangedError: the tree changed while it was read.
    """
    return _Scan(Rules(exclude), max_bytes, for_git=True, leave_large=leave_large).run(root)


def tree_digest(root: Path) -> str:
    """Identify an asset or a checkpoint: every file and link counts, nothing is excluded.

    Raises:
        AssetMismatchError: it holds what has no identity (a special file, a path too deep, a file
            that may not be read), or is not there.
    """
    try:
        manifest = _Scan(Rules(()), None, for_git=False).run(root)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise AssetMismatchError(f"no folder at {root}") from error
    for left in manifest.left_out:
        if left.reason is not Reason.EMPTY_FOLDER:
            raise AssetMismatchError(f"{root} holds {encode_path(left.path)}: {left.reason}")
    return manifest.digest


def stat_identity(root: Path) -> str:
    """Identify a tree cheaply, to see later whether it was touched (no content is read).

    It covers device, inode, mode, links, size, mtime and ctime of every file and link. A store
    through a mapping that was already open escapes it.
    """
    rows = []
    for found in walk(root, lambda _: True):
        if found.visit is Visit.SEEN and not found.is_folder:
            s = found.status
            rows.append(
                f"{encode_path(found.path)} {s.st_dev} {s.st_ino} {s.st_mode:o} {s.st_nlink} "
                f"{s.st_size} {s.st_mtime_ns} {s.st_ctime_ns}\n"
            )
    return f"stat:v1:sha256:{hashlib.sha256(''.join(sorted(rows)).encode()).hexdigest()}"


def encode_path(path: bytes) -> str:
    """Percent-encode a path; ``%`` always, ``/`` never."""
    return quote_from_bytes(path, safe="/")


def decode_path(text: str) -> bytes:
    """Undo ``encode_path``.

    Raises:
        TaskPackError: the text is not exactly what ``encode_path`` writes.
    """
    path = unquote_to_bytes(text)
    if encode_path(path) != text:
        raise TaskPackError(f"{text!r} is not a percent-encoded path")
    return path


def is_dotgit(name: bytes) -> bool:
    """Tell whether git reserves this name, in any case, as a repository's own."""
    return name.lower() == b".git"


def chunks_of(descriptor: int, size: int) -> Iterator[bytes]:
    """Read an open file to its end; ``size`` is what is expected, and only saves memory."""
    piece = min(CHUNK, size + 1)
    while chunk := os.read(descriptor, piece):
        yield chunk


class _Scan:
    """One reading of a tree."""

    def __init__(
        self, rules: Rules, max_bytes: int | None, *, for_git: bool, leave_large: bool = False
    ) -> None:
        self._rules = rules
        self._max_bytes = max_bytes
        self._leave_large = leave_large
        self._for_git = for_git
        self._size = 0
        self._entries: list[Entry] = []
        self._left_out: list[LeftOut] = []
        self._marks: list[int] = []

    def run(self, root: Path) -> Manifest:
        for found in walk(root, self._enter):
            if found.visit is Visit.LEFT:
                self._leave(found)
            elif found.visit is Visit.SHUT:
                self._marks.pop()
                self._leave_out(found, Reason.UNREADABLE)
            elif not found.is_folder and not self._refuse(found):
                self._take(found)
        return Manifest(tuple(sorted(self._entries)), tuple(sorted(self._left_out)))

    def _enter(self, found: Found) -> bool:
        if self._refuse(found):
            return False
        self._marks.append(len(self._entries) + len(self._left_out))
        return True

    def _leave(self, found: Found) -> None:
        if self._marks.pop() == len(self._entries) + len(self._left_out):
            self._leave_out(found, Reason.EMPTY_FOLDER)
        elif self._for_git:
            self._note_mode(found, frozenset({0o755}))

    def _refuse(self, found: Found) -> bool:
        """List an entry that is not carried at all; tell whether it was one."""
        if len(found.path) > PATH_LIMIT:
            self._leave_out(found, Reason.TOO_DEEP)
            return True
        if self._for_git and is_dotgit(found.name) and b"/" in found.path:
            self._leave_out(found, Reason.NESTED_REPOSITORY)
            return True
        if self._rules.match(found.name, is_folder=found.is_folder):
            self._leave_out(found, Reason.EXCLUDED)
            return True
        if self._for_git and is_dotgit(found.name):
            self._leave_out(found, Reason.NESTED_REPOSITORY)
            return True
        return False

    def _take(self, found: Found) -> None:
        if stat.S_ISLNK(found.status.st_mode):
            target = os.readlink(found.name, dir_fd=found.folder)
            digest = hashlib.sha256(target).hexdigest()
            self._entries.append(Entry(found.path, Kind.LINK, "120000", len(target), digest))
        elif stat.S_ISREG(found.status.st_mode):
            self._take_file(found)
        else:
            self._leave_out(found, Reason.SPECIAL_FILE)

    def _take_file(self, found: Found) -> None:
        self._size += found.status.st_size
        if self._max_bytes is not None and self._size > self._max_bytes:
            if not self._leave_large:
                raise TreeTooLargeError(self._size)
            self._size -= found.status.st_size
            self._leave_out(found, Reason.TOO_LARGE)
            return
        try:
            descriptor = open_file(found.folder, found.name, found.status)
        except PermissionError:
            self._leave_out(found, Reason.UNREADABLE)
            return
        digest = hashlib.sha256()
        size = 0
        try:
            for chunk in chunks_of(descriptor, found.status.st_size):
                digest.update(chunk)
                size += len(chunk)
        finally:
            os.close(descriptor)
        mode = git_mode(found.status.st_mode)
        self._entries.append(Entry(found.path, Kind.FILE, mode, size, digest.hexdigest()))
        if self._for_git:
            self._note_mode(found, _PLAIN_MODES)

    def _note_mode(self, found: Found, plain: frozenset[int]) -> None:
        bits = stat.S_IMODE(found.status.st_mode)
        if bits not in plain:
            self._left_out.append(LeftOut(found.path, Reason.MODE_BITS, f"{bits:04o}"))

    def _leave_out(self, found: Found, reason: Reason) -> None:
        self._left_out.append(LeftOut(found.path, reason))


def git_mode(mode: int) -> str:
    """Return the mode git gives a regular file: the owner's executable bit is all it keeps."""
    return "100755" if mode & stat.S_IXUSR else "100644"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


class _EntryRow(_Strict):
    path: Annotated[str, Field(min_length=1)]
    type: Annotated[Kind, Field(strict=False)]
    mode: Literal["100644", "100755", "120000"]
    size: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _LeftOutRow(_Strict):
    path: Annotated[str, Field(min_length=1)]
    reason: Annotated[Reason, Field(strict=False)]
    detail: str


class _Record(_Strict):
    schema_: Literal["orch.manifest/1"] = Field(alias="schema")
    digest: str
    entries: list[_EntryRow]
    left_out: list[_LeftOutRow]


def _row(entry: Entry) -> dict[str, str | int]:
    return {
        "path": encode_path(entry.path),
        "type": entry.kind.value,
        "mode": entry.mode,
        "size": entry.size,
        "sha256": entry.sha256,
    }


def _canonical(entries: Iterable[Entry]) -> bytes:
    """Write the RFC 8785 form; with ASCII strings and small integers alone, json's own is that."""
    rows = [_row(entry) for entry in entries]
    return json.dumps(rows, sort_keys=True, separators=(",", ":")).encode()
