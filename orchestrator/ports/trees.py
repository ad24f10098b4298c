"""A private store in which trees are compared and patches applied."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class Blob:
    """A file or link to be stored: ``content`` yields exactly ``size`` bytes, once."""

    path: bytes
    mode: str
    size: int
    content: Iterator[bytes]


class StoredFile(NamedTuple):
    """A file or link of a stored tree; ``key`` names its content in the store."""

    path: bytes
    mode: str
    key: str


@dataclass(frozen=True, slots=True)
class PatchRefused:
    """The store would not apply a patch; ``reason`` is its own text, for people only."""

    reason: str


class Trees(Protocol):
    """A private store of trees that lives as long as it is open.

    Nothing in a stored tree can change how the store works or make it run anything. Every method
    raises InfrastructureError when the store itself fails.
    """

    def add(self, blobs: Iterable[Blob]) -> str:
        """Store a tree; return its name. Paths are distinct, and none lies below another."""
        ...

    def diff(self, before: str, after: str, destination: Path) -> None:
        """Write the patch that makes ``after`` of ``before``; no bytes if they are equal."""
        ...

    def apply(self, base: str, patch: Path) -> str | PatchRefused:
        """Apply a patch to a stored tree, all or nothing; return the name of the result."""
        ...

    def files(self, tree: str) -> tuple[StoredFile, ...]:
        """List a tree's files and links by path."""
        ...

    def read(self, key: str, take: Callable[[bytes], object]) -> None:
        """Hand a file's content, in pieces, to ``take``."""
        ...


class TreeStore(Protocol):
    """Opens private stores of trees."""

    def open(self) -> AbstractContextManager[Trees]:
        """Open an empty store; it is gone with all its content when the context ends."""
        ...
