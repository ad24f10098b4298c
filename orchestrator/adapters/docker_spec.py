"""From a ContainerSpec to the body of the engine's "Create a container"."""

from typing import Any

from orchestrator.adapters.docker_dialect import Dialect
from orchestrator.domain.container import ContainerSpec, Limits, Mount, Tmpfs

_LOG_FILE = "1m"  # the engine's own copy of the output; ours is taken by attaching before start


def create_body(spec: ContainerSpec, dialect: Dialect) -> dict[str, Any]:
    """Spell ``spec`` in the words of an engine that speaks ``dialect``."""
    return {
        "Image": spec.image,
        "Cmd": list(spec.argv),
        "Entrypoint": [],
        "Healthcheck": {"Test": ["NONE"]},
        "User": spec.user,
        "WorkingDir": spec.workdir,
        "Hostname": spec.hostname,
        "Env": [f"{name}={value}" for name, value in spec.env.items()],
        "Labels": dict(spec.labels),
        "OpenStdin": False,
        "Tty": False,
        "HostConfig": _host_config(spec, dialect),
    }


def _host_config(spec: ContainerSpec, dialect: Dialect) -> dict[str, Any]:
    security = ["no-new-privileges:true"]
    if spec.seccomp is not None:
        security.append(f"seccomp={spec.seccomp}")
    return {
        "NetworkMode": "none",
        "IpcMode": "private",
        "Init": True,
        "AutoRemove": False,
        "RestartPolicy": {"Name": "no"},
        "ReadonlyRootfs": spec.read_only,
        "CapDrop": ["ALL"],
        "SecurityOpt": security,
        "Runtime": spec.runtime,
        "LogConfig": {"Type": "json-file", "Config": {"max-size": _LOG_FILE, "max-file": "1"}},
        "Mounts": [_bind(mount) for mount in spec.mounts],
        "Tmpfs": _tmpfs(spec, dialect),
        "DeviceRequests": _gpus(spec.gpu_uuids),
        **_resources(spec.limits, dialect.ulimits),
    }


def _resources(limits: Limits, more: tuple[tuple[str, int], ...]) -> dict[str, Any]:
    ulimits = {
        "core": 0,
        "nofile": limits.open_files,
        "msgqueue": limits.message_queue,
        "fsize": limits.file_size,
        **dict(more),
    }
    return {
        "NanoCpus": round(limits.cpus * 10**9),
        "CpusetCpus": limits.cpuset,
        "Memory": limits.memory,
        "MemorySwap": limits.memory,
        "PidsLimit": limits.pids,
        "ShmSize": limits.shm,
        "Ulimits": [
            {"Name": name, "Soft": value, "Hard": value}
            for name, value in ulimits.items()
            if value is not None
        ],
    }


def _bind(mount: Mount) -> dict[str, Any]:
    """Use the structured form: a ``source:target`` string breaks on a colon in a path."""
    return {
        "Type": "bind",
        "Source": str(mount.source),
        "Target": mount.target,
        "ReadOnly": not mount.writable,
        "BindOptions": {"Propagation": "rprivate"},
    }


def _tmpfs(spec: ContainerSpec, dialect: Dialect) -> dict[str, str]:
    """Spell memory file systems; what the engine would open by itself is closed to all but root."""
    closed = dialect.closed_tmpfs if spec.read_only else ()
    options = _tmpfs_options if dialect.tmpfs_limits else _plain_tmpfs_options
    return {
        **dict.fromkeys(closed, "rw,nosuid,nodev,noexec,size=4096,mode=755"),
        **{tmpfs.target: options(tmpfs) for tmpfs in spec.tmpfs},
    }


def _tmpfs_options(tmpfs: Tmpfs) -> str:
    owned = f"nr_inodes={tmpfs.inodes},mode={tmpfs.mode:o},uid={tmpfs.uid},gid={tmpfs.gid}"
    return f"{_flags(tmpfs)},{owned}"


def _plain_tmpfs_options(tmpfs: Tmpfs) -> str:
    """Leave out what such an engine refuses; without an owner it has to be open to everybody."""
    return f"{_flags(tmpfs)},notmpcopyup,mode={0o1777 if tmpfs.uid else tmpfs.mode:o}"


def _flags(tmpfs: Tmpfs) -> str:
    execution = "exec" if tmpfs.executable else "noexec"
    return f"rw,nosuid,nodev,{execution},size={tmpfs.size}"


def _gpus(uuids: tuple[str, ...]) -> list[dict[str, Any]]:
    if not uuids:
        return []
    return [{"DeviceIDs": list(uuids), "Capabilities": [["gpu", "compute", "utility"]]}]
