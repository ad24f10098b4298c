"""Where prepared assets lie: under their task's name and path, in a folder named by their digest.

The lock in ``task.yaml`` is the address. So an asset that was never made is missing, two versions
of a task never disturb each other, and what lies there either has the digest of its name or has
been changed.
"""

import os
import shlex
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from orchestrator.domain.attempt import slug
from orchestrator.domain.records import Material
from orchestrator.domain.roles import Phase, is_visible
from orchestrator.errors import AssetMismatchError
from orchestrator.storage.durable import (
    folder_faults,
    make_folder,
    require_writable,
    storage_faults,
    sync_folder,
)
from orchestrator.storage.lock import locked
from orchestrator.storage.pack import Pack

TreeDigest = Callable[[Path], str]
"""Identifies a folder, ``tree:v1:sha256:...``; ``evidence.tree.tree_digest`` in production."""


@dataclass(frozen=True, slots=True)
class AssetStore:
    """The folder of prepared assets (``ORCH_ASSETS``)."""

    root: Path

    @property
    def workspaces(self) -> Path:
        """Where shipped solutions lie that were taken out of images."""
        return self.root / ".workspaces"

    @property
    def downloads(self) -> Path:
        """Where published files lie, whole or not yet, before and beside what is made of them."""
        return self.root / ".downloads"

    def folder(self, pack: Pack, asset: str, digest: str) -> Path:
        """Name the folder of an asset with this digest, whether it is there or not."""
        return self.root / slug(pack.spec.name) / asset / digest.rpartition(":")[2]

    def locate(self, pack: Pack, asset: str) -> Path:
        """Return the folder of an asset as the task locks it, without looking into it.

        Raises:
            AssetMismatchError: it was never made here.
        """
        digest = pack.spec.assets[asset].digest
        if digest is None:
            raise AssetMismatchError(
                f"asset {asset} of task {pack.spec.name} has no locked digest",
                remedy=_remedy(pack),
            )
        folder = self.folder(pack, asset, digest)
        if not folder.is_dir():
            raise AssetMismatchError(
                f"asset {asset} of task {pack.spec.name} is missing ({digest})",
                remedy=_remedy(pack),
            )
        return folder

    def materials(self, pack: Pack, *, absent: str | None = None) -> dict[str, Material]:
        """Return every asset of a task as a plan names it.

        Args:
            absent: what stands for the folder of one that was never made here.

        Raises:
            AssetMismatchError: one was never made here, and nothing may stand for it.
        """

        def place(name: str) -> str:
            try:
                return str(self.locate(pack, name))
            except AssetMismatchError:
                if absent is None:
                    raise
                return absent

        return {
            name: Material(
                role=asset.role,
                digest=asset.digest or "",
                source=place(name),
                also=asset.also,
                at=asset.at,
                file=PurePosixPath(name).name if asset.file else "",
            )
            for name, asset in pack.spec.assets.items()
        }

    def verify(self, pack: Pack, phases: Iterable[Phase], tree_digest: TreeDigest) -> None:
        """Hash every asset that one of ``phases`` sees.

        Raises:
            AssetMismatchError: one is missing or changed; the message has both digests.
        """
        wanted = tuple(phases)
        for name, asset in pack.spec.assets.items():
            if any(is_visible(asset.role, phase, frozenset(asset.also)) for phase in wanted):
                found = tree_digest(self.locate(pack, name))
                if found != asset.digest:
                    raise AssetMismatchError(
                        f"asset {name} of task {pack.spec.name} was changed: "
                        f"it is {found}, task.yaml locks {asset.digest}",
                        remedy=_remedy(pack),
                    )

    @contextmanager
    def exclusive(self, say: Callable[[str], None]) -> Iterator[None]:
        """Be the only one who puts assets in; others wait, and say so. It ends with its process.

        Raises:
            UsageError: the folder cannot be made, or not be written to.
        """
        lock = self.root / ".lock"
        with folder_faults("the assets folder", self.root, "name another: ORCH_ASSETS"):
            self.root.mkdir(parents=True, exist_ok=True)
            require_writable(self.root)
        with ExitStack() as held:
            try:
                held.enter_context(locked(lock, patience=0))
            except TimeoutError:
                say(f"waiting for another orch task prepare, which is at work in {self.root}")
                held.enter_context(locked(lock))
            yield

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Lend an empty folder on the store's own file system, for what is not an asset yet.

        What a killed process left there goes first; so only inside ``exclusive``.
        """
        folder = self.root / ".preparing"
        if folder.exists():
            discard(folder)
        make_folder(folder, mode=0o700)
        try:
            yield folder
        finally:
            discard(folder)

    def adopt(self, pack: Pack, asset: str, made: Path, digest: str) -> Path:
        """Move a sealed folder in, in place of a damaged one; durable when this returns.

        Raises:
            StorageFullError: an fsync failed.
        """
        place = self.folder(pack, asset, digest)
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.exists():
            discard(place)
        with storage_faults(place):
            _sync_files(made)
            made.chmod(0o755)  # a folder one may not write to cannot be moved by an ordinary user
            made.rename(place)
            place.chmod(0o555)
            sync_folder(place.parent)
        return place


def seal(folder: Path) -> None:
    """Make a tree ours and read-only; of its modes only the executable bit stays.

    Raises:
        PermissionError: it belongs to somebody else.
    """
    for path in (folder, *folder.rglob("*")):
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            continue
        if os.geteuid() == 0:
            os.chown(path, 0, 0)
        path.chmod(0o555 if stat.S_ISDIR(mode) or mode & stat.S_IXUSR else 0o444)


def discard(folder: Path) -> None:
    """Remove a tree, sealed or not."""
    for path in (folder, *folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
    shutil.rmtree(folder)


def _sync_files(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        if not path.is_symlink() and (path.is_file() or path.is_dir()):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _remedy(pack: Pack) -> str:
    return f"orch task prepare {shlex.quote(str(pack.argument))}"
