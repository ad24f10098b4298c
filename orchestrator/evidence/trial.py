"""The tests of an agent that has no shell: each runs in a fresh container, on the train role.

What is tested is a tree: the shipped solution with the files that the agent has changed. Nothing
that a test leaves is kept but what it printed.
"""

import os
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from orchestrator.domain.container import ContainerSpec, ExecResult, Mount
from orchestrator.domain.outcome import StopReason
from orchestrator.domain.records import AttemptPlan
from orchestrator.domain.roles import Phase
from orchestrator.domain.task import TaskSpec, wall_settings
from orchestrator.errors import InfrastructureError
from orchestrator.evidence.apply import copy_pristine
from orchestrator.evidence.capped_log import CappedLog
from orchestrator.evidence.context import Context, container_name
from orchestrator.evidence.observer import Subject
from orchestrator.evidence.rooms import (
    HARNESS,
    Rooms,
    harness_mounts,
    host_mounts,
    writable_mounts,
)
from orchestrator.evidence.supervise import Ending
from orchestrator.evidence.walk import remove_tree
from orchestrator.sandbox import asset_mounts, container_spec
from orchestrator.storage.durable import make_folder, storage_faults
from orchestrator.storage.layout import AttemptFolder
from orchestrator.storage.ledger import Reservation
from orchestrator.storage.pack import Pack

WORKSPACE, OUT, HOST = "test", "test-out", "test-host"
"""The volumes of a test in its attempt's folder, and the host's files for it below ``logs``."""
_SCRIPTS = ("timer.sh", "submit.sh", "no_candidate.sh", "request.py")
_PROXY_SCRIPT = "fast_eval.sh"
_KEPT = 256 * 1024
_NS = 1_000_000_000
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


def environment(plan: AttemptPlan) -> dict[str, str]:
    """Name the variables an agent's commands get besides the sandbox's own."""
    env = {"OUTPUT_DIR": "/out"}
    proxy = plan.task.proxy
    if proxy is not None:
        script = f"{HARNESS}/proxy/{PurePosixPath(proxy.command).name}"
        env["ORCH_PROXY_COMMAND"] = proxy.command if proxy.in_image else script
    return env


def harness_scripts(task: TaskSpec) -> tuple[str, ...]:
    """Name what an agent finds of our harness; a proxy of the image may be in our own's place."""
    proxy = task.proxy
    theirs = proxy is not None and proxy.command == f"{HARNESS}/{_PROXY_SCRIPT}"
    return _SCRIPTS if theirs else (*_SCRIPTS, _PROXY_SCRIPT)


def proxy_mounts(pack: Pack) -> tuple[Mount, ...]:
    """Bind the task's proxy evaluator, if it has one."""
    if pack.spec.proxy is None or pack.spec.proxy.in_image:
        return ()
    return (pack.script_mount(pack.spec.proxy.command, f"{HARNESS}/proxy"),)


@dataclass(slots=True)
class Trials:
    """The tests of one exploration, one at a time.

    Attributes:
        held: what the exploration has reserved; its tests use it.
        deadline_ns: of the exploration, on CLOCK_BOOTTIME.
        stopping: set once the exploration is over, which ends a test that runs.
        putting: held while the workspace is written, and by whoever wants to read it whole.
    """

    ctx: Context
    plan: AttemptPlan
    pack: Pack
    folder: AttemptFolder
    held: Reservation
    deadline_ns: int
    stopping: threading.Event
    putting: threading.Lock
    _number: int = 0
    _put: frozenset[str] = field(default_factory=frozenset)

    def put(self, changed: Mapping[str, str]) -> None:
        """Make the exploration's own workspace the shipped solution with these files.

        Nothing runs there that could be in the way.

        Raises:
            StorageFullError: the workspace cannot take them.
        """
        with self.putting:
            self._restore(self._put - changed.keys())
            self._write(self.folder.workspace, changed)
            self._put = frozenset(changed)

    def run(self, changed: Mapping[str, str]) -> ExecResult:
        """Test the shipped solution with these files.

        Raises:
            InfrastructureError: the machine would not have it, or a host fact ended it.
            ContainerLeftRunning: a person asked twice for a stop.
        """
        self._number += 1
        logs = self.folder.logs / f"test-{self._number}"
        make_folder(logs)
        heard = _Heard(CappedLog(logs))
        need, agent = self.plan.resources, self.ctx.users.agent
        with Rooms(self.ctx, self.folder.logs / HOST) as rooms:
            rooms.defer(heard.log.close)
            workspace = rooms.volume(self.folder.root / WORKSPACE, need.disk, "/workspace")
            rooms.volume(self.folder.root / OUT, need.disk, "/out")
            copy_pristine(
                self.pack.solution, workspace.path, exclude=self.pack.exclude, owner=agent
            )
            self._write(workspace.path, changed)
            ending = self._supervised(rooms, heard, logs)
        for name in (WORKSPACE, OUT):
            remove_tree(self.folder.root / name)
        if ending.host_facts:
            facts = ", ".join(sorted(ending.host_facts))
            raise InfrastructureError(f"the container of test {self._number} ended: {facts}")
        return ExecResult(
            exit_code=ending.facts.exit_code,
            output=bytes(heard.kept),
            truncated=heard.seen > len(heard.kept),
            timed_out=ending.facts.stop_reason is StopReason.DEADLINE,
            seconds=ending.facts.duration_s,
        )

    def _supervised(self, rooms: Rooms, heard: "_Heard", logs: Path) -> Ending:
        ctx, explore = self.ctx, self.plan.task.explore
        wall_ns = int(explore.command_wall * _NS)
        deadline_ns = min(self.deadline_ns, ctx.clock.boottime_ns() + wall_ns)
        subject = Subject.of(Phase.EXPLORE, self.folder, self.plan.task, self.held)
        container = ctx.engine.create(rooms.shield(self._spec(rooms, deadline_ns)))
        watch = ctx.watch(
            Phase.EXPLORE,
            container,
            deadline_ns,
            heard.log,
            outgrown=rooms.outgrown,
            quiet=True,
            subject=replace(subject, path=logs / "telemetry.jsonl"),
        )
        watch.begin()
        container.start(heard)
        rooms.close_views()
        ending = watch.run(self.stopping.is_set)
        container.remove()
        return ending

    def _spec(self, rooms: Rooms, deadline_ns: int) -> ContainerSpec:
        ctx, plan = self.ctx, self.plan
        wall = (deadline_ns - ctx.clock.boottime_ns()) / _NS
        maximum, reserve = wall_settings(wall, plan.task.replay.reserve)
        walls = {
            "MAX_WALL_TIME_SECONDS": str(maximum),
            "DEADLINE_RESERVE_SECONDS": str(reserve),
        }
        evaluator = "" if plan.task.proxy is None else f" && {HARNESS}/{_PROXY_SCRIPT}"
        return container_spec(
            name=container_name(Phase.EXPLORE, plan.run_id, f"-test-{self._number}"),
            phase=Phase.EXPLORE,
            image=plan.image.reference,
            argv=("bash", "-c", f"{plan.task.replay.command}{evaluator}"),
            user=ctx.users.agent,
            agent=ctx.users.agent,
            resources=plan.resources,
            mounts=(
                *writable_mounts(self.folder.root / WORKSPACE, self.folder.root / OUT),
                *asset_mounts(Phase.EXPLORE, plan.materials),
                *harness_mounts(ctx.harness, _PROXY_SCRIPT),
                *proxy_mounts(self.pack),
                *host_mounts(rooms.host),
            ),
            env={**environment(plan), **walls},
            labels=ctx.labels(plan.run_id, plan.engine, deadline_ns),
            isolation=ctx.isolation.of(plan),
            cpuset=self.held.cpuset,
            gpus=self.held.gpus[: plan.resources.gpus],
        )

    def _restore(self, paths: Iterable[str]) -> None:
        """Undo what was put: ship a file again, or take it away with the folders made for it."""
        workspace, solution = self.folder.workspace, self.pack.solution
        for path in paths:
            if (solution / path).exists():
                self._fill(workspace / path, (solution / path).read_bytes())
                continue
            (workspace / path).unlink(missing_ok=True)
            for parent in PurePosixPath(path).parents[:-1]:
                if not (solution / parent).exists():
                    with suppress(OSError):  # another file is still in it
                        (workspace / parent).rmdir()

    def _write(self, root: Path, changed: Mapping[str, str]) -> None:
        for path, text in changed.items():
            for parent in reversed(PurePosixPath(path).parents[:-1]):
                if not (root / parent).exists():
                    make_folder(root / parent)
                    self._own(root / parent)
            self._fill(root / path, text.encode())

    def _fill(self, target: Path, data: bytes) -> None:
        with storage_faults(target):
            with os.fdopen(os.open(target, _WRITE, 0o644), "wb") as file:
                file.write(data)
            self._own(target)

    def _own(self, path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, *self.ctx.users.agent)


@dataclass(slots=True)
class _Heard:
    """Keeps the end of what a test prints for the agent, and hands all of it to the log."""

    log: CappedLog
    kept: bytearray = field(default_factory=bytearray)
    seen: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def write(self, stream: str, data: bytes) -> None:
        """Take output; see ``ports.LogSink``."""
        self.log.write(stream, data)
        with self._lock:
            self.seen += len(data)
            self.kept += data[-_KEPT:]
            del self.kept[:-_KEPT]
