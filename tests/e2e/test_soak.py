"""A soak of half a minute: its sizes and endings. What grows shows in those of ``make soak``."""

from pathlib import Path

import pytest

from orchestrator.adapters.loop_volumes import can_mount
from tests.soak.gauge import table
from tests.soak.soak import Soak


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="its bounds are those of loop volumes: as root alone")
def test_half_a_minute_keeps_its_bounds_and_leaves_nothing(tmp_path: Path) -> None:
    checks = [it for it in Soak(tmp_path, 30, lambda _: None).run() if not it.trend]
    assert all(check.held for check in checks), table(checks)
