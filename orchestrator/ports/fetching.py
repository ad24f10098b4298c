"""Fetching published files: from the hub, and from plain addresses."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from orchestrator.domain.source import HubKind


@dataclass(frozen=True, slots=True)
class HubAddress:
    """One file at a pinned revision of a repository of the hub."""

    repo: str
    kind: HubKind
    revision: str
    path: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """One file to be fetched.

    Attributes:
        name: its path in the asset, for people.
        sha256: what its bytes must have, in hex.
        origin: where it is: on the hub, or at a URL.
    """

    name: str
    sha256: str
    origin: HubAddress | str


class Fetcher(Protocol):
    """Fetches files on a host that has a network."""

    def fetch(self, wanted: Wanted, part: Path, say: Callable[[str], None]) -> None:
        """Make ``part`` the whole file, durably, going on from what an earlier try left there.

        Args:
            wanted: the file.
            part: where its bytes go; on a failure it stays, so that the next try can go on.
            say: hears how it goes.

        Raises:
            AssetMismatchError: its bytes have another digest; ``part`` is gone.
            TaskPackError: there is no such file.
            UsageError: it takes a login or a licence, or a library that is not installed.
            InfrastructureError: its server cannot be reached, or did not send all of it.
            StorageFullError: no space for it.
        """
        ...
