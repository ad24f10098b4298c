"""Find the processes of one case: whatever has its mark in the environment it was started with."""

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

MARK = "FAULTS_CASE"


def of_case(environment: Mapping[str, str]) -> list[int]:
    """List the live processes of a case by the environment of any of them, but not this one."""
    mark = f"{MARK}={environment[MARK]}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        with suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def kill_all(environment: Mapping[str, str]) -> None:
    """Kill every process of a case but this one."""
    while alive := of_case(environment):
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def wait_until_none(environment: Mapping[str, str], seconds: float) -> bool:
    """Wait until no process of a case is left; False when ``seconds`` were not enough."""
    give_up = time.monotonic() + seconds
    while of_case(environment):
        if time.monotonic() > give_up:
            return False
        time.sleep(0.05)
    return True


def describe(pid: int) -> str:
    """Name a process by its command line."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return " ".join(word.decode(errors="replace") for word in words).strip()
    return str(pid)
