"""The host's own clocks. The only place that asks the operating system for the time."""

import time
from datetime import UTC, datetime
from pathlib import Path
from threading import Event

from typing_extensions import override

from orchestrator.ports import Clock

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class SystemClock(Clock):
    """Linux clocks: see ``clock_gettime(2)`` for CLOCK_BOOTTIME, ``random(4)`` for the boot id."""

    @override
    def utc(self) -> datetime:
        return datetime.now(UTC)

    @override
    def wall_ns(self) -> int:
        return time.time_ns()

    @override
    def boottime_ns(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    @override
    def boot_id(self) -> str:
        return _BOOT_ID.read_text(encoding="ascii").strip()

    @override
    def wait(self, event: Event, seconds: float) -> bool:
        return event.wait(seconds)
