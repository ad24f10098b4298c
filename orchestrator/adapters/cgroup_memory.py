"""Memory counters of a container on this host, from its cgroup (v1 or v2)."""

from collections.abc import Callable, Mapping
from pathlib import Path

from orchestrator.ports import MemoryUse

UNREADABLE = MemoryUse(peak=None, limit_reached=None)


def memory_of(pid: int, container_id: str, root: Path = Path("/")) -> MemoryUse:
    """Read the counters of the cgroup that ``pid`` is in; ``root`` is for tests.

    Unreadable when the engine is on another host or in another pid namespace, when the process is
    gone, or when the cgroup's path does not name the container: then it would be someone else's.
    """
    try:
        lines = (root / "proc" / str(pid) / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return UNREADABLE
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in _READERS and container_id in path:
            return _READERS[controllers](root / "sys/fs/cgroup", path.lstrip("/"))
    return UNREADABLE


def _version_1(mount: Path, path: str) -> MemoryUse:
    """Source: kernel documentation, cgroup-v1/memory.

    Newer kernels leave the failure count at zero; a peak as high as the limit says the same.
    """
    group = mount / "memory" / path
    peak = _number(group / "memory.max_usage_in_bytes")
    limit = _number(group / "memory.limit_in_bytes")
    reached = _number(group / "memory.failcnt")
    if reached == 0 and peak is not None and limit is not None and peak >= limit:
        reached = 1
    return MemoryUse(peak=peak, limit_reached=reached)


def _version_2(mount: Path, path: str) -> MemoryUse:
    """Source: kernel documentation, cgroup-v2, "Memory Interface Files"."""
    group = mount / path
    return MemoryUse(
        peak=_number(group / "memory.peak"),
        limit_reached=_number(group / "memory.events", key="max"),
    )


_READERS: Mapping[str, Callable[[Path, str], MemoryUse]] = {"memory": _version_1, "": _version_2}


def _number(file: Path, *, key: str = "") -> int | None:
    """Return the number in ``file``, or the one after ``key`` in a file of ``key number`` lines."""
    try:
        words = file.read_text(encoding="ascii").split()
    except OSError:
        return None
    return int(words[words.index(key) + 1] if key else words[0])
