"""Score: the task's evaluator over each accepted checkpoint, alone with the final-role data.

Three endings per checkpoint: scored, invalid (the evaluator's reason, a number that is not finite,
or the start handed in), crash. A crash is the scoring's own failure, re-run as a new number; after
two numbered tries in which the start passes and the candidate does not, it is ``unscorable``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from orchestrator.domain.outputs import EvaluatorOutput
from orchestrator.domain.records import (
    Aggregate,
    AggregateStatus,
    Nonfinite,
    Number,
    OfficialReceipt,
    PlannedCheckpoint,
    ScoredCheckpoint,
    ScoreStatus,
    ScoringPlan,
    Summary,
    best_of,
)
from orchestrator.domain.roles import DataRole, Phase, is_visible
from orchestrator.errors import AssetMismatchError, InfrastructureError
from orchestrator.evidence.context import Context, Outcome, load_json_size_capped, save
from orchestrator.evidence.observer import Subject
from orchestrator.evidence.oneshot import Check, Checked, make_logs, scratch_size
from orchestrator.evidence.rooms import Rooms
from orchestrator.evidence.tree import stat_identity, tree_digest
from orchestrator.lifecycle.machine import Event
from orchestrator.sandbox import script_argv
from orchestrator.storage.campaign import CampaignEvent
from orchestrator.storage.durable import make_folder
from orchestrator.storage.journal import Journal
from orchestrator.storage.layout import CheckpointScore, ScoringFolder
from orchestrator.storage.ledger import Reservation
from orchestrator.storage.pack import Pack
from orchestrator.storage.receipt_folder import write_complete
from receipts.canonical import sha256_hex

EVALUATOR = "/opt/evaluator"
OUTPUT = "summary.json"
CRASHES_FOR_UNSCORABLE = 2


@dataclass(slots=True)
class _Scoring:
    ctx: Context
    plan: ScoringPlan
    folder: ScoringFolder
    journal: Journal
    check: Check
    rooms: Rooms
    wall: float
    crashes: Mapping[str, int]
    start_passes: bool | None = None
    """What the control came to; it is run once, when the first checkpoint needs it."""


def run(
    ctx: Context,
    plan: ScoringPlan,
    pack: Pack,
    folder: ScoringFolder,
    journal: Journal,
    held: Reservation,
    crashes: Mapping[str, int],
) -> Outcome:
    """Score every planned checkpoint and write the aggregate.

    Args:
        crashes: how often each checkpoint's evaluation crashed in earlier numbered tries.

    Raises:
        InfrastructureError: an evaluation crashed; nothing but this scoring has failed.
        AssetMismatchError: a checkpoint is not the one the validator accepted.
    """
    with Rooms(ctx, folder.logs / "host", held) as rooms:
        rooms.open_scratch(folder.root / "scratch", scratch_size(pack.spec, Phase.SCORE))
        need = plan.resources
        scoring = _Scoring(
            ctx=ctx,
            plan=plan,
            folder=folder,
            journal=journal,
            rooms=rooms,
            wall=plan.wall,
            crashes=crashes,
            check=Check(
                ctx=ctx,
                plan=plan,
                phase=Phase.SCORE,
                resources=need,
                argv=script_argv(pack.spec.score.command, EVALUATOR),
                mounts=(pack.script_mount(pack.spec.score.command, EVALUATOR),),
                env={"ORCH_REFERENCE_RUN": "1"} if plan.reference_run else {},
                held=held,
                output=OUTPUT,
                subject=Subject.of(Phase.SCORE, folder, pack.spec, held),
                log_mode=0o600,
                scratch=pack.spec.score.scratch,
            ),
        )
        journal.append(Event.SCORE_STARTED, checkpoints=[c.name for c in plan.checkpoints])
        scores = tuple(_score(scoring, checkpoint) for checkpoint in plan.checkpoints)
    return _aggregate(scoring, scores)


def _score(scoring: _Scoring, checkpoint: PlannedCheckpoint) -> ScoredCheckpoint:
    """Evaluate one checkpoint and make its three files durable, the marker last."""
    source = scoring.folder.replay.checkpoints / checkpoint.name
    before = stat_identity(source)
    found_digest = tree_digest(source)
    if found_digest != checkpoint.digest:
        raise AssetMismatchError(
            f"{checkpoint.name} is {found_digest}, the validator accepted {checkpoint.digest}",
            remedy="its bytes changed after validation; start a new replay",
        )
    found = _evaluate(scoring, source, checkpoint.name)
    if stat_identity(source) != before:
        raise AssetMismatchError(
            f"{checkpoint.name} was touched while it was scored",
            remedy=f"see who writes to {source}; orch score tries again",
        )
    output = _parse(found)
    if output is None:
        return _crashed(scoring, checkpoint, found)
    summary = _summary(scoring.plan, checkpoint, output)
    place = scoring.folder.checkpoint(checkpoint.name)
    sha256 = _publish(scoring, place, summary, found)
    scored = ScoredCheckpoint(
        checkpoint=checkpoint.name,
        progress=checkpoint.progress,
        status=summary.status,
        value=summary.value,
        reason=summary.reason,
        summary_sha256=sha256,
    )
    scoring.journal.append(Event.CHECKPOINT_SCORED, **scored.model_dump(mode="json"))
    return scored


def _evaluate(scoring: _Scoring, source: Path, tag: str) -> Checked:
    """Run the evaluator once; the mount of final-role data is registered before it happens."""
    scoring.ctx.campaign.append(
        CampaignEvent.FINAL_MOUNTED, run_id=scoring.plan.run_id, checkpoint=tag
    )
    logs = make_logs(scoring.folder.logs, tag)
    scoring.ctx.say(f"scoring {tag}")
    return scoring.check.run(scoring.rooms, source, tag, logs, scoring.wall)


def _parse(found: Checked) -> EvaluatorOutput | None:
    if found.crash or found.output is None:
        return None
    try:
        return EvaluatorOutput.model_validate(load_json_size_capped(found.output))
    except (ValueError, ValidationError):
        return None


def _crashed(scoring: _Scoring, checkpoint: PlannedCheckpoint, found: Checked) -> ScoredCheckpoint:
    """Book a crash: this scoring's failure, or unscorable when the start passes its control.

    Raises:
        InfrastructureError: it is the first try, or the control fails too.
    """
    why = found.crash or "bad_output"
    scoring.journal.append(
        Event.NOTED, crash=why, checkpoint=checkpoint.name, exit_code=found.ending.facts.exit_code
    )
    tries = scoring.crashes.get(checkpoint.name, 0) + 1
    if tries >= CRASHES_FOR_UNSCORABLE and _control_passes(scoring):
        return ScoredCheckpoint(
            checkpoint=checkpoint.name,
            progress=checkpoint.progress,
            status="unscorable",
            value=None,
            reason=f"evaluator_{why} in {tries} numbered tries; the start passes",
        )
    raise InfrastructureError(
        f"score_crashed: the evaluator {_CRASHES[why]} on {checkpoint.name}",
        remedy=(
            f"see {scoring.folder.logs / checkpoint.name} (it may hold final rows); the replay is "
            f"untouched: orch score {scoring.folder.replay.root}{scoring.plan.option} tries again"
        ),
    )


_CRASHES = {
    "timeout": "did not end in its time",
    "out_of_disk": "filled its disk",
    "out_of_memory": "ran out of memory",
    "crashed": "crashed",
    "no_output": "wrote no summary.json",
    "bad_output": "wrote a summary.json that is not as docs/tasks.md asks",
}
"""What is said of each way to crash."""


def _control_passes(scoring: _Scoring) -> bool:
    """Tell whether the evaluator works on the start."""
    if scoring.start_passes is None:
        scoring.start_passes = _try_start(scoring)
    return scoring.start_passes


def _try_start(scoring: _Scoring) -> bool:
    """Evaluate the start (as a reference run) the same way; the evaluator re-measures both points.

    The start is an anchor that the task makes visible to score.
    """
    starts = [
        material
        for material in scoring.plan.materials.values()
        if material.role is DataRole.ANCHOR
        and is_visible(material.role, Phase.SCORE, frozenset(material.also))
    ]
    if not starts:
        return False
    control = scoring.check.with_env({"ORCH_REFERENCE_RUN": "1"})
    scoring.ctx.campaign.append(
        CampaignEvent.FINAL_MOUNTED, run_id=scoring.plan.run_id, checkpoint="control"
    )
    logs = make_logs(scoring.folder.logs, "control")
    found = control.run(scoring.rooms, Path(starts[0].source), "control", logs, scoring.wall)
    return _parse(found) is not None


def _summary(plan: ScoringPlan, checkpoint: PlannedCheckpoint, output: EvaluatorOutput) -> Summary:
    """Write down the evaluator's numbers; a primary metric that is not finite is invalid."""
    status, reason = output.status, output.reason
    primary = output.metrics.get(plan.metric)
    value = float(primary) if isinstance(primary, float) and math.isfinite(primary) else None
    if status is ScoreStatus.SCORED and value is None:
        status, reason = ScoreStatus.INVALID, _why_no_value(plan.metric, primary)
    return Summary(
        checkpoint=checkpoint.name,
        progress=checkpoint.progress,
        checkpoint_digest=checkpoint.digest,
        status=status,
        reason=reason,
        metric=plan.metric,
        direction=plan.direction,
        value=value if status is ScoreStatus.SCORED else None,
        metrics={
            name: tuple(map(Number.of, raw)) if isinstance(raw, tuple) else Number.of(raw)
            for name, raw in output.metrics.items()
        },
        baselines={
            point: {name: Number.of(raw) for name, raw in values.items()}
            for point, values in output.baselines.items()
        },
    )


def _why_no_value(metric: str, primary: float | tuple[float, ...] | None) -> str:
    if isinstance(primary, float):
        kind = Number.of(primary).nonfinite or Nonfinite.NAN
        return f"nonfinite_metric: {metric} is {kind.value}"
    return f"missing_metric: the evaluator gave no number for {metric}"


def _publish(scoring: _Scoring, place: CheckpointScore, summary: Summary, found: Checked) -> str:
    ctx, plan = scoring.ctx, scoring.plan
    for folder in (place.root, place.summary.parent):
        make_folder(folder, exist_ok=True)
    save(place.summary, summary)
    sha256 = "sha256:" + sha256_hex(place.summary.read_bytes())
    receipt = OfficialReceipt(
        passed=True,
        checkpoint=summary.checkpoint,
        checkpoint_digest=summary.checkpoint_digest,
        evaluator_digest=plan.evaluator_digest,
        image=plan.image.digest,
        materials={
            path: material.digest
            for path, material in plan.materials.items()
            if is_visible(material.role, Phase.SCORE, frozenset(material.also))
        },
        exit_code=found.ending.facts.exit_code or 0,
        summary_sha256=sha256,
        local=plan.relaxations,
        started=found.ending.started,
        ended=found.ending.ended,
    )
    save(place.official_receipt, receipt)
    write_complete(place.complete, place.official_receipt, place.summary)
    said = summary.reason if summary.value is None else f"{summary.value:.6g}"
    ctx.say(f"{summary.checkpoint}: {summary.status.value} {said}")
    return sha256


def _aggregate(scoring: _Scoring, scores: tuple[ScoredCheckpoint, ...]) -> Outcome:
    plan = scoring.plan
    best = best_of(scores, plan.direction)
    status, event = _STATUS[_worst(scores) if best is None else ScoreStatus.SCORED]
    aggregate = Aggregate(
        status=status,
        metric=plan.metric,
        direction=plan.direction,
        best=best,
        checkpoints=scores,
        official=plan.official,
        relaxations=plan.relaxations,
    )
    save(scoring.folder.summary, aggregate)
    return Outcome(
        event,
        {
            "best": None if best is None else best.checkpoint,
            "value": None if best is None else best.value,
            "reason": "" if best is not None else "; ".join(s.reason for s in scores),
            "summary_sha256": "sha256:" + sha256_hex(scoring.folder.summary.read_bytes()),
        },
    )


_STATUS = {
    ScoreStatus.SCORED: (AggregateStatus.SCORED, Event.SCORED),
    ScoreStatus.INVALID: (AggregateStatus.INVALID, Event.INVALID),
    "unscorable": (AggregateStatus.UNSCORABLE, Event.UNSCORABLE),
}


def _worst(scores: tuple[ScoredCheckpoint, ...]) -> ScoreStatus | str:
    """Without a valid score: unscorable when any is, else invalid."""
    if any(s.status == "unscorable" for s in scores):
        return "unscorable"
    return ScoreStatus.INVALID
