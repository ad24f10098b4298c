"""Statements for tests."""

from pathlib import Path

from orchestrator.storage.receipt_folder import Minted, mint, write_complete
from receipts.keys import SigningKey
from receipts.statement import (
    Lifecycle,
    Outcome,
    PhaseName,
    PhasePredicate,
    RunName,
    Statement,
    Subject,
    SubjectDigest,
    Times,
)

TASK = "sha256:" + "7" * 64
DIGEST = "sha256:" + "1" * 64


def statement(phase: PhaseName, prev: str | None, reason: str = "") -> Statement:
    return Statement(
        subject=(Subject(name="out", digest=SubjectDigest(sha256="a" * 64)),),
        predicate=PhasePredicate(
            phase=phase,
            run=RunName(task="t", config="c", attempt=1, run_id="r-1"),
            materials={"task": TASK, "anchor": "tree:v1:" + DIGEST},
            limits={"cpus": 1.5, "memory": 2**31, "swap": None},
            outcome=Outcome(event="exited", state="running", reason=reason),
            times=Times(started="s", ended="e", duration_s=1.25, clock_step=0),
            orchestrator="0.1.0",
            lifecycle=Lifecycle(seq=3, head=DIGEST),
            prev=prev,
        ),
    )


def chain(
    folder: Path, key: SigningKey, phases: tuple[PhaseName, ...], before: Minted | None = None
) -> Minted:
    """Mint receipts of ``phases`` one after the other and commit to the last."""
    for phase in phases:
        number = before.number + 1 if before else 1
        prev = before.digest if before else None
        before = mint(folder / "receipts", number, statement(phase, prev), key)
    assert before
    return before


def finished_runs(runs: Path, key: SigningKey) -> Path:
    """Make the receipts of an attempt, its replay and its scoring; return the scoring's folder."""
    attempt = runs / "config" / "attempt-001"
    scoring = attempt / "replay-001" / "score-001"
    (scoring / "checkpoint-10" / "out").mkdir(parents=True)
    (runs / "config" / "config.json").write_text("{}")
    submit = chain(attempt, key, (PhaseName.EXPLORE, PhaseName.SUBMIT))
    phases = (PhaseName.GATE, PhaseName.REPLAY, PhaseName.VALIDATE)
    validate = chain(scoring.parent, key, phases, submit)
    score = chain(scoring, key, (PhaseName.SCORE,), validate)
    out = scoring / "checkpoint-10" / "out"
    (out / "summary.json").write_text('{"score": 0.5}')
    (out / "official-eval-receipt.json").write_text('{"passed": true}')
    (scoring / "summary.json").write_text('{"best": 0.5}')
    write_complete(attempt / ".complete", submit.path, None)
    write_complete(scoring.parent / ".complete", validate.path, None)
    write_complete(
        out.parent / ".complete", out / "official-eval-receipt.json", out / "summary.json"
    )
    write_complete(scoring / ".complete", score.path, scoring / "summary.json")
    return scoring
