"""From a ContainerSpec to the body of the engine's "Create a container"."""

from typing import Any

from orchestrator.domain.container import ContainerSpec, Limits, Mount, Tmpfs

_LOG_FILE = "1m"  # the engine's own copy of the output; ours is taken by attaching before start


def create_body(spec: ContainerSpec) -> dict[str, Any]:
    """Spell ``spec`` in the engine's words."""
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
        "HostConfig": _host_config(spec),
    }


def _host_config(spec: ContainerSpec) -> dict[str, Any]:
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
        "Tmpfs": {tmpfs.target: _tmpfs_options(tmpfs) for tmpfs in spec.tmpfs},
        "DeviceRequests": _gpus(spec.gpu_uuids),
        **_resources(spec.limits),
    }


def _resources(limits: Limits) -> dict[str, Any]:
    ulimits = {
        "core": 0,
        "nofile": limits.open_files,
        "msgqueue": limits.message_queue,
        "fsize": limits.file_size,
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


def _tmpfs_options(tmpfs: Tmpfs) -> str:
    options = {
        "size": str(tmpfs.size),
        "nr_inodes": str(tmpfs.inodes),
        "mode": f"{tmpfs.mode:o}",
        "uid": str(tmpfs.uid),
        "gid": str(tmpfs.gid),
    }
    flags = ["rw", "nosuid", "nodev", "exec" if tmpfs.executable else "noexec"]
    return ",".join([*flags, *(f"{name}={value}" for name, value in options.items())])


def _gpus(uuids: tuple[str, ...]) -> list[dict[str, Any]]:
    if not uuids:
        return []
    return [{"DeviceIDs": list(uuids), "Capabilities": [["gpu", "compute", "utility"]]}]
