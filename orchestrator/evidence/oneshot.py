"""Run one short container that judges a checkpoint and hands back a single JSON file."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.domain.container import ContainerSpec, Mount
from orchestrator.domain.outcome import StopReason
from orchestrator.domain.records import PhasePlan
from orchestrator.domain.roles import Phase
from orchestrator.domain.task import Resources, TaskSpec
from orchestrator.errors import ContainerLostError, InterruptedByOperator
from orchestrator.evidence.capped_log import CappedLog
from orchestrator.evidence.context import Context, container_name
from orchestrator.evidence.observer import Subject
from orchestrator.evidence.rooms import CONTROL_SIZE, Rooms, host_mounts
from orchestrator.evidence.supervise import Ending
from orchestrator.evidence.untrusted import read_untrusted
from orchestrator.sandbox import asset_mounts, container_spec
from orchestrator.storage.durable import make_folder
from orchestrator.storage.ledger import Reservation

MAX_OUTPUT = 1024 * 1024
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Checked:
    """How it ended, and what it wrote; ``output`` is None unless it exited 0 with a plain file."""

    ending: Ending
    output: bytes | None

    @property
    def crash(self) -> str:
        """Name in one word how it failed; empty when it did not."""
        facts = self.ending.facts
        if facts.stop_reason is StopReason.DEADLINE:
            return "timeout"
        if facts.stop_reason is StopReason.DISK_LIMIT:
            return "out_of_disk"
        if facts.oom_killed:
            return "out_of_memory"
        if facts.exit_code != 0:
            return "crashed"
        return "" if self.output is not None else "no_output"


@dataclass(frozen=True, slots=True)
class Check:
    """One kind of check: which phase, what runs, and what it may see besides the checkpoint."""

    ctx: Context
    plan: PhasePlan
    phase: Phase
    resources: Resources
    argv: tuple[str, ...]
    mounts: tuple[Mount, ...]
    env: Mapping[str, str]
    held: Reservation
    output: str
    subject: Subject
    log_mode: int = 0o644
    scratch: tuple[str, ...] = ()
    """Further folders that are empty and writable; nothing is read from them."""

    def with_env(self, env: Mapping[str, str]) -> "Check":
        """Return the same check with other variables."""
        return replace(self, env=env)

    def run(self, rooms: Rooms, checkpoint: Path, tag: str, logs: Path, wall: float) -> Checked:
        """Check one checkpoint folder under its own wall limit, in seconds.

        Args:
            rooms: where the small ``/out`` volume is open at ``rooms.scratch``.
            checkpoint: bound read-only at ``/ckpt``.
            tag: sets this container's name and output folder apart.
            logs: where its text output goes.

        Raises:
            ContainerLostError: a host fact ended it.
            InterruptedByOperator: the operator asked for a stop.
        """
        ctx = self.ctx
        ctx.stop.check(f"the {self.phase} container of {tag} was made")
        out = rooms.scratch_folder(tag)
        deadline_ns = ctx.clock.boottime_ns() + int(wall * _NS)
        spec = rooms.shield(self._spec(checkpoint, out, tag, deadline_ns, rooms))
        container = ctx.engine.create(spec)
        log = CappedLog(logs, mode=self.log_mode)
        try:
            watch = ctx.watch(
                self.phase,
                container,
                deadline_ns,
                log,
                outgrown=rooms.outgrown,
                subject=self.subject,
            )
            watch.begin()
            container.start(log)
            rooms.close_views()
            ending = watch.run()
        finally:
            log.close()
        if ending.host_facts:
            facts = ", ".join(sorted(ending.host_facts))
            raise ContainerLostError(f"the {self.phase} container of {tag} ended: {facts}")
        if ending.facts.stop_reason is StopReason.OPERATOR:
            raise InterruptedByOperator(f"{self.phase} of {tag} was interrupted")
        output = None
        if ending.facts.exit_code == 0 and ending.facts.stop_reason is StopReason.EXITED:
            output = read_untrusted(out, self.output, max_bytes=MAX_OUTPUT)
        return Checked(ending, output)

    def _spec(
        self, checkpoint: Path, out: Path, tag: str, deadline_ns: int, rooms: Rooms
    ) -> ContainerSpec:
        ctx, plan = self.ctx, self.plan
        return container_spec(
            name=container_name(self.phase, plan.run_id, f"-{tag}"),
            phase=self.phase,
            image=plan.image_of(self.phase).reference,
            argv=self.argv,
            user=ctx.users.agent,
            agent=ctx.users.agent,
            resources=self.resources,
            mounts=(
                Mount(checkpoint, "/ckpt"),
                Mount(out, "/out", writable=True),
                *asset_mounts(self.phase, plan.materials),
                *self.mounts,
                *host_mounts(rooms.host),
                *rooms.scratch_mounts(tag, self.scratch),
            ),
            env=self.env,
            labels=ctx.labels(plan.run_id, plan.engine, deadline_ns),
            isolation=ctx.isolation.of(plan),
            cpuset=self.held.cpuset,
            gpus=self.held.gpus[: self.resources.gpus],
            workdir="/",
        )


def scratch_size(task: TaskSpec, phase: Phase) -> int:
    """Say how many bytes a check's ``/out`` holds: few, unless the task gives the phase more."""
    own = {Phase.VALIDATE: task.validate_.disk, Phase.SCORE: task.score.disk}[phase]
    return max(CONTROL_SIZE, own or 0)


def make_logs(folder: Path, tag: str) -> Path:
    """Make the folder for one check's text output."""
    logs = folder / tag
    make_folder(folder, exist_ok=True)
    make_folder(logs, exist_ok=True)
    return logs
