"""A clock for tests: it moves only when told to."""

from datetime import UTC, datetime, timedelta
from threading import Event, Lock

from typing_extensions import override

from orchestrator.ports import Clock

_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock(Clock):
    """A clock that stands still until it is told to ``advance``."""

    def __init__(self) -> None:
        self._passed = timedelta()
        self._boots = 1
        self._lock = Lock()

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        with self._lock:
            self._passed += timedelta(seconds=seconds)

    def reboot(self) -> None:
        """Change the boot id, as a restart of the host does."""
        self._boots += 1

    @override
    def utc(self) -> datetime:
        return _EPOCH + self._passed

    @override
    def wall_ns(self) -> int:
        return int(_EPOCH.timestamp()) * 10**9 + self.boottime_ns()

    @override
    def boottime_ns(self) -> int:
        return self._passed // timedelta(microseconds=1) * 1000

    @override
    def boot_id(self) -> str:
        return f"00000000-0000-4000-8000-{self._boots:012d}"

    @override
    def wait(self, event: Event, seconds: float) -> bool:
        """Let that much time pass at once, unless ``event`` is set already."""
        if not event.is_set():
            self.advance(seconds)
        return event.is_set()
