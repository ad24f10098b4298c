"""Read the files of a manifest, proving each, and write them into an empty folder of ours."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from orchestrator.evidence.tree import Entry, Kind, chunks_of
from orchestrator.evidence.walk import TreeChangedError
from orchestrator.ports import Blob
from orchestrator.storage.durable import storage_faults

Take = Callable[[bytes], object]
_ROOT = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MODES = {"100644": 0o644, "100755": 0o755}
_FOLDER_MODE = 0o755


class TreeReader:
    """Reads entries of a tree that stands still; every byte is checked against its manifest."""

    def __init__(self, root: Path) -> None:
        self._root = os.open(root, _ROOT)

    def close(self) -> None:
        """Close the folder."""
        os.close(self._root)

    def blobs(self, entries: Iterable[Entry]) -> Iterator[Blob]:
        """Offer entries to a store, contents as they are asked for."""
        for entry in entries:
            yield Blob(entry.path, entry.mode, entry.size, self.content(entry))

    def content(self, entry: Entry) -> Iterator[bytes]:
        """Yield an entry's content, exactly its size.

        Raises:
            TreeChangedError: it is not, or no longer, what the manifest says.
        """
        digest = hashlib.sha256()
        left = entry.size
        for chunk in self._chunks(entry):
            digest.update(chunk)
            left -= len(chunk)
            if left < 0:
                break
            yield chunk
        if left != 0 or digest.hexdigest() != entry.sha256:
            raise TreeChangedError(f"{entry.path!r} changed while it was read")

    def head(self, entry: Entry, size: int) -> bytes:
        """Read the first bytes of a file; a link has none."""
        if entry.kind is Kind.LINK:
            return b""
        descriptor = self._open(entry)
        try:
            return os.read(descriptor, size)
        finally:
            os.close(descriptor)

    def _chunks(self, entry: Entry) -> Iterator[bytes]:
        if entry.kind is Kind.LINK:
            yield os.readlink(entry.path, dir_fd=self._root)
            return
        descriptor = self._open(entry)
        try:
            yield from chunks_of(descriptor, entry.size)
        finally:
            os.close(descriptor)

    def _open(self, entry: Entry) -> int:
        try:
            return os.open(entry.path, _READ, dir_fd=self._root)
        except OSError as error:
            raise TreeChangedError(f"{entry.path!r} cannot be read any more: {error}") from error


def write_files(
    target: Path,
    entries: Iterable[Entry],
    content: Callable[[Entry, Take], object],
    *,
    owner: tuple[int, int] | None = None,
) -> None:
    """Write a whole tree into ``target``, an existing empty folder that nobody else writes to.

    Links are made last, so that no file can be written through one. Nothing that exists is ever
    written over.

    Args:
        target: the folder.
        entries: files and links, none below another.
        content: hands the bytes of an entry to the function it is given.
        owner: user and group of all that is made, ``target`` included; by default the caller's.

    Raises:
        StorageFullError: no space under ``target``.
        FileExistsError: ``target`` was not empty.
    """
    root = os.open(target, _ROOT)
    with storage_faults(target):
        try:
            made = _Writer(root, owner)
            for entry in sorted(entries, key=lambda entry: (entry.kind is Kind.LINK, entry.path)):
                made.write(entry, content)
            if owner is not None:
                os.fchown(root, *owner)
        finally:
            os.close(root)


class _Writer:
    def __init__(self, root: int, owner: tuple[int, int] | None) -> None:
        self._root = root
        self._owner = owner
        self._folders = {b""}

    def write(self, entry: Entry, content: Callable[[Entry, Take], object]) -> None:
        self._make_folders(entry.path.rpartition(b"/")[0])
        if entry.kind is Kind.LINK:
            target: list[bytes] = []
            content(entry, target.append)
            os.symlink(b"".join(target), entry.path, dir_fd=self._root)
            self._give(entry.path)
            return
        descriptor = os.open(entry.path, _WRITE, 0o600, dir_fd=self._root)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            content(entry, lambda chunk: _write_all(file.fileno(), chunk))
            if self._owner is not None:
                os.fchown(descriptor, *self._owner)
            os.fchmod(descriptor, _MODES[entry.mode])

    def _make_folders(self, path: bytes) -> None:
        missing = []
        while path not in self._folders:
            missing.append(path)
            path = path.rpartition(b"/")[0]
        for folder in reversed(missing):
            os.mkdir(folder, 0o700, dir_fd=self._root)
            os.chmod(folder, _FOLDER_MODE, dir_fd=self._root)
            self._give(folder)
            self._folders.add(folder)

    def _give(self, path: bytes) -> None:
        if self._owner is not None:
            os.chown(path, *self._owner, dir_fd=self._root, follow_symlinks=False)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
