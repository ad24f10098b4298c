"""Freeze an exploration's workspace, capture it, and put what was found into records."""

from dataclasses import asdict, dataclass
from pathlib import Path

from orchestrator.domain.attempt import SubmissionOrigin, TerminationReason
from orchestrator.domain.outcome import Sign, StopReason
from orchestrator.domain.records import AttemptPlan, LeftOutRecord, Submission, ViolationRecord
from orchestrator.errors import InfrastructureError
from orchestrator.evidence.apply import copy_files
from orchestrator.evidence.capture import Capture, PolicyRefused, ProofFailed, capture
from orchestrator.evidence.context import Context, Outcome
from orchestrator.evidence.supervise import Ending, Watch
from orchestrator.evidence.tree import encode_path, manifest_of
from orchestrator.evidence.walk import reopen
from orchestrator.lifecycle.machine import Event
from orchestrator.ports import Container
from orchestrator.storage.durable import make_folder
from orchestrator.storage.layout import AttemptFolder
from orchestrator.storage.pack import Pack
from orchestrator.storage.records import load

_MOST_LISTED = 1000

Found = Capture | PolicyRefused | ProofFailed


@dataclass(frozen=True, slots=True)
class Taken:
    """A frozen workspace and what its capture found."""

    found: Found
    accepted_at: str
    pause_ms: float


def take(
    ctx: Context,
    plan: AttemptPlan,
    pack: Pack,
    folder: AttemptFolder,
    container: Container,
    watch: Watch | None,
) -> Taken:
    """Freeze the container and capture its workspace; one that cannot be frozen is ended first.

    Args:
        watch: over the running container; None when it has ended.
    """
    before = ctx.clock.boottime_ns()
    if watch is not None:
        try:
            container.pause()
        except InfrastructureError:
            watch.settle()
            watch.note(Sign.CAPTURED_AFTER_KILL)
    frozen = ctx.clock.boottime_ns()
    accepted_at = ctx.now()
    make_folder(folder.candidate, exist_ok=True)
    reopen(folder.workspace)
    found = capture(
        folder.workspace,
        pack.solution,
        exclude=pack.exclude,
        policy=plan.task.patch,
        store=ctx.store,
        destination=folder.candidate,
    )
    return Taken(found, accepted_at, (frozen - before) / 1e6)


def take_at_the_end(
    ctx: Context,
    plan: AttemptPlan,
    pack: Pack,
    folder: AttemptFolder,
    container: Container,
    watch: Watch | None,
) -> Taken:
    """Capture a workspace that nobody will mend: what a frozen process spoils goes with it.

    A process keeps a lease on a file while it is frozen, and the file cannot be opened.
    """
    taken = take(ctx, plan, pack, folder, container, watch)
    if watch is None or not isinstance(taken.found, ProofFailed):
        return taken
    watch.settle()
    watch.note(Sign.CAPTURED_AFTER_KILL)
    return take(ctx, plan, pack, folder, container, None)


def keep(folder: AttemptFolder, size: int) -> Path:
    """Keep the raw workspace where nothing will be submitted from it.

    A copy has no holes and no second names of a file: what it would hold beyond ``size`` bytes,
    which is all that the workspace had, is left out.
    """
    kept = folder.root / "kept"
    make_folder(kept, exist_ok=True)
    make_folder(kept / "workspace")
    reopen(folder.workspace)
    manifest = manifest_of(folder.workspace, max_bytes=size, leave_large=True)
    copy_files(folder.workspace, manifest, kept / "workspace")
    return kept


def submission(
    reason: TerminationReason,
    origin: SubmissionOrigin,
    found: Capture,
    taken: Taken,
    outside: tuple[str, ...],
) -> Submission:
    """Describe a captured candidate.

    Args:
        outside: what the agent changed in the image's own folders.
    """
    return Submission(
        reason=reason,
        origin=origin,
        patch_sha256=f"sha256:{found.patch_sha256}",
        patch_size=found.patch_size,
        manifest_digest=found.manifest_digest,
        base_digest=found.base_digest,
        empty=found.is_empty,
        changed=asdict(found.changed),
        figures=asdict(found.figures),
        left_out=left_out(found),
        outside_workspace=outside,
        accepted_at=taken.accepted_at,
        pause_ms=round(taken.pause_ms, 1),
    )


def captured(record: Submission) -> Outcome:
    """Say that a candidate is there; its files are durable by now."""
    return Outcome(
        Event.CAPTURED,
        {
            "reason": None if record.reason is None else record.reason.value,
            "origin": record.origin.value,
            "patch_sha256": record.patch_sha256,
            "manifest_digest": record.manifest_digest,
            "base_digest": record.base_digest,
            "empty": record.empty,
            "accepted_at": record.accepted_at,
        },
    )


def accepted(folder: AttemptFolder, started: str, now: str) -> Outcome:
    """Say what an exploration came to whose accepted submission outlived its supervisor."""
    decided = captured(load(folder.submission, Submission))
    ending = Ending.unseen(StopReason.SUBMITTED, started, now)
    return Outcome(decided.event, {**decided.data, **ending.as_data()})


def declined(
    reason: TerminationReason, why: str, breaches: tuple[ViolationRecord, ...] = ()
) -> Outcome:
    """Say that an exploration ended without a candidate, and why."""
    return Outcome(
        Event.DECLINED,
        {
            "reason": reason.value,
            "origin": SubmissionOrigin.NONE.value,
            "message": why,
            "violations": [v.model_dump(mode="json") for v in breaches],
        },
    )


def problem_with(found: Found) -> str:
    """Say in one sentence why a submission cannot be accepted."""
    match found:
        case ProofFailed():
            return f"the captured patch does not reproduce your workspace: {found.reason}"
        case PolicyRefused():
            first, many = found.violations[0], len(found.violations)
            return f"the patch breaks the task's policy at {many} place(s), first: {first}"
        case Capture():
            return (
                "nothing has changed; "
                "submit.sh --allow-empty hands in the shipped solution as it is"
            )


def violations(found: Found) -> tuple[ViolationRecord, ...]:
    """List where a patch breaks the task's policy, for a record."""
    if not isinstance(found, PolicyRefused):
        return ()
    return tuple(
        ViolationRecord(path=v.path, rule=v.rule.value, figure=v.figure, limit=v.limit, text=str(v))
        for v in found.violations[:_MOST_LISTED]
    )


def left_out(found: Found) -> tuple[LeftOutRecord, ...]:
    """List what a patch cannot carry, for a record."""
    if isinstance(found, ProofFailed):
        return ()
    return tuple(
        LeftOutRecord(path=encode_path(left.path), reason=left.reason.value)
        for left in found.left_out[:_MOST_LISTED]
    )
