"""How kinds of Docker-compatible engines differ, as one table.

Measured on Docker 20.10 and Podman 4.3. What an engine cannot do goes into every plan as a
relaxation, and ``orch doctor`` says it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


def _own_id(info: Mapping[str, Any]) -> str:
    return str(info["ID"])


def _storage_id(info: Mapping[str, Any]) -> str:
    """Podman answers with another random id each time; its storage is what it is."""
    return f"{info['Name']}:{info['DockerRootDir']}"


@dataclass(frozen=True, slots=True)
class Dialect:
    """What has to be said differently to one kind of engine, and what it cannot do.

    Attributes:
        kind: its name in records.
        component: part of the name it gives itself among the components of ``/version``.
        engine_id: finds what identifies it in its ``/info``.
        tmpfs_limits: whether a memory file system can have an owner and a limit of files.
        closed_tmpfs: what it would make writable in a read-only root unless told otherwise.
        ulimits: limits that it would otherwise set higher than some hosts allow.
        refuses_absent_sources: whether it refuses to bind what is not there, and does not make it.
        reports_oom: whether it tells of an out-of-memory kill.
        lists_processes: whether it lists a container's processes by their pids on the host.
        filter_by_name: whether it takes a system call filter as a file's name, not as its text.
        lacks: what it cannot do, each as a phrase for people.
    """

    kind: str
    component: str
    engine_id: Callable[[Mapping[str, Any]], str] = _own_id
    tmpfs_limits: bool = True
    closed_tmpfs: tuple[str, ...] = ()
    ulimits: tuple[tuple[str, int], ...] = ()
    refuses_absent_sources: bool = True
    reports_oom: bool = True
    lists_processes: bool = True
    filter_by_name: bool = False
    lacks: tuple[str, ...] = ()


DOCKER = Dialect(kind="docker", component="engine")
PODMAN = Dialect(
    kind="podman",
    component="podman",
    engine_id=_storage_id,
    tmpfs_limits=False,
    closed_tmpfs=("/run", "/var/tmp"),  # noqa: S108 - paths in the container
    ulimits=(("nproc", 32768),),
    refuses_absent_sources=False,
    reports_oom=False,
    lists_processes=False,
    filter_by_name=True,
    lacks=(
        "engine does not tell every signal: a stop by somebody else counts as the run's own end",
        "engine reports no out-of-memory kill: it is read from the container's cgroup",
        "engine cannot limit the files of a memory file system",
        "engine ignores a request for GPUs without a word",
    ),
)
_KNOWN = (PODMAN, DOCKER)


def dialect_of(version: Mapping[str, Any]) -> Dialect:
    """Tell from ``/version`` which dialect an engine speaks; Docker's if it names neither."""
    components = version.get("Components") or ()
    names = " ".join(component["Name"] for component in components).lower()
    return next((dialect for dialect in _KNOWN if dialect.component in names), DOCKER)
