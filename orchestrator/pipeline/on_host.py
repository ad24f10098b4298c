"""What a plan finds on this host: images, assets, harness, and what keeps a run from official."""

from orchestrator.domain.image import image_reference
from orchestrator.domain.records import GpuPlan, ImageRecord, Material
from orchestrator.domain.roles import Phase, is_visible
from orchestrator.domain.task import Resources
from orchestrator.errors import TaskPackError, UsageError
from orchestrator.evidence.context import Context
from orchestrator.evidence.tree import manifest_of, tree_digest
from orchestrator.pipeline.gpus import gpu_relaxations
from orchestrator.storage.pack import Pack

ABSENT = "absent"
"""Stands in a plan that is only looked at, for what this host has not."""


def image_record(ctx: Context, reference: str) -> ImageRecord:
    """Identify the image that a name in a task means.

    Raises:
        UsageError: the engine does not hold it.
        TaskPackError: it declares volumes, which would persist what must not.
    """
    named = image_reference(reference)
    try:
        found = ctx.engine.image(named)
    except UsageError:
        if not ctx.look:
            raise
        return ImageRecord(reference=named, digest=ABSENT, engine_id=ABSENT)
    if found.volumes:
        raise TaskPackError(
            f"image {found.reference} declares volumes ({', '.join(found.volumes)})",
            remedy="rebuild it without VOLUME: nothing may persist between phases",
        )
    return ImageRecord(reference=found.reference, digest=found.digest, engine_id=found.engine_id)


def materials(ctx: Context, pack: Pack, phases: tuple[Phase, ...]) -> dict[str, Material]:
    """Locate every asset that one of ``phases`` sees, with its locked digest.

    Raises:
        AssetMismatchError: one is missing.
    """
    located = ctx.assets.materials(pack, absent=ABSENT if ctx.look else None)
    return {
        path: material
        for path, material in located.items()
        if any(is_visible(material.role, p, frozenset(material.also)) for p in phases)
    }


def relaxations(
    ctx: Context, need: Resources, gpu: GpuPlan | None, *, official: bool
) -> tuple[str, ...]:
    """List everything that keeps a run from being official.

    Raises:
        UsageError: ``official`` was asked for and the list is not empty.
    """
    abilities, identity = ctx.engine.abilities(), ctx.engine.identity()
    found = [
        *([] if identity.official else [f"engine {identity.kind} is a fake"]),
        *([] if abilities.pids_limit else ["engine cannot limit processes"]),
        *([] if abilities.swap_limit else ["engine cannot limit swap"]),
        *(["engine runs without root"] if abilities.rootless else []),
        *abilities.lacks,
        *([] if need.read_only else ["root file system is writable"]),
        *([] if ctx.isolation.digest else ["engine applies no system call filter"]),
        *ctx.volumes.relaxations(),
        *ctx.views.relaxations(),
        *gpu_relaxations(ctx, gpu),
    ]
    if official and found:
        raise UsageError(
            "this host cannot give an official result: " + "; ".join(found),
            remedy="mend these, or leave out --official for a local result",
        )
    return tuple(found if official else ["not run with --official", *found])


def harness_digest(ctx: Context) -> str:
    """Identify what orch mounts at ``/opt/harness``; byte code left by a test is no part of it."""
    return manifest_of(ctx.harness, exclude=("__pycache__/",)).digest


def evaluator_digest(pack: Pack) -> str:
    """Identify the evaluator: the folder that the scorer's container gets to see."""
    mount = pack.script_mount(pack.spec.score.command, "/opt/evaluator")
    source = mount.source if mount.source.is_dir() else mount.source.parent
    return tree_digest(source)


def workspace_digest(ctx: Context, pack: Pack) -> str:
    """Identify the shipped solution, wherever it comes from."""
    if ctx.look and pack.spec.workspace.in_image and pack.pristine is None:
        return ABSENT
    return manifest_of(pack.solution, exclude=pack.exclude).digest
