"""The host's processes, as proc(5) and the cgroup file systems show them.

A process may go at any moment between two reads: what it then fails to tell is None, never an
error. What a process can choose about itself (its command line) is bounded and made one line.
"""

import os
import pwd
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice
from pathlib import Path

from typing_extensions import override

from orchestrator.domain.process import ProcessFacts
from orchestrator.domain.text import ACTING
from orchestrator.ports import ProcessTable

MAX_COMMAND = 200
_NS = 1_000_000_000
_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_UNPRINTED = re.compile(f"[\t\n{ACTING}]")
_PREFERRED = ("memory", "pids", "cpuacct", "cpu,cpuacct", "name=systemd", "")
"""Version 1 has a line for each controller, version 2 the one without a name."""
_CONTROLLERS = ("memory", "pids", "systemd", "unified", "")
_USUAL = (
    "docker/{id}",
    "system.slice/docker-{id}.scope",
    "machine.slice/libpod-{id}.scope",
    "libpod_parent/libpod-{id}",
)
_FIRST_NAMESPACE = Path("pid:[4026531836]")
"""PROC_PID_INIT_INO of the kernel's include/linux/proc_ns.h."""
_MOST_THREADS = 64
_MOST_FOLDERS = 20_000
_ENDED = frozenset({"Z", "X"})
_STATE, _PPID, _UTIME, _STIME, _THREADS, _START = 0, 1, 11, 12, 17, 19
"""Fields of /proc/PID/stat, counted from the one behind the name."""


class HostProcesses(ProcessTable):
    """Reads ``/proc``. ``root`` is for tests."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._proc = root / "proc"
        self._groups = root / "sys/fs/cgroup"
        self._folders: dict[str, Path] = {}

    @override
    def sees_host(self) -> bool:
        try:
            return (self._proc / "self/ns/pid").readlink() == _FIRST_NAMESPACE
        except OSError:
            return False

    @override
    def facts(self, pid: int) -> ProcessFacts:
        return self._read(pid) or ProcessFacts(pid)

    @override
    def pids_of(self, container_id: str) -> frozenset[int]:
        folder = self._folder(container_id)
        if folder is None:
            return frozenset()
        groups = (Path(place) for place, _, _ in os.walk(folder))  # an engine may make some below
        pids = (int(pid) for group in groups for pid in _text(group / "cgroup.procs").split())
        # One that our pid namespace cannot name is listed as 0.
        return frozenset(pids) - {0}

    @override
    def of_container(self, container_id: str) -> tuple[ProcessFacts, ...]:
        found = (self._read(pid) for pid in sorted(self.pids_of(container_id)))
        return tuple(facts for facts in found if facts is not None)

    def _read(self, pid: int) -> ProcessFacts | None:
        """Describe a process; None when there is none."""
        folder = self._proc / str(pid)
        name, fields = _stat(_text(folder / "stat"))
        if not fields:
            return None
        status = _fields(_text(folder / "status"))
        cgroup, container = self._group(folder)
        inner = status.get("NSpid", "").split()
        headless = fields[_STATE] in _ENDED and int(fields[_THREADS]) > 1
        argv = _text(folder / "cmdline").rstrip("\0")
        if headless and not argv:
            said = (_text(thread / "cmdline") for thread in _threads(folder))
            argv = next(filter(None, said), "").rstrip("\0")
        uid = status.get("Uid", "").split()
        return ProcessFacts(
            pid=pid,
            ppid=int(fields[_PPID]),
            started_ns=_ticks_ns(fields[_START]),
            command=_one_line(argv or f"[{name}]"),
            executable=_link(folder / "exe"),
            user=_user(int(uid[1])) if uid else None,
            cgroup=cgroup,
            container=container,
            foreign_pids=len(inner) > 1 if inner else None,
            inner_pid=int(inner[-1]) if inner else None,
            cpu_s=(_ticks_ns(fields[_UTIME]) + _ticks_ns(fields[_STIME])) / _NS,
            ended=fields[_STATE] in _ENDED and not headless,
        )

    def _group(self, folder: Path) -> tuple[str | None, str | None]:
        """Return a process's control group and the container that it names.

        The first thread of a process may end before the others; version 1 then shows ``/`` for it.
        """
        cgroup, container = _group(_text(folder / "cgroup"))
        if cgroup != "/":
            return cgroup, container
        for thread in _threads(folder):
            found, container = _group(_text(thread / "cgroup"))
            if found not in {None, "/"}:
                return found, container
        return cgroup, None

    def _folder(self, container_id: str) -> Path | None:
        """Find a container's cgroup by its id, and remember it: it may be gone the next time."""
        if _ID.fullmatch(container_id) and container_id not in self._folders:
            usual = (
                self._groups / controller / pattern.format(id=container_id)
                for controller in _CONTROLLERS
                for pattern in _USUAL
            )
            known = next((folder for folder in usual if folder.is_dir()), None)
            found = known or self._look_through(container_id)
            if found is not None:
                self._folders[container_id] = found
        return self._folders.get(container_id)

    def _look_through(self, container_id: str) -> Path | None:
        controllers = (self._groups / name for name in _CONTROLLERS)
        base = next((folder for folder in controllers if folder.is_dir()), self._groups)
        for place, below, _ in islice(os.walk(base), _MOST_FOLDERS):
            for name in below:
                if container_id in name:
                    return Path(place) / name
        return None


def _one_line(command: str) -> str:
    return _UNPRINTED.sub("\N{REPLACEMENT CHARACTER}", command.replace("\0", " "))[:MAX_COMMAND]


def _stat(text: str) -> tuple[str, list[str]]:
    """Split /proc/PID/stat into the name, which may hold anything, and the fields behind it."""
    head, closed, rest = text.rpartition(")")
    return head.partition("(")[2], rest.split() if closed else []


def _fields(text: str) -> Mapping[str, str]:
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def _group(text: str) -> tuple[str | None, str | None]:
    """Choose, of the lines of /proc/PID/cgroup, the one that names a container, or any at all."""
    found = {
        controllers: path
        for _, controllers, path in (
            line.split(":", 2) for line in text.splitlines() if line.count(":") > 1
        )
    }
    for path in found.values():
        names = _ID.findall(path)
        if names:
            return path, names[-1]
    ordered = (*(name for name in _PREFERRED if name in found), *found)
    named = next((found[name] for name in ordered if found[name] != "/"), None)
    return named or ("/" if found else None), None


def _threads(folder: Path) -> Iterator[Path]:
    try:
        yield from islice(sorted((folder / "task").iterdir()), _MOST_THREADS)
    except OSError:
        return


@lru_cache(maxsize=256)
def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


@lru_cache(maxsize=1)
def _ticks() -> int:
    return os.sysconf("SC_CLK_TCK")


def _ticks_ns(field: str) -> int:
    return int(field) * _NS // _ticks()


def _link(path: Path) -> str | None:
    try:
        return _one_line(str(path.readlink()))
    except OSError:
        return None


def _text(file: Path) -> str:
    """Read a file of the kernel's; empty when what it tells of is gone or not ours to read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
