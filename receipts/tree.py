"""The identity of a folder, ``tree:v1:sha256:...``, computed apart from the code that wrote it.

It is the sha256 of the RFC 8785 form of the sorted entries ``{path, type, mode, size, sha256}``:
files and links, ``mode`` as git has it, ``path`` as percent-encoded bytes with ``%`` encoded too.
Folders are no entries.
"""

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote_from_bytes

from receipts.errors import MalformedError

MAX_ENTRIES = 5_000_000
MAX_BYTES = 1 << 50
_CHUNK = 1024**2
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
Row = Mapping[str, str | int]


def tree_identity(root: Path, *, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> str:
    """Hash a folder.

    Args:
        root: the folder; a link is none.
        max_entries: files and links it may hold.
        max_bytes: bytes of all of them together.

    Raises:
        MalformedError: it is no folder, holds more than that, or something without an identity.
        OSError: something in it cannot be read.
    """
    if not stat.S_ISDIR(root.lstat().st_mode):
        raise MalformedError(f"{root}: not a folder")
    rows: list[tuple[bytes, Row]] = []
    left = max_bytes
    for path, entry in _walk(os.fsencode(root)):
        if len(rows) >= max_entries:
            raise MalformedError(f"{root}: more than {max_entries} files")
        row = _row(path, entry, left)
        left -= int(row["size"])
        rows.append((path, row))
    return identity_of(row for _, row in sorted(rows, key=lambda found: found[0]))


def identity_of(rows: Iterable[Row]) -> str:
    """Name sorted entries; ASCII text and small integers alone are RFC 8785 in json's own form."""
    canonical = json.dumps(list(rows), sort_keys=True, separators=(",", ":")).encode()
    return f"tree:v1:sha256:{hashlib.sha256(canonical).hexdigest()}"


def _walk(root: bytes) -> Iterator[tuple[bytes, "os.DirEntry[bytes]"]]:
    waiting = [(root, b"")]
    while waiting:
        folder, prefix = waiting.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                path = prefix + entry.name
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((entry.path, path + b"/"))
                else:
                    yield path, entry


def _row(path: bytes, entry: "os.DirEntry[bytes]", left: int) -> Row:
    if entry.is_symlink():
        target = os.fsencode(Path(os.fsdecode(entry.path)).readlink())
        return _entry(path, "symlink", "120000", len(target), hashlib.sha256(target).hexdigest())
    descriptor = os.open(entry.path, _READ)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise MalformedError(f"{os.fsdecode(entry.path)}: neither file, link nor folder")
        digest, size = hashlib.sha256(), 0
        while chunk := os.read(descriptor, _CHUNK):
            digest.update(chunk)
            size += len(chunk)
            if size > left:
                raise MalformedError(f"{os.fsdecode(entry.path)}: more bytes than were recorded")
    finally:
        os.close(descriptor)
    mode = "100755" if status.st_mode & stat.S_IXUSR else "100644"
    return _entry(path, "file", mode, size, digest.hexdigest())


def _entry(path: bytes, kind: str, mode: str, size: int, sha256: str) -> Row:
    encoded = quote_from_bytes(path, safe="/")
    return {"path": encoded, "type": kind, "mode": mode, "size": size, "sha256": sha256}
