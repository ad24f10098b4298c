"""Step 7: the score computed again, from the receipted summaries to the printed best."""

from collections.abc import Sequence
from pathlib import Path

from receipts.statement import PhaseName
from receipts.verify_files import Files
from receipts.verify_model import Kind, Report, Run, Step
from receipts.verify_records import (
    Aggregate,
    Number,
    OfficialReceipt,
    PlannedCheckpoint,
    Scored,
    ScoringPlan,
    Summary,
)


def check_score(run: Run, files: Files, report: Report) -> None:
    """Check a scoring's summaries, its aggregate, and what its journal says of them."""
    plan = run.scoring_plan()
    if run.kind is not Kind.SCORING or plan is None:
        return
    summaries = {
        checkpoint.name: found
        for checkpoint in plan.checkpoints
        if (found := _summary(run, plan, checkpoint, files, report)) is not None
    }
    path = run.folder / "summary.json"
    aggregate = files.record("summary.json", Aggregate)
    ending = run.ending
    if aggregate is None:
        if ending is not None and ending.event in {"scored", "invalid", "unscorable"}:
            report.fault(Step.SCORE, path, "there is no receipted score")
        return
    for word, said, wanted in (
        ("metric", aggregate.metric, plan.metric),
        ("direction", aggregate.direction, plan.direction),
        ("official", aggregate.official, plan.official),
        ("relaxations", aggregate.relaxations, plan.relaxations),
        (
            "order",
            [c.checkpoint for c in aggregate.checkpoints],
            [c.name for c in plan.checkpoints],
        ),
    ):
        if said != wanted:
            report.fault(Step.SCORE, path, f"its {word} is not the plan's")
    for row in aggregate.checkpoints:
        _check_row(path, row, summaries.get(row.checkpoint), files, report)
    best = best_of(aggregate.checkpoints, plan.direction)
    if aggregate.best != best:
        said_best = aggregate.best.checkpoint if aggregate.best else "none"
        what = f"its best is {said_best}, computed is {best.checkpoint if best else 'none'}"
        report.fault(Step.SCORE, path, what)
    if (aggregate.status == "scored") != (best is not None):
        report.fault(Step.SCORE, path, f"its status is {aggregate.status}")
    if ending is not None and (
        ending.event != aggregate.status
        or ending.data.get("best") != (best.checkpoint if best else None)
        or ending.data.get("value") != (best.value if best else None)
    ):
        report.fault(Step.SCORE, path, "the journal tells another score")
    report.note(path, _told(aggregate))


def _told(aggregate: Aggregate) -> str:
    """Say which figure was checked, whether it is official, and what was not computed again."""
    best = aggregate.best
    figure = aggregate.status if best is None else f"{best.value} ({best.checkpoint})"
    standing = "official" if aggregate.official else f"local: {'; '.join(aggregate.relaxations)}"
    return (
        f"{aggregate.metric} {figure}, by the evaluator's own formula: "
        f"not recomputed from components; {standing}"
    )


def best_of(scores: Sequence[Scored], direction: str) -> Scored | None:
    """Pick the best valid score; equal values go to the later progress. None when none is valid."""
    valid = [s for s in scores if s.status == "scored" and s.value is not None]
    sign = 1.0 if direction == "max" else -1.0
    return max(valid, key=lambda s: (sign * (s.value or 0.0), s.progress), default=None)


def _summary(
    run: Run, plan: ScoringPlan, checkpoint: PlannedCheckpoint, files: Files, report: Report
) -> Summary | None:
    """Check one checkpoint's summary and official receipt; None where there is none."""
    place = f"{checkpoint.name}/out"
    path = run.folder / place / "summary.json"
    summary = files.record(f"{place}/summary.json", Summary)
    if summary is None:
        return None
    measured = summary.metrics.get(plan.metric)
    value = measured.value if isinstance(measured, Number) else None
    for word, said, wanted in (
        ("checkpoint", summary.checkpoint, checkpoint.name),
        ("progress", summary.progress, checkpoint.progress),
        ("checkpoint digest", summary.checkpoint_digest, checkpoint.digest),
        ("metric", summary.metric, plan.metric),
        ("direction", summary.direction, plan.direction),
        ("value", summary.value, value if summary.status == "scored" else None),
    ):
        if said != wanted:
            report.fault(Step.SCORE, path, f"its {word} is not what it should be")
    if summary.status == "scored" and summary.value is None:
        report.fault(Step.SCORE, path, "scored, without a finite value")
    _check_official(run, plan, checkpoint, files, report)
    return summary


def _check_official(
    run: Run, plan: ScoringPlan, checkpoint: PlannedCheckpoint, files: Files, report: Report
) -> None:
    place = f"{checkpoint.name}/out"
    path = run.folder / place / "official-eval-receipt.json"
    official = files.record(f"{place}/official-eval-receipt.json", OfficialReceipt)
    receipt = run.receipt(PhaseName.SCORE)
    if official is None:
        report.fault(Step.SCORE, path, "there is no receipted official receipt")
        return
    materials = receipt.materials if receipt else {}
    seen = {name.partition(":")[2]: d for name, d in materials.items() if ":" in name}
    for word, said, wanted in (
        ("passed", official.passed, True),
        ("checkpoint", official.checkpoint, checkpoint.name),
        ("checkpoint digest", official.checkpoint_digest, checkpoint.digest),
        ("evaluator", official.evaluator_digest, plan.evaluator_digest),
        ("image", official.image, plan.image.digest),
        ("materials", official.materials, seen),
        ("summary", official.summary_sha256, files.digest(f"{place}/summary.json")),
    ):
        if said != wanted:
            report.fault(Step.SCORE, path, f"its {word} is not what it should be")


def _check_row(
    path: Path, row: Scored, summary: Summary | None, files: Files, report: Report
) -> None:
    """Check one line of the aggregate against the summary it stands for."""
    if summary is None:
        if row.status != "unscorable":
            report.fault(Step.SCORE, path, f"{row.checkpoint} has no summary")
        return
    for word, said, wanted in (
        ("status", row.status, summary.status),
        ("value", row.value, summary.value),
        ("progress", row.progress, summary.progress),
        ("summary", row.summary_sha256, files.digest(f"{row.checkpoint}/out/summary.json")),
    ):
        if said != wanted:
            report.fault(Step.SCORE, path, f"the {word} of {row.checkpoint} is not its summary's")
