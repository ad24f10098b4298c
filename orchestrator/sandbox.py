"""From a plan to a ``ContainerSpec``: mounts, limits, users and hardening, in one place and pure.

Which data a phase sees comes from ``VISIBLE_ROLES`` and nowhere else. Layout inside the container:
README, "In the container".
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from orchestrator.domain.container import ContainerSpec, HostAbilities, Limits, Mount, Tmpfs
from orchestrator.domain.records import Material, PhasePlan
from orchestrator.domain.roles import Phase, is_visible
from orchestrator.domain.task import Resources
from orchestrator.errors import InfrastructureError, UsageError

HOME = "/home/agent"
INSTANCE_LABEL = "orch.instance"
RUN_LABEL = "orch.run"
PHASE_LABEL = "orch.phase"
BOOT_LABEL = "orch.boot"
DEADLINE_LABEL = "orch.deadline_boottime_ns"
_INODE_BYTES = 4096
_FEWEST_INODES, _MOST_INODES = 1024, 65536

_ENVIRONMENT: Mapping[str, str] = {
    "HOME": HOME,
    "XDG_CACHE_HOME": f"{HOME}/.cache",
    "TZ": "UTC",
    "LANG": "C.UTF-8",
    "USER": "agent",
    # Bytecode of the image stays in use (a prefix would hide it); none is written beside sources.
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
    "PIP_NO_INDEX": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "WANDB_MODE": "offline",
}

VISIBLE_GPUS = "NVIDIA_VISIBLE_DEVICES"
"""What NVIDIA's own runtime obeys; images of CUDA set it to all, and a task could."""

KEEP_ALIVE = ("sleep", "infinity")
"""What an exploration's container runs; the agent's commands come as execs under another uid."""


@dataclass(frozen=True, slots=True)
class Users:
    """Numeric owners inside containers.

    The keep-alive of an exploration runs under ``keeper`` so that nothing the agent can signal
    ends the container.
    """

    agent: tuple[int, int] = (10001, 10001)
    keeper: tuple[int, int] = (10000, 10000)

    def accounts(self) -> str:
        """The passwd file laid over the image's own."""
        rows = (
            ("root", (0, 0), "/root"),
            ("keeper", self.keeper, "/"),
            ("agent", self.agent, HOME),
            ("nobody", (65534, 65534), "/"),
        )
        return "".join(f"{name}:x:{u}:{g}::{home}:/bin/bash\n" for name, (u, g), home in rows)


@dataclass(frozen=True, slots=True)
class Isolation:
    """What stands between a container's processes and the host's kernel.

    Attributes:
        runtime: the engine's own name for what runs the container.
        seccomp: the system call filter in the form the engine takes; None where it applies none.
        digest: ``sha256:...`` of the filter's file; empty where there is none.
    """

    runtime: str = "runc"
    seccomp: str | None = None
    digest: str = ""

    def require(self, abilities: HostAbilities) -> None:
        """Refuse a runtime that the engine does not offer.

        Raises:
            UsageError: it does not.
        """
        if self.runtime not in abilities.runtimes:
            raise UsageError(
                f"the engine has no runtime {self.runtime!r}",
                remedy="set ORCH_RUNTIME to one of: " + ", ".join(abilities.runtimes),
            )

    def of(self, plan: PhasePlan) -> "Isolation":
        """Return this, once it is known to be what ``plan`` records.

        Raises:
            InfrastructureError: the plan was made under another.
        """
        if (self.runtime, self.digest) != (plan.runtime, plan.seccomp):
            raise InfrastructureError(
                f"the plan says {plan.runtime} and filter {plan.seccomp or 'none'}, "
                f"this host now uses {self.runtime} and {self.digest or 'none'}",
                remedy="set ORCH_RUNTIME as it was, or start a new run",
            )
        return self


ENGINE_DEFAULT = Isolation()
"""runc and the engine's own filter: for the operator's scripts, which no candidate writes."""


def asset_mounts(phase: Phase, materials: Mapping[str, Material]) -> tuple[Mount, ...]:
    """Mount read-only exactly the assets that ``VISIBLE_ROLES`` gives ``phase``."""
    return tuple(
        Mount(Path(material.source, material.file), f"/assets/{material.at or path}")
        for path, material in sorted(materials.items())
        if is_visible(material.role, phase, frozenset(material.also))
    )


def script_argv(script: str, folder: str) -> tuple[str, ...]:
    """How a pack's script is run once its folder is mounted at ``folder``."""
    name = PurePosixPath(script).name
    interpreter = "python3" if name.endswith(".py") else "bash"
    return (interpreter, f"{folder}/{name}")


def limits_of(resources: Resources, cpuset: str) -> Limits:
    """Turn a phase's resources into limits; no file may outgrow the phase's disk."""
    return Limits(
        cpus=resources.cpus,
        memory=resources.memory,
        shm=resources.shm,
        pids=resources.pids,
        cpuset=cpuset,
        file_size=resources.disk,
    )


def _tmpfs(target: str, size: int) -> Tmpfs:
    """Limit a memory file system in bytes and in files; the kernel's default is half its memory."""
    return Tmpfs(target, size, max(_FEWEST_INODES, min(size // _INODE_BYTES, _MOST_INODES)))


def _variables(resources: Resources, env: Mapping[str, str]) -> dict[str, str]:
    """Lay a phase's variables over the task's, and those over ours; null leaves one out."""
    merged = {**_ENVIRONMENT, **resources.env, **env}
    left_out = {name for name, value in resources.env.items() if value is None}
    return {
        name: value for name, value in merged.items() if value is not None and name not in left_out
    }


def container_spec(
    *,
    name: str,
    phase: Phase,
    image: str,
    argv: tuple[str, ...],
    user: tuple[int, int],
    agent: tuple[int, int],
    resources: Resources,
    mounts: tuple[Mount, ...],
    env: Mapping[str, str],
    labels: Mapping[str, str],
    isolation: Isolation = ENGINE_DEFAULT,
    cpuset: str = "",
    workdir: str = "/workspace",
    gpus: tuple[str, ...] = (),
) -> ContainerSpec:
    """Assemble a hardened container: no network, no capabilities, read-only root, limits.

    Args:
        name: unique among the engine's containers.
        phase: what it works on; goes into the labels.
        user: uid and gid of the container's own process.
        agent: uid and gid that own ``HOME``.
        mounts: everything bound into it, assets included.
        env: the phase's variables, over the task's and ours.
        isolation: runtime and system call filter.
        gpus: UUIDs of the devices it is given.
    """
    return ContainerSpec(
        name=name,
        image=image,
        argv=argv,
        user=f"{user[0]}:{user[1]}",
        workdir=workdir,
        mounts=mounts,
        tmpfs=(
            _tmpfs("/tmp", resources.tmp),  # noqa: S108 - a path in the container, private to it
            _tmpfs("/dev/shm", resources.shm),  # noqa: S108 - the engine's own limits no inodes
            replace(_tmpfs(HOME, resources.tmp), mode=0o700, uid=agent[0], gid=agent[1]),
        ),
        limits=limits_of(resources, cpuset),
        labels={**labels, PHASE_LABEL: phase.value},
        env={**_variables(resources, env), VISIBLE_GPUS: ",".join(gpus) or "void"},
        read_only=resources.read_only,
        gpu_uuids=gpus,
        runtime=isolation.runtime,
        seccomp=isolation.seccomp,
    )
