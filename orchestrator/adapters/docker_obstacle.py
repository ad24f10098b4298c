"""Why a container could not be started, where its image is in the way of what is bound."""

import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from orchestrator.adapters.docker_api import DockerApi
from orchestrator.errors import ContainerLostError, OrchError

REMOVAL = {"force": "1", "v": "1"}  # also when it runs, and with its volumes


@contextmanager
def never_started(api: DockerApi, image_id: str) -> Iterator[str]:
    """Make a container to look into, and remove it; yields its path in the engine's API."""
    body = {"Image": image_id, "Cmd": ["true"], "HostConfig": {"NetworkMode": "none"}}
    made = api.call("POST", "/containers/create", body=body)
    path = f"/containers/{made['Id']}"
    try:
        yield path
    finally:
        api.call("DELETE", path, query=REMOVAL)


def obstacle(api: DockerApi, container_id: str) -> str:
    """Say where a container's image has a file and a folder is wanted, or the reverse; or ""."""
    with suppress(OrchError, tarfile.TarError):  # then there is nothing to add to the refusal
        found = api.call("GET", f"/containers/{container_id}/json")
        wanted = _folders_wanted({it["Destination"]: it["Source"] for it in found["Mounts"]})
        with never_started(api, found["Image"]) as image:
            for place, is_wanted in sorted(wanted.items()):
                if _is_folder(api, image, place) is (not is_wanted):
                    has, other = ("a file", "folder") if is_wanted else ("a folder", "file")
                    name = found["Config"]["Image"]
                    return f"image {name} has {has} at {place}, where orch needs a {other}"
    return ""


def _folders_wanted(mounts: Mapping[str, str]) -> dict[str, bool]:
    """Tell of each place in the image that a mount takes or leads through if it is a folder."""
    wanted: dict[str, bool] = {}
    for target, source in mounts.items():
        parents = {str(parent) for parent in PurePosixPath(target).parents} - {"/"}
        if not parents & mounts.keys():  # else it lies in what is bound, not in the image
            wanted |= {**dict.fromkeys(parents, True), target: Path(source).is_dir()}
    return wanted


def _is_folder(api: DockerApi, image: str, path: str) -> bool | None:
    """Tell what lies there; None for nothing, or neither a file nor a folder."""
    try:
        with (
            api.download(f"{image}/archive?path={quote(path)}") as archive,
            tarfile.open(fileobj=archive, mode="r|*") as tar,
        ):
            first = tar.next()
    except ContainerLostError:
        return None
    return first.isdir() if first is not None and (first.isdir() or first.isreg()) else None
