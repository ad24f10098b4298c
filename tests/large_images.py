"""Images of gigabytes, whose wheels may not be had everywhere: tests do without them where so."""

import docker
import pytest
from docker.errors import ImageNotFound

from orchestrator.config import Settings
from orchestrator.domain.image import image_reference


def require_image(name: str) -> str:
    """Return the reference of an image of ours; skip the test where it was not built."""
    reference = image_reference(name)
    client = docker.DockerClient(base_url=Settings.from_environment().engine_address)
    try:
        client.images.get(reference)
    except ImageNotFound:
        pytest.skip(f"{reference} is not here (orch images build {name})")
    finally:
        client.close()
    return reference
