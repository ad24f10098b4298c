"""Every test here runs real containers."""

from collections.abc import Iterator
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
def rig(tmp_path: Path) -> Iterator[Rig]:
    """A bench of its own for one test."""
    bench = Rig(tmp_path)
    yield bench
    bench.stop_what_is_left()
