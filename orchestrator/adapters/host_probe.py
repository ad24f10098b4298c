"""Look at this host and say, as values, what it can do for a run."""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from orchestrator.config import Settings
from orchestrator.domain.container import EngineIdentity, HostAbilities
from orchestrator.domain.host import Ability, Level
from orchestrator.domain.image import image_reference
from orchestrator.domain.roles import Phase
from orchestrator.domain.task import Resources, TaskSpec, merge
from orchestrator.errors import (
    DeviceUnreadableError,
    EngineUnavailableError,
    Exit,
    OrchError,
    UsageError,
)
from orchestrator.ports import Clock, ContainerEngine, DeviceProbe
from orchestrator.storage.pack import bundled_packs, load_pack
from orchestrator.storage.probe import file_system_faults, nearest_folder

_CAP_SYS_ADMIN = 21  # linux/capability.h; mount(2) asks for it
_GIB = 1024**3

Finding = tuple[Level, str]


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the table: what is looked at, how, and what to do when it is not there."""

    name: str
    probe: Callable[["HostProbe"], Finding]
    remedy: str
    exit_code: Exit = Exit.INFRASTRUCTURE


class HostProbe:
    """Answers every check of ``CHECKS`` for one host, one engine and its GPUs."""

    def __init__(
        self, settings: Settings, engine: ContainerEngine, devices: DeviceProbe, clock: Clock
    ) -> None:
        self.settings = settings
        self.engine = engine
        self.devices = devices
        self.clock = clock

    def abilities(self) -> tuple[Ability, ...]:
        """Run every check, in the order of the table. A check that fails is a value, too."""
        return tuple(self._ask(check) for check in CHECKS)

    def close(self) -> None:
        """Drop the connections to the engine and the GPUs."""
        self.devices.close()
        self.engine.close()

    def _ask(self, check: Check) -> Ability:
        try:
            level, fact = check.probe(self)
            remedy = "" if level is Level.OK else check.remedy
        except OrchError as error:
            level, fact, remedy = Level.MISSING, str(error), error.remedy or check.remedy
            if isinstance(error, EngineUnavailableError) and check.probe is not _engine:
                fact, remedy = "unknown: no container engine answers", ""
        return Ability(check.name, level, fact, remedy, check.exit_code)

    @cached_property
    def identity(self) -> EngineIdentity:
        """Which engine answers."""
        return self.engine.identity()

    @cached_property
    def can(self) -> HostAbilities:
        """What the engine can enforce."""
        return self.engine.abilities()

    @cached_property
    def tasks(self) -> tuple[TaskSpec, ...]:
        """The tasks that come with orch."""
        return tuple(load_pack(path).spec for path in bundled_packs())


def _limited_unless(there: bool, fact: str, otherwise: str) -> Finding:  # noqa: FBT001
    return (Level.OK, fact) if there else (Level.LIMITED, otherwise)


def _engine(host: HostProbe) -> Finding:
    engine = host.identity
    since = engine.incarnation or "restarts cannot be noticed"
    fact = f"{engine.kind} {engine.version} at {engine.address} ({since})"
    return _limited_unless(bool(engine.incarnation), fact, fact)


def _rights(host: HostProbe) -> Finding:
    return _limited_unless(not host.can.rootless, "runs as root", "runs without root")


def _kind(host: HostProbe) -> Finding:
    kind, lacks = host.identity.kind, host.can.lacks
    return _limited_unless(not lacks, kind, f"{kind}: {'; '.join(lacks)}")


def _limits(host: HostProbe) -> Finding:
    can = host.can
    wanted = {
        "cpuset": can.cpuset,
        "pids": can.pids_limit,
        "swap": can.swap_limit,
        "seccomp": can.seccomp,
    }
    lacking = ", ".join(name for name, there in wanted.items() if not there)
    version = f"cgroup v{can.cgroup_version}"
    return _limited_unless(
        not lacking, f"{version}, {', '.join(wanted)}", f"{version}, but no limit of: {lacking}"
    )


def _runtime(host: HostProbe) -> Finding:
    fact = f"{', '.join(host.can.runtimes)}; storage driver {host.can.storage_driver}"
    return _limited_unless("runc" in host.can.runtimes, fact, fact)


def _volumes(_: HostProbe) -> Finding:
    lacking = [tool for tool in ("mkfs.ext4", "losetup", "mount") if shutil.which(tool) is None]
    if not Path("/dev/loop-control").exists():
        lacking.append("/dev/loop-control")
    if not _may_mount():
        lacking.append("the right to mount")
    return _limited_unless(
        not lacking,
        "allocated ext4 images",
        f"a watcher instead of a limit; there is no {', '.join(lacking)}",
    )


def _may_mount() -> bool:
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return effective is not None and bool(int(effective.group(1), 16) >> _CAP_SYS_ADMIN & 1)


def _runs_folder(host: HostProbe) -> Finding:
    folder = nearest_folder(host.settings.runs)
    faults = file_system_faults(folder)
    if faults:
        return Level.MISSING, f"{folder}: {'; '.join(faults)}"
    free = shutil.disk_usage(folder).free
    larger = [t.name for t in host.tasks if any(r.disk >= free for r in _all_resources(t))]
    fact = f"{host.settings.runs}: flock, link, rename, fsync; {free / _GIB:.1f} GiB free"
    return _limited_unless(not larger, fact, f"{fact}; too little for {', '.join(larger)}")


def _writable(folder: Path) -> Finding:
    nearest = nearest_folder(folder)
    if os.access(nearest, os.W_OK | os.X_OK):
        return Level.OK, str(folder)
    return Level.MISSING, f"{nearest} is not writable"


def _host_folder(host: HostProbe) -> Finding:
    return _writable(host.settings.host)


def _images(host: HostProbe) -> Finding:
    wanted = {
        task.name: {image_reference(r.image) for r in _all_resources(task)} for task in host.tasks
    }
    every = sorted(set().union(*wanted.values()))
    absent = {reference for reference in every if not _holds(host.engine, reference)}
    if not absent:
        return Level.OK, ", ".join(every)
    without = [name for name, images in wanted.items() if images & absent]
    fact = f"not present: {', '.join(sorted(absent))}; needed by {', '.join(without)}"
    return Level.MISSING if len(without) == len(wanted) else Level.LIMITED, fact


def _holds(engine: ContainerEngine, reference: str) -> bool:
    try:
        engine.image(reference)
    except UsageError:
        return False
    return True


def _assets(host: HostProbe) -> Finding:
    folder = host.settings.assets
    level, fact = _writable(folder)
    if level is not Level.OK:
        return level, fact
    prepared = sum(1 for _ in folder.iterdir()) if folder.is_dir() else 0
    return _limited_unless(bool(prepared), f"{folder}: {prepared} folders", f"{folder}: none yet")


def _git(_: HostProbe) -> Finding:
    program = shutil.which("git")
    if program is None:
        return Level.MISSING, "not installed"
    answer = subprocess.run(
        [program, "--version"],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if answer.returncode != 0:
        return Level.MISSING, f"{program} ends with {answer.returncode}"
    return Level.OK, answer.stdout.strip().removeprefix("git version ")


def _size(host: HostProbe) -> Finding:
    can = host.can
    fact = f"{can.cpus} CPUs, {can.memory / _GIB:.1f} GiB memory"
    larger = [
        task.name
        for task in host.tasks
        if any(r.cpus > can.cpus or r.memory > can.memory for r in _all_resources(task))
    ]
    return _limited_unless(not larger, fact, f"{fact}; too small for {', '.join(larger)}")


def _all_resources(task: TaskSpec) -> tuple[Resources, ...]:
    preparing = merge(task.defaults, task.prepare)
    return (*(task.resources(phase) for phase in Phase), preparing)


def _gpus(host: HostProbe) -> Finding:
    try:
        library = host.devices.library()
        count = len(host.devices.devices())
    except DeviceUnreadableError as error:
        return Level.LIMITED, str(error)
    if library is None:
        return Level.LIMITED, "no NVIDIA driver"
    kind = "" if library.official else " (a stand-in: never official)"
    fact = f"{count} of driver {library.driver}, {library.path}{kind}"
    return _limited_unless(count > 0 and library.official, fact, fact)


def _clock(host: HostProbe) -> Finding:
    days = host.clock.boottime_ns() / 86_400e9
    fact = f"up {days:.1f} days, boot {host.clock.boot_id()}, Linux {platform.release()}"
    return Level.OK, fact


CHECKS: tuple[Check, ...] = (
    Check(
        "engine",
        _engine,
        "use a local engine: one that restarted is told from one that did not",
        Exit.ENGINE_UNAVAILABLE,
    ),
    Check("engine rights", _rights, "official results need an engine that runs as root"),
    Check("engine kind", _kind, "official results need Docker Engine: point DOCKER_HOST at one"),
    Check("limits", _limits, "see the kernel's cgroup and swapaccount boot options"),
    Check("runtime", _runtime, "install runc"),
    Check("size-limited volumes", _volumes, "run as root on Linux with e2fsprogs and util-linux"),
    Check("runs folder", _runs_folder, "choose a local disk with room: --runs DIR or ORCH_RUNS"),
    Check("host folder", _host_folder, "make it writable for every user of orch, or set ORCH_HOST"),
    Check("images", _images, "orch images build NAME"),
    Check("assets", _assets, "orch task prepare TASK; ORCH_ASSETS chooses the folder"),
    Check("git", _git, "apt-get install git"),
    Check("size", _size, "tasks that ask for more are refused before they start"),
    Check("GPUs", _gpus, "tasks that ask for a GPU need the NVIDIA driver; see docs/gpus.md"),
    Check("clock", _clock, "a Linux kernel with CLOCK_BOOTTIME is needed"),
)
