"""One supervisor per run: a lock that its process holds, free the moment the process is gone.

The lock is an flock on the run's folder itself: one on a file is gone with that file, and who takes
it for stale and removes it would let a second supervisor in. What stands in ``.supervisor.lock`` is
for people: a line ``supervisor PID START`` of whoever took the lock last, and a line ``watchdog PID
START`` of whoever takes it when that one is gone (``orchestrator/watchdog.py``); ``START`` is field
22 of ``/proc/PID/stat``, so that a number which the kernel gave out again names nobody.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import UsageError
from orchestrator.storage.lock import lock_within, locked, try_lock

_NAMES = ".supervisor.lock"
_BEGINNING = ".beginning.lock"
_MAX_LINES = 4096
_GLANCE = 0.2
"""Seconds within which somebody who only looks (``is_supervised``) has let go of the lock again."""


_claimed: dict[Path, int] = {}
"""Locks of runs that this process has made and not begun to drive."""
_kept: dict[Path, int] = {}
"""Locks that this process keeps over several turns of ``supervising``."""


@dataclass(frozen=True, slots=True)
class Holders:
    """The living processes that see to a run, by pid; None where there is none."""

    supervisor: int | None = None
    watchdog: int | None = None


def claim(root: Path) -> None:
    """Take the lock of a new run before anybody can see that there is one.

    The next ``supervising`` of this process goes on with it.
    """
    descriptor = _open(root)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    _claimed[root] = descriptor


@contextmanager
def keeping(root: Path, inherited: int) -> Iterator[None]:
    """Keep a lock that this process inherited, over several turns of ``supervising``."""
    os.set_inheritable(inherited, False)  # noqa: FBT003 - the standard library's own signature
    _kept[root] = inherited
    try:
        yield
    finally:
        os.close(_kept.pop(root))


@contextmanager
def supervising(root: Path) -> Iterator[None]:
    """Hold the lock of the run at ``root``.

    Raises:
        UsageError: another process is its supervisor.
    """
    descriptor = _claimed.pop(root, None)
    if descriptor is None and root in _kept:
        descriptor = os.dup(_kept[root])
    if descriptor is None:
        descriptor = _open(root)
    try:
        if not lock_within(descriptor, _GLANCE):
            raise UsageError(
                f"{root} is supervised by {named(root)}",
                remedy=f"orch lifecycle {root} tells how it gets on",
            )
        _sign(root, supervisor=os.getpid())
        yield
    finally:
        os.close(descriptor)


def note_watchdog(root: Path, pid: int) -> None:
    """Say in the lock file who watches; only whoever holds the lock may."""
    _sign(root, watchdog=pid)


def holders(root: Path) -> Holders:
    """Read which living processes see to the run at ``root``; writes nothing."""
    try:
        lines = (root / _NAMES).read_bytes()[:_MAX_LINES].decode("ascii", "replace").splitlines()
    except FileNotFoundError:
        return Holders()
    alive = dict(found for found in map(_alive, lines) if found)
    return Holders(alive.get("supervisor"), alive.get("watchdog"))


def named(root: Path) -> str:
    """Name, for people, who sees to the run at ``root``."""
    if not is_supervised(root):
        return "nobody"
    found = holders(root)
    if found.supervisor is not None:
        return f"process {found.supervisor}"
    if found.watchdog is not None:
        return f"its watchdog, process {found.watchdog}, which is about to go on with it"
    return "another process"


def is_supervised(root: Path) -> bool:
    """Tell whether a living process supervises the run at ``root``; writes nothing."""
    try:
        descriptor = _open(root)
    except FileNotFoundError:
        return False
    try:
        return not try_lock(descriptor, shared=True)
    finally:
        os.close(descriptor)


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Wait for, then hold, the right to begin a run below ``root``; free when its holder dies."""
    with locked(root / _BEGINNING):
        yield


def _open(root: Path) -> int:
    return os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _sign(root: Path, **roles: int) -> None:
    """Put processes into the file of names in place of those that had their roles."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with suppress(OSError):  # a full disk: the lock counts, not what stands there
        descriptor = os.open(root / _NAMES, flags, 0o644)
        try:
            lines = os.pread(descriptor, _MAX_LINES, 0).decode("ascii", "replace").splitlines()
            signed = dict(line.split(" ", 1) for line in lines if " " in line)
            signed |= {role: f"{pid} {_started(pid)}" for role, pid in roles.items()}
            told = [
                f"{role} {signed[role]}\n" for role in ("supervisor", "watchdog") if role in signed
            ]
            data = "".join(told).encode("ascii", "replace")
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, data, 0)
        finally:
            os.close(descriptor)


def _alive(line: str) -> tuple[str, int] | None:
    match line.split():
        case [role, pid, started] if pid.isdecimal() and _started(int(pid)) == started:
            return role, int(pid)
        case _:
            return None


def _started(pid: int) -> str:
    """Return when a living process was started, in the kernel's ticks; empty when it is gone."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2]
    except (FileNotFoundError, ProcessLookupError):
        return ""
    state, *fields = after_name.split()
    return "" if state == "Z" else fields[18]
