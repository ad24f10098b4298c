"""Which images without a name are ours, on a real engine."""

import io
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress

import docker
import pytest

from orchestrator.adapters.old_images import ReplacedImages
from orchestrator.config import Settings
from orchestrator.domain.image import RECIPE_LABEL, ROOTFS_LABEL, image_reference
from orchestrator.errors import InfrastructureError

pytestmark = pytest.mark.docker

ADDRESS = Settings.from_environment().engine_address


@pytest.fixture
def client() -> Iterator[docker.DockerClient]:
    with closing(docker.DockerClient(base_url=ADDRESS)) as client:
        yield client


@pytest.fixture
def made(client: docker.DockerClient) -> Iterator[dict[str, str]]:
    """Images of this test alone. The stranger inherits our label from what it is built on."""
    ids = {}
    mark = uuid.uuid4().hex
    for name, ours, tag in (("old", True, ""), ("stranger", False, ""), ("named", True, mark)):
        recipe = f"FROM {image_reference('debian')}\nLABEL orch.test={mark}-{name}\n"
        built, _ = client.images.build(
            fileobj=io.BytesIO(recipe.encode()),
            tag=f"orch-test:{tag}" if tag else None,
            labels={RECIPE_LABEL: "sha256:test", ROOTFS_LABEL: "test"} if ours else {},
            network_mode="none",
            rm=True,  # else each step leaves a container, which keeps its image for ever
        )
        ids[name] = built.id
    yield ids
    for found in ids.values():
        with suppress(docker.errors.ImageNotFound):
            client.images.remove(found, force=True)


def test_only_nameless_images_of_our_builder_are_old(
    client: docker.DockerClient, made: dict[str, str]
) -> None:
    with closing(ReplacedImages(ADDRESS)) as images:
        found = {image.id: image for image in images.all()}
        assert made["old"] in found
        assert found[made["old"]].used_by == ""
        assert found[made["old"]].size == client.images.get(made["old"]).attrs["Size"]
        assert not {made["stranger"], made["named"]} & found.keys()
        images.remove(found[made["old"]])
        assert made["old"] not in {image.id for image in images.all()}


def test_an_image_that_a_container_uses_stays(
    client: docker.DockerClient, made: dict[str, str]
) -> None:
    container = client.containers.create(made["old"], ["true"])
    try:
        with closing(ReplacedImages(ADDRESS)) as images:
            (old,) = [image for image in images.all() if image.id == made["old"]]
            assert old.used_by == container.name
            with pytest.raises(InfrastructureError, match="container"):
                images.remove(old)
            assert made["old"] in {image.id for image in images.all()}
    finally:
        container.remove()
