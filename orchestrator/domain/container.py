"""What we ask of a container engine and what it tells us, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType


def _empty() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Mount:
    """A host folder or file bound into a container."""

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Tmpfs:
    """A memory file system with limits. ``size`` in bytes."""

    target: str
    size: int
    inodes: int
    mode: int = 0o1777
    uid: int = 0
    gid: int = 0
    executable: bool = True


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of one container. Sizes in bytes; swap always equals memory."""

    cpus: float
    memory: int
    shm: int
    pids: int
    cpuset: str = ""
    file_size: int | None = None
    open_files: int = 16384
    message_queue: int = 819_200
    log: int = 16 * 1024**2


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """Everything a container is made of; made by ``sandbox`` alone.

    ``user`` is the numeric ``uid:gid`` of PID 1 and its child. ``labels`` always name the run.
    """

    name: str
    image: str
    argv: tuple[str, ...]
    user: str
    workdir: str
    mounts: tuple[Mount, ...]
    tmpfs: tuple[Tmpfs, ...]
    limits: Limits
    labels: Mapping[str, str]
    env: Mapping[str, str] = field(default_factory=_empty)
    read_only: bool = True
    gpu_uuids: tuple[str, ...] = ()
    runtime: str = "runc"
    seccomp: str | None = None
    hostname: str = "orch"


class ContainerStatus(StrEnum):
    """The engine's own word for what a container is doing."""

    CREATED = "created"
    RUNNING = "running"
    PAUSED = "paused"
    EXITED = "exited"
    REMOVING = "removing"
    DEAD = "dead"


_ENDED = frozenset({ContainerStatus.EXITED, ContainerStatus.REMOVING, ContainerStatus.DEAD})


@dataclass(frozen=True, slots=True)
class ContainerState:
    """One inspection. Times are the engine's RFC 3339 text; ``exit_code`` only once it exited."""

    status: ContainerStatus
    exit_code: int | None
    oom_killed: bool
    started_at: str
    finished_at: str
    pid: int
    error: str = ""

    @property
    def ended(self) -> bool:
        """Whether nothing runs in it any more, for good."""
        return self.status in _ENDED


@dataclass(frozen=True, slots=True)
class ContainerEnd:
    """How a container ended, as far as the engine can prove it.

    Attributes:
        state: the last inspection, made before removal.
        witnessed: the end was seen by us, or the same engine incarnation ran since before it
            finished; False means the exit code proves nothing.
        signals: every signal that some client sent through the engine's API, ours included.
        engine_restarted: the engine that answers now is not the one that started the container.
    """

    state: ContainerState
    witnessed: bool
    signals: tuple[str, ...] = ()
    engine_restarted: bool = False


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How one command run inside a container ended.

    ``exit_code`` is None when the command was cut off (its limit passed or the container ended).
    ``output`` is at most the asked number of bytes, stdout and stderr as they came.
    """

    exit_code: int | None
    output: bytes
    truncated: bool
    timed_out: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class ImageIdentity:
    """What an image is: layer diff ids and execution configuration.

    ``digest`` is ``image:v1:sha256:...`` over the RFC 8785 form of both; ``engine_id`` is a note.
    """

    reference: str
    digest: str
    engine_id: str
    volumes: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=_empty)


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """Which engine answers. ``incarnation`` changes when the daemon restarts, "" if unknowable."""

    engine_id: str
    version: str
    address: str
    incarnation: str
    kind: str = "docker"
    official: bool = True


@dataclass(frozen=True, slots=True)
class DeviceClaim:
    """GPUs that a container which runs, or is paused, was given by the engine.

    Attributes:
        container: its full id.
        name: the engine's name for it.
        labels: all that it carries.
        every: whether it may use any of them: it asked for all, or for a number of them.
        devices: what it named: UUIDs, indexes, or the paths of device nodes.
    """

    container: str
    name: str
    labels: Mapping[str, str]
    every: bool
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HostAbilities:
    """What this host's engine can do; what is False is said in the receipt as a relaxation.

    Attributes:
        filter_by_name: it takes a system call filter as the name of a file, not as its text.
        lacks: what else this kind of engine cannot do, each as a phrase for people.
    """

    cpus: int
    memory: int
    runtimes: tuple[str, ...]
    cgroup_version: int
    cpuset: bool
    pids_limit: bool
    swap_limit: bool
    seccomp: bool
    rootless: bool
    storage_driver: str
    filter_by_name: bool = False
    lacks: tuple[str, ...] = ()
