"""Submit: what was captured becomes the attempt's one candidate; or a patch is entered by hand.

Only the patch, its sha256 and the manifest of the resulting tree cross from here on.
"""

import hashlib
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from orchestrator.domain.attempt import SubmissionOrigin
from orchestrator.domain.records import Submission
from orchestrator.errors import InfrastructureError, TaskPackError, UsageError
from orchestrator.evidence.apply import Applied, InvalidPatch, PatchDiffers, apply
from orchestrator.evidence.context import Context, Outcome, save
from orchestrator.evidence.taking import captured
from orchestrator.evidence.tree import Manifest, manifest_of
from orchestrator.lifecycle.machine import Event
from orchestrator.storage.durable import make_folder, read_bytes, write_file
from orchestrator.storage.layout import AttemptFolder
from orchestrator.storage.pack import Pack
from orchestrator.storage.records import load

MAX_PATCH = 256 * 1024**2
MAX_ENTERED = 64 * 1024**2
"""Bytes of a patch that somebody hands in; AI4AI-Bench's limit."""


def run(folder: AttemptFolder) -> Outcome:
    """Check that the captured candidate is on disk as it was proven, and accept it.

    Raises:
        InfrastructureError: its bytes are not the proven ones any more.
    """
    submission = load(folder.submission, Submission)
    found = "sha256:" + hashlib.sha256(read_bytes(folder.patch, max_bytes=MAX_PATCH)).hexdigest()
    if found != submission.patch_sha256:
        raise InfrastructureError(
            f"{folder.patch} is {found}, proven was {submission.patch_sha256}",
            remedy="the disk changed it; explore again",
        )
    return Outcome(
        Event.SUBMITTED,
        {
            "patch_sha256": submission.patch_sha256,
            "manifest_digest": submission.manifest_digest,
        },
    )


@dataclass(frozen=True, slots=True)
class JudgedPatch:
    """A patch that somebody handed in and that applies whole within the task's policy."""

    data: bytes
    submission: Submission
    manifest: Manifest


def judge_patch(ctx: Context, pack: Pack, patch: Path) -> JudgedPatch:
    """Judge a patch that somebody hands in, before anything is registered for it.

    Raises:
        UsageError: there is no such file, or it cannot be read.
        TaskPackError: it is no patch, does not apply whole, or breaks the task's policy.
    """
    try:
        data = read_bytes(patch, max_bytes=MAX_ENTERED)
    except OSError as failure:
        raise UsageError(
            f"{patch} cannot be read: {failure.strerror}", remedy="orch submit-patch TASK FILE"
        ) from failure
    sha256 = "sha256:" + hashlib.sha256(data).hexdigest()
    with tempfile.TemporaryDirectory(prefix="orch-entry-") as scratch:
        target = Path(scratch) / "tree"
        target.mkdir()
        found = apply(
            patch,
            pack.solution,
            target,
            store=ctx.store,
            exclude=pack.exclude,
            policy=pack.spec.patch,
            expected_sha256=sha256.removeprefix("sha256:"),
        )
    if not isinstance(found, Applied):
        raise TaskPackError(
            "\n".join((f"{patch}: {found.reason}", *_breaches(found))),
            remedy=f"in {pack.solution}: git diff --binary --full-index --relative > FILE",
        )
    base = manifest_of(pack.solution, exclude=pack.exclude)
    before, after = base.by_path(), found.manifest.by_path()
    submission = Submission(
        reason=None,
        origin=SubmissionOrigin.OPERATOR_PATCH,
        patch_sha256=sha256,
        patch_size=len(data),
        manifest_digest=found.manifest_digest,
        base_digest=found.base_digest,
        empty=found.manifest_digest == found.base_digest,
        changed={
            "added": len(after.keys() - before.keys()),
            "deleted": len(before.keys() - after.keys()),
            "modified": sum(before[p] != after[p] for p in before.keys() & after.keys()),
        },
        figures=asdict(found.figures),
        left_out=(),
        accepted_at=ctx.now(),
    )
    return JudgedPatch(data, submission, found.manifest)


def _breaches(found: InvalidPatch | PatchDiffers) -> tuple[str, ...]:
    """Say each breach of the policy in a line."""
    return tuple(map(str, found.violations)) if isinstance(found, InvalidPatch) else ()


def enter_patch(folder: AttemptFolder, judged: JudgedPatch) -> Outcome:
    """Put a judged patch into an attempt as its candidate."""
    submission = judged.submission
    make_folder(folder.candidate, exist_ok=True)
    write_file(folder.patch, judged.data, replace=True)
    write_file(folder.manifest, judged.manifest.to_json(), replace=True)
    save(folder.submission, submission, replace=True)
    return captured(submission)
