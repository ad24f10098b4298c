"""Every test here runs real containers."""

from pathlib import Path

import pytest

from tests.e2e.rig import Rig


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.docker)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """A bench of its own for one test."""
    return Rig(tmp_path)
