"""Makes the images of ``containers/``: a base file system, then layers built without a network.

The base is Debian, by mmdebstrap, or an image the operator names. On it come wheels that the host
downloaded against the hashes of the recipe's ``requirements.lock``. An image carries the digest of
all that went into it, so that it is made again only when something changed.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO

import docker
from docker.errors import APIError, DockerException, ImageNotFound
from requests.exceptions import RequestException

from orchestrator.adapters.docker_api import DEFAULT_ADDRESS
from orchestrator.adapters.engine_process import START_REMEDY, incarnation_of
from orchestrator.domain.image import BUILD_LABEL, RECIPE_LABEL, ROOTFS_LABEL, image_reference
from orchestrator.errors import (
    EngineUnavailableError,
    InfrastructureError,
    TaskPackError,
    UsageError,
)

_MMDEBSTRAP = "mmdebstrap:bookworm"
_ROOTFS = "orch/rootfs:1"
_PARENT = re.compile(r"^FROM orch/([a-z0-9-]+):1\b", re.MULTILINE)
_BY_NAME = f'\nLABEL {BUILD_LABEL}="by-name"\n'
_LOCK = "requirements.lock"
_GLIBC_MINORS = range(17, 37)  # manylinux tags that Debian bookworm's glibc 2.36 runs
_LEFT_OUT = ("doc", "info", "locale", "man")
_REMEDY = "orch images build --base REFERENCE takes an image you have instead"

Progress = Callable[[str], None]


@contextmanager
def _engine_errors() -> Iterator[None]:
    try:
        yield
    except APIError as error:
        raise InfrastructureError(
            f"the engine refused: {error.explanation or error}", remedy="orch doctor"
        ) from error
    except (DockerException, RequestException) as error:
        raise EngineUnavailableError(
            f"no container engine answers: {error}", remedy=START_REMEDY
        ) from error


class ImageState(StrEnum):
    """How an image stands to its recipe."""

    CURRENT = "current"
    STALE = "stale"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Recipe:
    """One folder of ``containers/``. ``parent`` is the recipe it builds on, None for a base.

    One that is large and that few hosts need is ``by_name``: made only if somebody names it.
    """

    name: str
    folder: Path
    parent: str | None
    by_name: bool = False

    @property
    def reference(self) -> str:
        """The name the built image gets."""
        return image_reference(self.name)

    def files(self) -> tuple[Path, ...]:
        """The recipe's files, in a fixed order."""
        return tuple(sorted(path for path in self.folder.iterdir() if path.is_file()))

    def digest(self, base: str) -> str:
        """Hash the recipe's files together with the identity of what it builds on."""
        total = hashlib.sha256(base.encode())
        for path in self.files():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            total.update(f"\n{path.name} {content}".encode())
        return f"sha256:{total.hexdigest()}"


@dataclass(frozen=True, slots=True)
class ImageStatus:
    """An image beside its recipe. ``size`` in bytes, 0 when absent."""

    name: str
    reference: str
    state: ImageState
    size: int

    @property
    def present(self) -> bool:
        """The engine holds it, whatever its recipe says by now."""
        return self.state is not ImageState.ABSENT


@dataclass(frozen=True, slots=True)
class _Built:
    engine_id: str
    size: int
    recipe: str
    rootfs: str


def read_recipes(folder: Path) -> dict[str, Recipe]:
    """Read the recipes under ``folder``, each after the one it builds on."""
    unsorted: dict[str, Recipe] = {}
    for path in sorted(folder.glob("*/Dockerfile")):
        text = path.read_text(encoding="utf-8")
        parent = _PARENT.search(text)
        name = path.parent.name
        unsorted[name] = Recipe(
            name, path.parent, parent.group(1) if parent else None, by_name=_BY_NAME in text
        )
    ordered: dict[str, Recipe] = {}

    def place(recipe: Recipe) -> None:
        if recipe.parent is not None:
            place(unsorted[recipe.parent])
        ordered[recipe.name] = recipe

    for recipe in unsorted.values():
        place(recipe)
    return ordered


class ImageBuilder:
    """Builds and lists the images of one folder of recipes on one engine."""

    def __init__(self, address: str | None, recipes: Path, wheels: Path) -> None:
        """Use the engine at ``address``; keep downloaded wheels under ``wheels``.

        Raises:
            EngineUnavailableError: no engine answers there.
        """
        address = address or DEFAULT_ADDRESS
        incarnation_of(
            address
        )  # says plainly, and without the SDK's open socket, that none listens
        with _engine_errors():
            self._client = docker.APIClient(base_url=address, version="auto", timeout=600)
        self._recipes = read_recipes(recipes)
        self._wheels = wheels

    def close(self) -> None:
        """Drop the connection to the engine."""
        self._client.close()

    def status(self) -> tuple[ImageStatus, ...]:
        """Compare every recipe with the image the engine holds."""
        with _engine_errors():
            return tuple(self._status(recipe) for recipe in self._recipes.values())

    def build(
        self, names: Sequence[str], progress: Progress, *, base: str | None = None
    ) -> tuple[ImageStatus, ...]:
        """Make the named images, and those they build on, where they are not current.

        Args:
            names: recipes, by name or by reference; empty means all that are not ``by_name``.
            progress: takes one line at a time.
            base: an image to use in place of what mmdebstrap makes; pulled when not present.

        Raises:
            UsageError: a name is unknown, or mmdebstrap is not installed.
            TaskPackError: a recipe does not build, with all that it needs at hand.
            InfrastructureError: a download, mmdebstrap or the engine failed.
        """
        usual = [recipe.name for recipe in self._recipes.values() if not recipe.by_name]
        wanted = self._with_parents([self._named(name) for name in names] or usual)
        with _engine_errors():
            for name in wanted:
                recipe = self._recipes[name]
                if self._status(recipe, base).state is ImageState.CURRENT:
                    progress(f"{recipe.reference} is current")
                    continue
                progress(f"{recipe.reference}: building")
                self._build(recipe, base, progress)
                progress(f"{recipe.reference}: done")
            return tuple(self._status(self._recipes[name]) for name in wanted)

    def _named(self, name: str) -> str:
        for recipe in self._recipes.values():
            if name in (recipe.name, recipe.reference):
                return recipe.name
        raise UsageError(
            f"no recipe is named {name!r}; there are {', '.join(self._recipes)}",
            remedy="orch images",
        )

    def _with_parents(self, names: Iterable[str]) -> tuple[str, ...]:
        wanted: list[str] = []
        for name in names:
            chain = [name]
            while (parent := self._recipes[chain[-1]].parent) is not None:
                chain.append(parent)
            wanted.extend(n for n in reversed(chain) if n not in wanted)
        return tuple(wanted)

    def _inspect(self, reference: str) -> _Built | None:
        try:
            found = self._client.inspect_image(reference)  # type: ignore[no-untyped-call]
        except ImageNotFound:
            return None
        labels = found["Config"].get("Labels") or {}
        return _Built(
            found["Id"], found["Size"], labels.get(RECIPE_LABEL, ""), labels.get(ROOTFS_LABEL, "")
        )

    def _status(self, recipe: Recipe, base: str | None = None) -> ImageStatus:
        built = self._inspect(recipe.reference)
        if built is None:
            return ImageStatus(recipe.name, recipe.reference, ImageState.ABSENT, 0)
        current = built.recipe == recipe.digest(self._origin(recipe, base or built.rootfs))
        state = ImageState.CURRENT if current else ImageState.STALE
        return ImageStatus(recipe.name, recipe.reference, state, built.size)

    def _origin(self, recipe: Recipe, rootfs: str) -> str:
        """Identify what the recipe builds on; empty when it is not there."""
        if recipe.parent is None:
            return rootfs
        parent = self._inspect(image_reference(recipe.parent))
        return "" if parent is None else parent.engine_id

    def _build(self, recipe: Recipe, base: str | None, progress: Progress) -> None:
        rootfs = base or _MMDEBSTRAP
        arguments: dict[str, str] = {}
        labels: dict[str, str] = {}
        if recipe.parent is None:
            arguments["ROOTFS"] = (
                self._present(base, progress) if base else self._bootstrap(recipe, progress)
            )
            labels[ROOTFS_LABEL] = rootfs
        wheels = self._download(recipe, progress) if (recipe.folder / _LOCK).exists() else ()
        labels[RECIPE_LABEL] = recipe.digest(self._origin(recipe, rootfs))
        with tempfile.TemporaryFile() as context:
            _pack(context, recipe.files(), wheels)
            context.seek(0)
            answers = self._client.build(
                fileobj=context,
                custom_context=True,
                tag=recipe.reference,
                labels=labels,
                buildargs=arguments,
                network_mode="none",
                use_config_proxy=False,
                rm=True,
                forcerm=True,
                decode=True,
            )
            self._follow(recipe, answers, progress)

    def _follow(
        self, recipe: Recipe, answers: Iterator[dict[str, str]], progress: Progress
    ) -> None:
        said: list[str] = []
        fault = ""
        try:
            for answer in answers:  # to its end, so that the connection is given back
                fault = fault or answer.get("error", "").strip()
                for line in answer.get("stream", "").splitlines():
                    if line.strip():
                        said.append(line.rstrip())
                        progress(f"{recipe.reference}: {line.rstrip()}")
        except APIError as error:
            if not error.is_client_error():
                raise
            fault = str(error.explanation)  # the recipe cannot even be read
        if fault:
            raise TaskPackError(
                "\n".join((f"{recipe.reference} did not build: {fault}", *said[-10:])),
                remedy=f"mend {recipe.folder}, then: orch images build {recipe.name}",
            )

    def _present(self, reference: str, progress: Progress) -> str:
        """Make sure the engine holds ``reference``, by a pull if need be."""
        if self._inspect(reference) is None:
            progress(f"{reference}: pulling")
            try:
                self._client.pull(reference)
            except APIError as error:
                raise InfrastructureError(
                    f"cannot pull {reference}: {error.explanation}",
                    remedy="leave out --base to build Debian with mmdebstrap",
                ) from error
        return reference

    def _bootstrap(self, recipe: Recipe, progress: Progress) -> str:
        """Make a minimal Debian with the recipe's packages; return its reference."""
        if shutil.which("mmdebstrap") is None:
            raise UsageError(
                f"{recipe.reference} needs mmdebstrap, which is not installed",
                remedy=f"apt-get install mmdebstrap debian-archive-keyring; or: {_REMEDY}",
            )
        packages = (recipe.folder / "packages").read_text(encoding="utf-8").split()
        with tempfile.TemporaryDirectory(prefix="orch-rootfs-") as folder:
            tar = Path(folder) / "rootfs.tar"
            argv = [
                "mmdebstrap",
                "--variant=minbase",
                f"--include={','.join(packages)}",
                *(f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in _LEFT_OUT),
                "bookworm",
                str(tar),
            ]
            _run(argv, progress, remedy=f"run it as root; or: {_REMEDY}")
            repository, tag = _ROOTFS.split(":")
            self._client.import_image(src=str(tar), repository=repository, tag=tag)
        return _ROOTFS

    def _download(self, recipe: Recipe, progress: Progress) -> tuple[Path, ...]:
        """Fetch what the recipe's lock names, once per lock; return the paths of the files."""
        lock = recipe.folder / _LOCK
        house = self._wheels / hashlib.sha256(lock.read_bytes()).hexdigest()[:16]
        if not house.is_dir():
            self._wheels.mkdir(parents=True, exist_ok=True)
            machine = str(self._client.info()["Architecture"])
            with tempfile.TemporaryDirectory(dir=self._wheels) as folder:
                fresh = Path(folder) / "wheels"
                _run(
                    _pip_download(lock, fresh, machine),
                    progress,
                    remedy=f"pip must find them: see its configuration, and what "
                    f"{recipe.folder / 'requirements.in'} says",
                )
                if not house.is_dir():
                    fresh.rename(house)
        return tuple(sorted(house.iterdir()))


def _pip_download(lock: Path, target: Path, machine: str) -> list[str]:
    """Build the command that fetches wheels for the image's Python, whatever the host's is."""
    tags = [f"manylinux_2_{minor}_{machine}" for minor in _GLIBC_MINORS]
    return [
        *(sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input"),
        *("--no-deps", "--require-hashes", "--only-binary", ":all:"),
        *("--python-version", "3.11", "--implementation", "cp"),
        *(part for abi in ("cp311", "abi3", "none") for part in ("--abi", abi)),
        *(
            part
            for tag in (*tags, f"manylinux2014_{machine}", "any")
            for part in ("--platform", tag)
        ),
        *("--requirement", str(lock), "--dest", str(target)),
    ]


def _run(argv: Sequence[str], progress: Progress, *, remedy: str) -> None:
    """Run a tool of the host, pass its lines on, and keep the last ones for the error.

    It stays in our process group: on Ctrl-C it cleans up after itself.
    """
    said: list[str] = []
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None  # noqa: S101 - it was asked for
        for line in process.stdout:
            said.append(line.rstrip())
            progress(line.rstrip())
    if process.returncode != 0:
        raise InfrastructureError(
            f"{Path(argv[0]).name} ended with {process.returncode}:\n" + "\n".join(said[-10:]),
            remedy=remedy,
        )


def _pack(context: IO[bytes], files: Sequence[Path], wheels: Sequence[Path]) -> None:
    """Write the build context; times are left out so that the engine's cache recognises it."""
    members = [(path, path.name) for path in files] + [(w, f"wheels/{w.name}") for w in wheels]
    with tarfile.open(fileobj=context, mode="w") as archive:
        for path, name in members:
            entry = tarfile.TarInfo(name)
            entry.size = path.stat().st_size
            with path.open("rb") as content:
                archive.addfile(entry, content)
