"""The gate: what must hold before a formal run may start. A no is the machine's, never a score.

Checked here: the engine answers, the image is the planned one, every asset's digest, and the
host-wide reservation of CPUs, memory and disk. Every check is kept as evidence, also when refused.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from orchestrator.domain.records import GateCheck, GateRecord, ImageRecord, PhasePlan
from orchestrator.domain.roles import Phase, is_visible
from orchestrator.errors import (
    AssetMismatchError,
    EngineUnavailableError,
    GateRefusedError,
    OrchError,
    UsageError,
)
from orchestrator.evidence.context import Context, save
from orchestrator.evidence.devices import require_devices
from orchestrator.evidence.tree import tree_digest
from orchestrator.storage.ledger import Claim, Reservation


@dataclass(slots=True)
class _Evidence:
    checks: list[GateCheck] = field(default_factory=list)

    def check(self, name: str, probe: Callable[[], str]) -> None:
        """Run one check; its detail is what it found, its refusal what was wrong."""
        try:
            detail = probe()
        except OrchError as refusal:
            self.checks.append(GateCheck(name=name, passed=False, detail=str(refusal)))
            raise
        self.checks.append(GateCheck(name=name, passed=True, detail=detail))


@contextmanager
def passed(
    ctx: Context, plan: PhasePlan, phases: tuple[Phase, ...], evidence_path: Path, disk: int
) -> Iterator[Reservation]:
    """Hold the gate open for a run: check, reserve, yield the reservation, release it.

    Args:
        phases: whose assets are hashed; the first names the reservation.
        evidence_path: where ``gate.json`` goes, refused or not.
        disk: bytes that the run's volumes will allocate.

    Raises:
        GateRefusedError: a check said no, in one sentence; nothing was started.
        AssetMismatchError: an asset is missing or changed.
    """
    started = ctx.now()
    evidence = _Evidence()
    held: Reservation | None = None
    reason = ""
    with ExitStack() as stack:
        try:
            evidence.check("engine", lambda: _engine(ctx, plan))
            for image in dict.fromkeys(plan.image_of(phase) for phase in phases):
                evidence.check(f"image {image.reference}", partial(_image, ctx, image))
            evidence.check("devices", lambda: require_devices(ctx, plan))
            for path, material in sorted(plan.materials.items()):
                if any(is_visible(material.role, p, frozenset(material.also)) for p in phases):
                    ctx.stop.check(f"asset {path} was checked")
                    evidence.check(f"asset {path}", partial(_asset, plan, path))
            reserved = _reserve(ctx, plan, phases[0], evidence_path.parent, disk, evidence)
            held = stack.enter_context(reserved)
        except OrchError as refusal:
            reason = str(refusal)
            raise
        finally:
            record = GateRecord(
                passed=held is not None,
                started=started,
                ended=ctx.now(),
                checks=tuple(evidence.checks),
                cpuset=held.cpuset if held is not None else "",
                reason=reason,
            )
            save(evidence_path, record, replace=True)
        yield held


def _engine(ctx: Context, plan: PhasePlan) -> str:
    try:
        now = ctx.engine_record()
    except EngineUnavailableError as gone:
        raise GateRefusedError(str(gone), remedy=gone.remedy) from gone
    if now.engine_id != plan.engine.engine_id:
        raise GateRefusedError(
            f"engine {now.engine_id} answers, the plan was made on {plan.engine.engine_id}",
            remedy="set DOCKER_HOST to the engine of the plan, or start a new replay",
        )
    return f"{now.kind} {now.version}"


def _image(ctx: Context, planned: ImageRecord) -> str:
    try:
        found = ctx.engine.image(planned.reference)
    except UsageError as missing:
        raise GateRefusedError(str(missing), remedy=missing.remedy) from missing
    if found.digest != planned.digest:
        raise GateRefusedError(
            f"image {planned.reference} is {found.digest}, the plan says {planned.digest}",
            remedy="rebuild the planned image, or start a new attempt with this one",
        )
    return found.digest


def _asset(plan: PhasePlan, path: str) -> str:
    material = plan.materials[path]
    source = Path(material.source)
    if not source.is_dir():
        raise AssetMismatchError(
            f"asset {path} is missing: {source}", remedy="orch task prepare makes it again"
        )
    found = tree_digest(source)
    if found != material.digest:
        raise AssetMismatchError(
            f"asset {path} is {found}, the plan says {material.digest}",
            remedy="orch task prepare makes it again",
        )
    return found


def _reserve(
    ctx: Context, plan: PhasePlan, phase: Phase, folder: Path, disk: int, evidence: _Evidence
) -> Reservation:
    need = plan.resources
    claim = Claim(
        run_id=plan.run_id,
        phase=phase,
        cpus=need.cpus,
        memory=need.memory,
        disk=disk,
        disk_folder=folder,
    )
    held: list[Reservation] = []

    def reserve() -> str:
        held.append(ctx.ledger.reserve(claim))
        return f"cpus {held[0].cpuset}, memory {need.memory}, disk {disk}"

    evidence.check("reservation", reserve)
    return held[0]
