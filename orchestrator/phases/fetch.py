"""Fetch: bring the published files of a task to this host, each held to its sha256.

They lie in the asset store under their digests: whole ones only, and beside them what is not
whole yet, with which the next try goes on. What becomes an asset as it is moves there; what
scripts read stays, so that they can be run again without a network.
"""

import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.domain.source import HubFile, HubSource, ScriptSource, UrlSource
from orchestrator.errors import AssetMismatchError, TaskPackError
from orchestrator.evidence.tree import manifest_of
from orchestrator.ports.fetching import Fetcher, HubAddress, Wanted
from orchestrator.storage.assets import seal
from orchestrator.storage.durable import storage_faults, sync_folder
from orchestrator.storage.located_yaml import Loc
from orchestrator.storage.pack import Pack

Published = HubSource | UrlSource
_PART = ".part"


def inputs_of(pack: Pack, script: str) -> tuple[str, ...]:
    """Name the downloads that a script reads: those that any asset it makes is made from."""
    return tuple(
        sorted(
            {
                name
                for asset in pack.spec.assets.values()
                if isinstance(source := asset.source, ScriptSource) and source.prepare == script
                for name in source.inputs
            }
        )
    )


def files_of(source: Published) -> tuple[Wanted, ...]:
    """List the files of a source."""
    if isinstance(source, UrlSource):
        return tuple(Wanted(path, one.sha256, one.url) for path, one in source.urls.items())
    hub = source.hub
    files = (
        (path, one if isinstance(one, HubFile) else HubFile(path=path, sha256=one))
        for path, one in hub.files.items()
    )
    return tuple(
        Wanted(path, file.sha256, HubAddress(hub.repo, hub.kind, hub.revision, file.path))
        for path, file in files
    )


@dataclass(frozen=True, slots=True)
class Downloads:
    """The published files that this host keeps in ``folder``, and what fetches more of them."""

    folder: Path
    fetcher: Callable[[], Fetcher]
    say: Callable[[str], None]

    def bring(self, pack: Pack, assets: Sequence[str]) -> None:
        """Have every published file that these assets are, or are made from.

        Raises:
            AssetMismatchError: one has another digest.
            TaskPackError: one does not exist.
            UsageError: one is not open to this host, or takes a library that is not installed.
            InfrastructureError: a server cannot be reached; what came so far is kept.
        """
        for loc, source in _sources(pack, assets):
            for wanted in files_of(source):
                if not _is_whole(place := self.folder / wanted.sha256):
                    place.unlink(missing_ok=True)  # somebody, or the disk, has changed it
                    self._fetch(pack, (*loc, wanted.name), wanted, place)

    def lay_inputs(self, pack: Pack, script: str, target: Path) -> bool:
        """Lay what a script reads below ``target``, a folder a name; tell if there is any."""
        names = inputs_of(pack, script)
        for name in names:
            for wanted in files_of(pack.spec.downloads[name]):
                os.link(self.folder / wanted.sha256, _ready(target / name / wanted.name))
        if names:
            seal(target)  # whatever this host's umask: the container's user has to read it
        return bool(names)

    def lay_assets(self, pack: Pack, assets: Sequence[str], out: Path) -> tuple[Path, ...]:
        """Lay the assets that are published files as they are; return what then can go from here.

        A file is laid without a copy where nothing else wants it: no two assets share one.
        """
        published = [
            (asset, source)
            for asset in assets
            if isinstance(source := pack.spec.assets[asset].source, Published)
        ]
        uses = _uses((*pack.spec.downloads.values(), *(source for _, source in published)))
        for asset, source in published:
            for wanted in files_of(source):
                lay = os.link if uses[wanted.sha256] == 1 else shutil.copyfile
                lay(self.folder / wanted.sha256, _ready(out / asset / wanted.name))
        kept = _uses(pack.spec.downloads.values())
        mine = {wanted.sha256 for _, source in published for wanted in files_of(source)}
        return tuple(self.folder / sha256 for sha256 in sorted(mine - kept.keys()))

    def _fetch(self, pack: Pack, loc: Loc, wanted: Wanted, place: Path) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        part = place.with_suffix(_PART)
        try:
            self.fetcher().fetch(wanted, part, self.say)
        except (AssetMismatchError, TaskPackError) as fault:
            message = str(pack.fault(*loc, message=str(fault)))
            raise type(fault)(message, remedy=fault.remedy) from fault
        with storage_faults(place):
            part.chmod(0o444)
            part.rename(place)
            sync_folder(self.folder)


def differing(source: Published, folder: Path) -> tuple[str, ...]:
    """Name the files of an asset that are not what its source says, or not there, or too many."""
    wanted = {(one.name, one.sha256) for one in files_of(source)}
    found = {(os.fsdecode(one.path), one.sha256) for one in manifest_of(folder).entries}
    return tuple(sorted({name for name, _ in wanted ^ found}))


def _sources(pack: Pack, assets: Sequence[str]) -> Iterator[tuple[Loc, Published]]:
    """Find what has to be fetched for these assets, each source once, with its place."""
    scripts = set()
    for asset in assets:
        source = pack.spec.assets[asset].source
        if isinstance(source, ScriptSource):
            scripts.add(source.prepare)
        elif isinstance(source, Published):
            yield ("assets", asset, "source", *_files_key(source)), source
    for name in sorted({name for script in scripts for name in inputs_of(pack, script)}):
        download = pack.spec.downloads[name]
        yield ("downloads", name, *_files_key(download)), download


def _files_key(source: Published) -> tuple[str, ...]:
    return ("urls",) if isinstance(source, UrlSource) else ("hub", "files")


def _is_whole(place: Path) -> bool:
    """Tell whether a file is there and has the digest of its name."""
    if not place.exists():
        return False
    with place.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == place.name


def _uses(sources: Iterable[Published]) -> Counter[str]:
    return Counter(wanted.sha256 for source in sources for wanted in files_of(source))


def _ready(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
