"""A soak of half a minute; ``make soak`` takes twenty."""

from pathlib import Path

import pytest

from orchestrator.adapters.loop_volumes import can_mount
from tests.soak.gauge import table
from tests.soak.soak import Soak


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="its bounds are those of loop volumes: as root alone")
def test_nothing_grows_in_half_a_minute(tmp_path: Path) -> None:
    checks = Soak(tmp_path, 30, lambda _: None).run()
    assert all(check.held for check in checks), table(checks)
