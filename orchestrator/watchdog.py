"""Sees to it that a run which has a container never stays without a supervisor.

A process of its own in its own session, started with each such run (``adapters.detached``). It
imports nothing of ``orchestrator`` and is run by path with ``python -I -S``: every run pays for its
start. It sleeps in a flock on the run's folder, which is its supervisor's lock and is free when the
supervisor is gone, however that died. A run that is committed, or whose folder vanished, needs
nobody any more. Otherwise the watchdog keeps the lock, waits a moment, and starts ``orch adopt``,
which inherits the lock: between the two nobody else supervises. When that ends without having
committed the run (the engine was away, say) it is started again, each time later, at most every
``LAST_DELAY`` seconds.

What the dead supervisor had reserved stays reserved: the descriptors of its locks are open here.
"""

import fcntl
import os
import sys
import time

FIRST_DELAY = 1.0
LAST_DELAY = 60.0
MAX_LOG = 1 << 20
_HOPELESS = frozenset({64, 65})
"""Exit codes of an adopter that only a person can help: ``Exit.USAGE``, ``Exit.TASK_PACK``."""


def main(root: str, inherited: str, adopter: list[str]) -> None:
    """Watch the run at ``root`` until it needs nobody.

    Args:
        root: its folder.
        inherited: numbers of open descriptors to hand to the adopter, with commas between.
        adopter: the adopter's command line, without what it inherits.
    """
    os.chdir("/")
    _close_others({0, 1, 2, *_numbers(inherited)})
    delay, since, written = FIRST_DELAY, 0, -1
    while (lock := _locked(root)) is not None:
        if written != (now := _written(root)):  # else the last adopter did not get so far
            since, written = time.clock_gettime_ns(time.CLOCK_BOOTTIME), now
        _sign(root)
        time.sleep(delay)
        if _is_over(root):
            return
        handed = ("--lock", str(lock), "--since", str(since), "--inherited", inherited)
        if _run([*adopter, *handed], root, (lock, *_numbers(inherited))) in _HOPELESS:
            return
        os.close(lock)
        delay = min(2 * delay, LAST_DELAY)


def _close_others(keep: set[int]) -> None:
    """Let go of what our starter had been handed itself: a pipe of its caller's, say."""
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in keep:
            try:
                os.close(number)
            except OSError:  # the one that listed them
                continue


def _locked(root: str) -> int | None:
    """Wait until nobody supervises the run, then hold its lock; None when it needs nobody."""
    try:
        lock = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    fcntl.flock(lock, fcntl.LOCK_EX)
    return None if _is_over(root) else lock


def _is_over(root: str) -> bool:
    return os.path.exists(f"{root}/.complete") or not os.path.isdir(root)


def _written(root: str) -> int:
    """Return the size of the run's journal, in bytes; an adopter begins with a line in it."""
    try:
        return os.stat(f"{root}/lifecycle.jsonl").st_size
    except OSError:
        return 0


def _sign(root: str) -> None:
    """Say beside the lock who watches; see ``storage.supervisor`` for the two lines."""
    with open("/proc/self/stat", "rb") as file:
        started = file.read().rpartition(b")")[2].split()[19]
    try:
        names = os.open(f"{root}/.supervisor.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError:  # a full disk, say: the lock counts, not who is named
        return
    try:
        first = os.pread(names, 4096, 0).split(b"\n")[0]
        os.ftruncate(names, 0)
        os.pwrite(names, b"%b\nwatchdog %d %b\n" % (first, os.getpid(), started), 0)
    except OSError:
        return
    finally:
        os.close(names)


def _run(adopter: list[str], root: str, keep: tuple[int, ...]) -> int:
    """Run the adopter to its end; return its exit code, negative for a signal."""
    log = _open_log(root)
    actions = [(os.POSIX_SPAWN_DUP2, number, number) for number in keep]
    actions += [(os.POSIX_SPAWN_DUP2, log, stream) for stream in (1, 2)]
    try:
        child = os.posix_spawn(adopter[0], adopter, os.environ, file_actions=actions)
    except OSError as failure:  # no interpreter any more: it may be there again later
        os.write(log, f"{adopter[0]} cannot be started: {failure}\n".encode())
        return -1
    finally:
        os.close(log)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _open_log(root: str) -> int:
    """Open the file for what adopters say; it starts anew before it grows large."""
    try:
        os.makedirs(f"{root}/logs", exist_ok=True)
        log = os.open(f"{root}/logs/adopter.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)
    if os.fstat(log).st_size > MAX_LOG:
        os.ftruncate(log, 0)
    return log


def _numbers(listed: str) -> tuple[int, ...]:
    return tuple(int(number) for number in listed.split(",") if number)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
