"""A clock for tests, and a way to run a function in child processes."""

import multiprocessing
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from orchestrator.lifecycle.machine import Event

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@dataclass(frozen=True)
class Told:
    """An event of a story that no file holds."""

    event: Event


@dataclass
class TickingClock:
    """Each question takes a millisecond."""

    now_ns: int = 10**9
    boot: str = "boot-1"

    def utc(self) -> datetime:
        return START + timedelta(microseconds=self.boottime_ns() // 1000)

    def wall_ns(self) -> int:
        return int(START.timestamp()) * 10**9 + self.boottime_ns()

    def boottime_ns(self) -> int:
        self.now_ns += 1_000_000
        return self.now_ns

    def boot_id(self) -> str:
        return self.boot

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.now_ns += int(seconds * 10**9)
        return event.is_set()


def in_processes(count: int, target: Callable[..., None], *args: Any) -> list[int]:
    """Run ``target(index, *args)`` in ``count`` processes; return their exit codes."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=target, args=(index, *args)) for index in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode or 0 for process in processes]
