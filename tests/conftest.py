"""Hypothesis profiles: ``--hypothesis-profile=thorough`` for a long search.

No deadline in either: a test must not fail because the machine is busy.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from orchestrator.evidence.walk import remove_tree
from tests.podman import podman_service, require_podman, save_image

settings.register_profile("default", deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile("default")


@pytest.fixture(scope="session")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Podman service of our own, with the image of the tests."""
    require_podman()
    archive = save_image(tmp_path_factory.mktemp("podman") / "image.tar")
    with podman_service(archive) as address:
        yield address


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """Remove a test's folder with our own walk: pytest's cannot climb down 3,000 folders."""
    yield tmp_path
    remove_tree(tmp_path)
