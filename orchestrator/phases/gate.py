"""The gate: what must hold before a formal run may start. A no is the machine's, never a score.

Checked here: the engine answers, the image is the planned one, every asset's digest; then, as
nothing that takes long is left to do, CPUs, memory, disk and GPUs become the run's own, and the
GPUs are proven idle (``evidence.ownership``). Every check is kept as evidence, also when refused.
"""

from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from orchestrator.domain.records import ImageRecord, PhasePlan
from orchestrator.domain.roles import Phase, is_visible
from orchestrator.errors import (
    AssetMismatchError,
    EngineUnavailableError,
    GateRefusedError,
    UsageError,
)
from orchestrator.evidence.context import Context
from orchestrator.evidence.ownership import Trail, claim_of, owned, require_driver
from orchestrator.evidence.tree import tree_digest
from orchestrator.storage.ledger import Reservation


def passed(
    ctx: Context, plan: PhasePlan, phases: tuple[Phase, ...], evidence_path: Path, disk: int
) -> AbstractContextManager[Reservation]:
    """Hold the gate open for a run: check, reserve, yield the reservation, release it.

    Args:
        phases: whose assets are hashed; the first names the reservation.
        evidence_path: where ``gate.json`` goes, refused or not.
        disk: bytes that the run's volumes will allocate.

    Raises:
        GateRefusedError: a check said no, in one sentence; nothing was started.
        AssetMismatchError: an asset is missing or changed.
    """
    claim = claim_of(plan, phases[0], disk, evidence_path.parent)

    def checks(trail: Trail) -> None:
        trail.check("engine", lambda: _engine(ctx, plan))
        for image in dict.fromkeys(plan.image_of(phase) for phase in phases):
            trail.check(f"image {image.reference}", partial(_image, ctx, image))
        require_driver(ctx, plan, phases, trail)
        for path, material in sorted(plan.materials.items()):
            if any(is_visible(material.role, p, frozenset(material.also)) for p in phases):
                ctx.stop.check(f"asset {path} was checked")
                trail.check(f"asset {path}", partial(_asset, plan, path))

    return owned(ctx, plan, phases, claim, checks, evidence_path)


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
