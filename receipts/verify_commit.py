"""Step 10: the commit records."""

from receipts.complete import Completeness, check
from receipts.verify_model import Kind, Report, Run, Step


def check_commit(run: Run, report: Report) -> None:
    """Check ``.complete`` of a run, and of each checkpoint that a scoring has scored."""
    marker = run.folder / ".complete"
    found = check(marker)
    if found.completeness is Completeness.ABSENT:
        if run.ending is not None and run.receipts:
            what = "missing: the run has ended, and the next writing command of orch finishes it"
            report.fault(Step.COMMIT, marker, what)
    elif found.completeness is Completeness.INCOMPLETE and run.going_on:
        report.note(marker, "not yet: the run goes on")
    elif found.record is None:
        report.fault(Step.COMMIT, marker, found.reason)
    elif not run.receipts or found.record.receipt.name != f"receipts/{run.receipts[-1].path.name}":
        what = f"it names {found.record.receipt.name}, not the last receipt"
        report.fault(Step.COMMIT, marker, what)
    elif run.ending is None:
        report.fault(Step.COMMIT, marker, "committed, but its journal has no ending")
    if run.kind is Kind.SCORING:
        _check_checkpoints(run, report)


def _check_checkpoints(run: Run, report: Report) -> None:
    """Check the marker of every checkpoint whose score the journal tells of, or that has one."""
    scored = {
        str(line.data.get("checkpoint"))
        for line in (run.journal.lines if run.journal else ())
        if line.event == "checkpoint_scored"
    }
    plan = run.scoring_plan()
    for name in [checkpoint.name for checkpoint in plan.checkpoints] if plan else ():
        if "/" in name or name.startswith("."):
            continue
        marker = run.folder / name / ".complete"
        found = check(marker)
        if found.completeness is Completeness.ABSENT and name in scored:
            report.fault(Step.COMMIT, marker, "missing, and the journal says it was scored")
        elif found.completeness in {Completeness.CORRUPT, Completeness.INCOMPLETE}:
            report.fault(Step.COMMIT, marker, found.reason)
        elif found.record is not None and (
            found.record.receipt.name != "out/official-eval-receipt.json"
            or found.record.summary is None
            or found.record.summary.name != "out/summary.json"
        ):
            report.fault(Step.COMMIT, marker, "it commits to other files than a score's")
