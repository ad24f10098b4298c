"""Validate: load each collected checkpoint in a container, newest first, until enough are valid.

A validator that crashes is tried once more; then the anchor is its control. Where the anchor
passes, the checkpoint is what breaks it and is rejected; else the machine is at fault.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orchestrator.domain.checkpoint import ArtifactStatus
from orchestrator.domain.container import Mount
from orchestrator.domain.outputs import ValidatorOutput
from orchestrator.domain.records import Artifact, Artifacts, ReplayPlan
from orchestrator.domain.roles import DataRole, Phase
from orchestrator.domain.task import BuiltinValidator, CommandValidator, Resources, TaskSpec
from orchestrator.errors import InfrastructureError
from orchestrator.evidence.context import Context, Outcome, load_json_size_capped, save
from orchestrator.evidence.observer import Subject
from orchestrator.evidence.oneshot import Check, Checked, make_logs, scratch_size
from orchestrator.evidence.rooms import HARNESS, Rooms, harness_mounts
from orchestrator.evidence.walk import remove_tree
from orchestrator.lifecycle.machine import Event
from orchestrator.sandbox import script_argv
from orchestrator.storage.durable import make_folder
from orchestrator.storage.layout import ReplayFolder
from orchestrator.storage.ledger import Reservation
from orchestrator.storage.pack import Pack

OUTPUT = "validation.json"
_TRIES = 2
_USED_UP = "validation_wall_used_up"
_NS = 1_000_000_000


@dataclass(slots=True)
class _Validation:
    ctx: Context
    plan: ReplayPlan
    task: TaskSpec
    folder: ReplayFolder
    check: Check
    rooms: Rooms
    deadline_ns: int
    anchor_passes: bool | None = None
    """What the control came to; it is run once, when the first checkpoint needs it."""

    def time_left(self) -> float:
        return (self.deadline_ns - self.ctx.clock.boottime_ns()) / _NS


def run(
    ctx: Context,
    plan: ReplayPlan,
    pack: Pack,
    folder: ReplayFolder,
    collected: Mapping[str, Any],
    held: Reservation,
) -> Outcome:
    """Judge what a replay published and write ``artifacts.json``.

    Args:
        collected: the data of the ``collected`` event.

    Raises:
        InfrastructureError: the validator fails on the anchor too.
    """
    task = pack.spec
    need = task.resources(Phase.VALIDATE)
    with Rooms(ctx, folder.logs / "validate-host", held) as rooms:
        rooms.open_scratch(_scratch(folder), scratch_size(task, Phase.VALIDATE))
        validation = _Validation(
            ctx=ctx,
            plan=plan,
            task=task,
            folder=folder,
            check=_check(ctx, plan, pack, need, folder, held),
            rooms=rooms,
            deadline_ns=ctx.clock.boottime_ns() + int(task.validate_.total_wall * _NS),
        )
        judged: list[Artifact] = []
        for row in collected["checkpoints"]:
            kept = sum(a.status is ArtifactStatus.ACCEPTED for a in judged)
            judged.append(_judge(validation, row, full=kept >= task.checkpoints.keep))
    judged += [
        Artifact(name=i["name"], progress=None, status=ArtifactStatus.IGNORED, reason=i["reason"])
        for i in collected["ignored"]
    ]
    artifacts = Artifacts(artifacts=tuple(judged))
    save(folder.artifacts, artifacts, replace=True)
    return _outcome(artifacts, examined=len(collected["checkpoints"]))


def clear(ctx: Context, folder: ReplayFolder) -> None:
    """Remove what a validation that did not end left behind."""
    left = ctx.volumes.adopt(_scratch(folder))
    if left is not None:
        left.close()
    remove_tree(_scratch(folder))


def _scratch(folder: ReplayFolder) -> Path:
    return folder.root / "validate-out"


def _outcome(artifacts: Artifacts, examined: int) -> Outcome:
    accepted = artifacts.accepted()
    if accepted:
        return Outcome(
            Event.VALIDATED,
            {
                "accepted": [
                    {"name": a.name, "progress": a.progress, "digest": a.digest} for a in accepted
                ],
                "rejected": sum(a.status is ArtifactStatus.REJECTED for a in artifacts.artifacts),
            },
        )
    if examined == 0:
        return Outcome(Event.NO_CHECKPOINT, {"ignored": len(artifacts.artifacts)})
    return Outcome(Event.NONE_VALID, {"rejected": examined})


def _check(
    ctx: Context,
    plan: ReplayPlan,
    pack: Pack,
    need: Resources,
    folder: ReplayFolder,
    held: Reservation,
) -> Check:
    validator = pack.spec.validate_.validator
    anchor = _anchor(plan)
    argv: tuple[str, ...]
    mounts: tuple[Mount, ...]
    match validator:
        case BuiltinValidator():
            argv = ("python3", f"{HARNESS}/validators/{validator.file}")
            mounts = harness_mounts(ctx.harness, "validators")
        case CommandValidator():
            argv = script_argv(validator.command, "/opt/validator")
            mounts = (pack.script_mount(validator.command, "/opt/validator"),)
    return Check(
        ctx=ctx,
        plan=plan,
        phase=Phase.VALIDATE,
        resources=need,
        argv=argv,
        mounts=mounts,
        env={
            "ORCH_ANCHOR": f"/assets/{anchor[0]}" if anchor else "",
            "ORCH_ALLOW_NONFINITE": "1" if pack.spec.validate_.allow_nonfinite else "0",
        },
        held=held,
        output=OUTPUT,
        subject=Subject.of(Phase.VALIDATE, folder, pack.spec, held),
    )


def _anchor(plan: ReplayPlan) -> tuple[str, str] | None:
    """Tell where the first anchor asset is mounted below ``/assets``, and where it is here."""
    anchors = (
        (m.at or name, m.source)
        for name, m in sorted(plan.materials.items())
        if m.role is DataRole.ANCHOR
    )
    return next(anchors, None)


def _judge(validation: _Validation, row: Mapping[str, Any], *, full: bool) -> Artifact:
    """Judge one collected checkpoint."""
    base = Artifact(
        name=row["name"],
        progress=row["progress"],
        status=ArtifactStatus.REJECTED,
        digest=row.get("digest"),
        size=row.get("size"),
        files=row.get("files"),
    )
    if "refused" in row:
        update = {"reason": row["refused"], "detail": row["where"]}
        return base.model_copy(update=update)
    if full:
        update = {"status": ArtifactStatus.IGNORED, "reason": "beyond_the_newest_valid"}
        return base.model_copy(update=update)
    if validation.time_left() <= 0:
        return base.model_copy(update={"reason": _USED_UP})
    artifact = _run_validator(validation, base)
    path = validation.folder.validation(base.name)
    make_folder(path.parent.parent, exist_ok=True)
    make_folder(path.parent, exist_ok=True)
    save(path, artifact, replace=True)
    return artifact


def _run_validator(validation: _Validation, base: Artifact) -> Artifact:
    source = validation.folder.checkpoints / base.name
    seconds = 0.0
    crash = detail = ""
    for number in range(1, _TRIES + 1):
        wall = min(validation.task.validate_.wall, validation.time_left())
        tag = f"{base.name}-try{number}"
        found = _once(validation, source, tag, wall)
        seconds += found.ending.facts.duration_s
        verdict = _parse(found)
        if verdict is not None:
            return base.model_copy(
                update={
                    "status": ArtifactStatus.ACCEPTED if verdict.valid else ArtifactStatus.REJECTED,
                    "reason": verdict.reason,
                    "detail": verdict.detail,
                    "attempts": number,
                    "seconds": round(seconds, 3),
                    "arrays": verdict.arrays,
                    "parameters": verdict.parameters,
                }
            )
        crash = f"validator_{found.crash or 'bad_output'}"
        detail = f"exit status {found.ending.facts.exit_code}; see logs/validate/{tag}"
        if validation.time_left() <= 0:  # what was left of it was too short, for whatever reason
            crash = _USED_UP
            break
    else:
        _control(validation, crash)
    return base.model_copy(
        update={
            "reason": crash,
            "detail": detail,
            "attempts": number,
            "seconds": round(seconds, 3),
        }
    )


def _once(validation: _Validation, source: Path, tag: str, wall: float) -> Checked:
    logs = make_logs(validation.folder.logs / "validate", tag)
    return validation.check.run(validation.rooms, source, tag, logs, wall)


def _parse(found: Checked) -> ValidatorOutput | None:
    """Read the validator's word; None when it crashed or wrote something else."""
    if found.crash or found.output is None:
        return None
    try:
        return ValidatorOutput.model_validate(load_json_size_capped(found.output))
    except (ValueError, ValidationError):
        return None


def _control(validation: _Validation, crash: str) -> None:
    """Show that the validator works on the anchor, or say that it is broken.

    Raises:
        InfrastructureError: it fails on the anchor as well (or there is none to try).
    """
    if validation.anchor_passes is None:
        validation.anchor_passes = _try_anchor(validation)
    if validation.anchor_passes:
        return
    raise InfrastructureError(
        f"{crash} twice, and the control on the anchor does not pass",
        remedy="mend the validator; orch replay starts a new numbered replay",
    )


def _try_anchor(validation: _Validation) -> bool:
    anchor = _anchor(validation.plan)
    if anchor is None:
        return False
    wall = validation.task.validate_.wall  # its own, however little is left for checkpoints
    verdict = _parse(_once(validation, Path(anchor[1]), "anchor-control", wall))
    return verdict is not None and verdict.valid
