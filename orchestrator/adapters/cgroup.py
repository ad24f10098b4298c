"""A container's cgroup on this host (v1 or v2): its counters and its processes."""

import os
import select
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from orchestrator.ports import ContainerProcess, ContainerUse, MemoryUse

UNREADABLE = MemoryUse(peak=None, limit_reached=None)


@dataclass(frozen=True, slots=True)
class ContainerGroup:
    """The cgroup of one container; it goes with the container, soon after its last process."""

    folder: Path
    kind: "_Hierarchy"
    pid: int
    root: Path

    def memory(self) -> MemoryUse:
        """Read its counters; those that are gone are None."""
        return self.kind.memory(self.folder)

    def use(self) -> ContainerUse:
        """Read what it uses now; a group that is gone uses nothing that anybody knows."""
        return self.kind.use(self)

    def memory_at_death(self) -> MemoryUse:
        """Wait until the process that it was found by has ended, then read its counters at once."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except OSError:  # gone already, or a kernel without pidfd_open(2), before 5.3
            return self.memory()
        try:
            death = select.poll()
            death.register(descriptor, select.POLLIN)
            death.poll()
            return self.memory()
        finally:
            os.close(descriptor)

    def processes(self) -> tuple[ContainerProcess, ...]:
        """List its processes, those of groups that an engine made below it too."""
        pids = {
            int(pid)
            for listing in self.folder.rglob("cgroup.procs")
            for pid in _text(listing).split()
        }
        found = (_process(self.root / "proc" / str(pid), pid) for pid in sorted(pids))
        return tuple(process for process in found if process is not None)


def group_of(pid: int, container_id: str, root: Path = Path("/")) -> ContainerGroup | None:
    """Find the cgroup that ``pid`` is in; ``root`` is for tests.

    None when the engine is on another host or in another pid namespace, when the process is gone,
    or when the cgroup's path does not name the container: then it would be someone else's.
    """
    for line in _text(root / "proc" / str(pid) / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in _HIERARCHIES and container_id in path:
            kind = _HIERARCHIES[controllers]
            parts = PurePosixPath(path.lstrip("/")).parts
            # Limits are on the group that carries the name; its processes may be in one below.
            last = next(i for i, part in enumerate(parts) if container_id in part)
            folder = root.joinpath("sys/fs/cgroup", kind.mount, *parts[: last + 1])
            return ContainerGroup(folder, kind, pid, root)
    return None


def _version_1(group: Path) -> MemoryUse:
    """Source: kernel documentation, cgroup-v1/memory.

    Newer kernels leave the failure count at zero; a peak as high as the limit says the same.
    """
    peak = _number(group / "memory.max_usage_in_bytes")
    limit = _number(group / "memory.limit_in_bytes")
    reached = _number(group / "memory.failcnt")
    if reached == 0 and peak is not None and limit is not None and peak >= limit:
        reached = 1
    return MemoryUse(
        peak=peak,
        limit_reached=reached,
        oom_kills=_number(group / "memory.oom_control", key="oom_kill"),
    )


def _version_2(group: Path) -> MemoryUse:
    """Source: kernel documentation, cgroup-v2, "Memory Interface Files"."""
    events = group / "memory.events"
    return MemoryUse(
        peak=_number(group / "memory.peak"),
        limit_reached=_number(events, key="max"),
        oom_kills=_number(events, key="oom_kill"),
    )


def _use_1(group: ContainerGroup) -> ContainerUse:
    """Every controller has a tree of its own; an engine names the group alike in all of them."""
    mounts = group.root / "sys/fs/cgroup"
    name = group.folder.relative_to(mounts / group.kind.mount)
    cpu_ns = _number(mounts / "cpuacct" / name / "cpuacct.usage")
    return ContainerUse(
        cpu_s=None if cpu_ns is None else cpu_ns / 1e9,
        memory=_number(group.folder / "memory.usage_in_bytes"),
        memory_peak=_number(group.folder / "memory.max_usage_in_bytes"),
        pids=_number(mounts / "pids" / name / "pids.current"),
    )


def _use_2(group: ContainerGroup) -> ContainerUse:
    cpu_us = _number(group.folder / "cpu.stat", key="usage_usec")
    return ContainerUse(
        cpu_s=None if cpu_us is None else cpu_us / 1e6,
        memory=_number(group.folder / "memory.current"),
        memory_peak=_number(group.folder / "memory.peak"),
        pids=_number(group.folder / "pids.current"),
    )


@dataclass(frozen=True, slots=True)
class _Hierarchy:
    """Where a version of cgroups has its memory controller, and how its counters are read."""

    mount: str
    memory: Callable[[Path], MemoryUse]
    use: Callable[[ContainerGroup], ContainerUse]


_HIERARCHIES: Mapping[str, _Hierarchy] = {
    "memory": _Hierarchy("memory", _version_1, _use_1),
    "": _Hierarchy("", _version_2, _use_2),
}


def _number(file: Path, *, key: str = "") -> int | None:
    """Return the number in ``file``, or the one after ``key`` in a file of ``key number`` lines."""
    words = _text(file).split()
    if key:
        words = words[words.index(key) + 1 :] if key in words else []
    return int(words[0]) if words else None


def _process(folder: Path, pid: int) -> ContainerProcess | None:
    """Read a process as proc(5) shows it: real uid, and the kernel's name if it has no argv."""
    status = dict(
        line.split(":", 1) for line in _text(folder / "status").splitlines() if ":" in line
    )
    if not status:
        return None  # gone meanwhile
    argv = _text(folder / "cmdline").rstrip("\0").replace("\0", " ")
    return ContainerProcess(
        pid=pid,
        ppid=int(status["PPid"]),
        user=status["Uid"].split()[0],
        command=argv or f"[{status['Name'].strip()}]",
    )


def _text(file: Path) -> str:
    """Read a file of the kernel's; empty when what it tells of is gone or not ours to read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
