"""A Docker-compatible engine (Docker 20.10 or later, Podman) behind its HTTP API."""

import hashlib
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import IO, Any
from urllib.parse import quote

import rfc8785
from typing_extensions import override

from orchestrator.adapters.docker_api import DockerApi
from orchestrator.adapters.docker_container import DockerContainer
from orchestrator.adapters.docker_gpus import device_claim
from orchestrator.adapters.docker_obstacle import never_started
from orchestrator.adapters.docker_spec import create_body
from orchestrator.adapters.untar import untar
from orchestrator.domain.container import (
    ContainerSpec,
    DeviceClaim,
    EngineIdentity,
    HostAbilities,
    ImageIdentity,
)
from orchestrator.errors import ContainerLostError, InfrastructureError, UsageError
from orchestrator.ports import Container, ContainerEngine

_EXECUTION_CONFIG = (
    "Env",
    "Entrypoint",
    "Cmd",
    "User",
    "WorkingDir",
    "Volumes",
    "Shell",
    "StopSignal",
    "Healthcheck",
)
_HOLDING = frozenset({"running", "paused", "restarting"})
"""States of a container that has its devices, or will have them again by itself."""


class DockerEngine(ContainerEngine):
    """The engine at ``address`` (as in ``DOCKER_HOST``; None means the default socket).

    Args:
        address: where it listens.
        timeout: seconds after which a call counts as unanswered. Waiting for a container is not
            bounded by it.
    """

    def __init__(self, address: str | None = None, *, timeout: int = 60) -> None:
        self._api = DockerApi(address, timeout=timeout)
        self._known: tuple[str, dict[str, Any]] | None = None

    @override
    def identity(self) -> EngineIdentity:
        incarnation, info = self._info()
        return EngineIdentity(
            engine_id=self._api.dialect.engine_id(info),
            version=info["ServerVersion"],
            address=self._api.address,
            incarnation=incarnation,
            kind=self._api.dialect.kind,
        )

    @override
    def abilities(self) -> HostAbilities:
        _, info = self._info()
        security = " ".join(info["SecurityOptions"] or ())
        return HostAbilities(
            cpus=info["NCPU"],
            memory=info["MemTotal"],
            runtimes=tuple(sorted(info["Runtimes"])),
            cgroup_version=int(info["CgroupVersion"]),
            cpuset=info["CPUSet"],
            pids_limit=info["PidsLimit"],
            swap_limit=info["SwapLimit"],
            seccomp="name=seccomp" in security,
            rootless="name=rootless" in security,
            storage_driver=info["Driver"],
            filter_by_name=self._api.dialect.filter_by_name,
            lacks=self._api.dialect.lacks,
        )

    def _info(self) -> tuple[str, dict[str, Any]]:
        """Return incarnation and ``/info``, asked again only when the engine may be another."""
        incarnation = self._api.incarnation()
        if (
            self._known is None
            or "" in (incarnation, self._known[0])
            or (self._known[0] != incarnation)
        ):
            self._known = (incarnation, self._api.call("GET", "/info"))
        return self._known

    @override
    def image(self, reference: str) -> ImageIdentity:
        found = self._inspect_image(reference)
        config = found["Config"] or {}
        identity = {
            "diff_ids": found["RootFS"]["Layers"],
            "config": {key: config[key] for key in _EXECUTION_CONFIG if config.get(key)},
        }
        return ImageIdentity(
            reference=reference,
            digest="image:v1:sha256:" + hashlib.sha256(rfc8785.dumps(identity)).hexdigest(),
            engine_id=found["Id"],
            volumes=tuple(sorted(config.get("Volumes") or ())),
            env=MappingProxyType(dict(entry.split("=", 1) for entry in config.get("Env") or ())),
        )

    def _inspect_image(self, reference: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self._api.call("GET", f"/images/{quote(reference)}/json")
        except ContainerLostError as error:
            raise UsageError(
                f"the engine has no image {reference!r}",
                remedy=f"run `orch images build {reference}`, or pull it",
            ) from error
        return found

    @override
    def image_files(self, reference: str) -> Iterator[tuple[str, IO[bytes]]]:
        with (
            self._never_started(reference) as container,
            self._api.download(f"{container}/export") as archive,
        ):
            yield from _regular_files(archive)

    @override
    def copy_out(self, reference: str, folder: str, into: Path) -> None:
        with self._never_started(reference) as container:
            try:
                with self._api.download(f"{container}/archive?path={quote(folder)}") as archive:
                    untar(archive, into)
            except ContainerLostError as absent:
                raise UsageError(
                    f"image {reference} has no {folder}",
                    remedy="name an image that brings it, or a folder of the pack",
                ) from absent
            except tarfile.TarError as broken:
                raise InfrastructureError(f"{folder} of image {reference}: {broken}") from broken
        found = into / PurePosixPath(folder).name
        if found.is_symlink() or not found.is_dir():  # what a link leads to here is the host's
            raise UsageError(
                f"{folder} of image {reference} is no folder",
                remedy="name an image that brings it as one, not as a link",
            )

    def _never_started(self, reference: str) -> AbstractContextManager[str]:
        return never_started(self._api, self._inspect_image(reference)["Id"])

    @override
    def create(self, spec: ContainerSpec) -> Container:
        if not self._api.dialect.refuses_absent_sources:
            _require_sources(spec)
        try:
            body = create_body(spec, self._api.dialect)
            made = self._api.call(
                "POST", "/containers/create", query={"name": spec.name}, body=body
            )
        except ContainerLostError as error:  # what the engine does not know here is the image
            raise InfrastructureError(
                f"container {spec.name} was not made: {error}",
                remedy=f"run `orch images build {spec.image}`, or pull it",
            ) from error
        return DockerContainer(self._api, made["Id"], spec.name, spec.labels)

    @override
    def find(self, labels: Mapping[str, str]) -> tuple[Container, ...]:
        filters = {"label": [f"{key}={value}" for key, value in labels.items()]}
        found = self._api.call("GET", "/containers/json", query={"all": "1", "filters": filters})
        return tuple(
            DockerContainer(self._api, it["Id"], it["Names"][0].removeprefix("/"), it["Labels"])
            for it in found
            if it["Names"]  # one that is being removed has lost them
        )

    @override
    def device_claims(self) -> tuple[DeviceClaim, ...]:
        listed = self._api.call("GET", "/containers/json", query={"all": "1"})
        found = []
        for row in listed:
            if row["State"] in _HOLDING:
                with suppress(ContainerLostError):  # it ended meanwhile
                    found.append(self._api.call("GET", f"/containers/{row['Id']}/json"))
        claims = (device_claim(inspected) for inspected in found)
        return tuple(claim for claim in claims if claim is not None)

    @override
    def close(self) -> None:
        self._api.close()


def _require_sources(spec: ContainerSpec) -> None:
    absent = [str(mount.source) for mount in spec.mounts if not mount.source.exists()]
    if absent:
        raise InfrastructureError(f"container {spec.name}: there is no {', '.join(absent)}")


def _regular_files(archive: IO[bytes]) -> Iterator[tuple[str, IO[bytes]]]:
    """Walk a tar as it streams by; a hard link has no bytes of its own there."""
    with tarfile.open(fileobj=archive, mode="r|") as tar:
        for member in tar:
            if member.isreg() and (reader := tar.extractfile(member)) is not None:
                yield f"/{member.name}", reader
