"""Steps 2 to 4: signatures, which receipts there must be, and how each follows the one before."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from types import MappingProxyType

from receipts.envelope import signers
from receipts.errors import KeyUnusableError, SignatureError
from receipts.keys import VerifyingKey, load_public
from receipts.statement import PhaseName
from receipts.verify_model import Kind, Receipt, Report, Run, Step

MAX_KEYS = 1000
_ALLOWED: Mapping[str, frozenset[PhaseName]] = MappingProxyType(
    {
        "explore": frozenset(PhaseName) - {PhaseName.COLLECT},
        "patch": frozenset(PhaseName) - {PhaseName.EXPLORE, PhaseName.COLLECT},
        "checkpoint": frozenset(
            {PhaseName.SUBMIT, PhaseName.COLLECT, PhaseName.VALIDATE, PhaseName.SCORE}
        ),
    }
)
"""What an entry may lead to; how far a run came, its journal says."""


def check_signatures(
    runs: Sequence[Run], keys: tuple[VerifyingKey, ...], home: Path, report: Report
) -> None:
    """Check every signature by the trusted ``keys``, or by those published beside the runs."""
    known = keys or tuple(_published(home / "keys", report))
    for receipt in (receipt for run in runs for receipt in run.receipts):
        try:
            signers(receipt.envelope, known)
        except SignatureError as error:
            report.fault(Step.SIGNATURES, receipt.path, str(error))


def _published(folder: Path, report: Report) -> Iterator[VerifyingKey]:
    paths = sorted(islice(folder.glob("*.pem"), MAX_KEYS + 1))
    if len(paths) > MAX_KEYS:
        report.fault(Step.SIGNATURES, folder, f"more than {MAX_KEYS} keys; not all were read")
    for path in paths[:MAX_KEYS]:
        try:
            key = load_public(path)
        except KeyUnusableError as error:
            report.fault(Step.SIGNATURES, path, str(error))
            continue
        if path.stem == key.keyid:
            yield key
        else:
            report.fault(Step.SIGNATURES, path, f"it holds key {key.keyid}")


def check_phases(run: Run, report: Report) -> None:
    """Compare the receipts with what the journal calls for."""
    if run.bare:
        return
    if run.journal is None:
        report.fault(
            Step.PHASES, run.folder, "no journal, so nobody can say which receipts belong here"
        )
        return
    if run.going_on and not run.receipts:
        report.going_on += 1
        report.note(run.folder, "in progress: its receipts are made when it has ended")
        return
    called = _called_for(run) if run.ending is not None else []
    found = [receipt.phase for receipt in run.receipts]
    if found != called:
        said = ", ".join(called) or "none"
        report.fault(
            Step.PHASES,
            run.folder / "receipts",
            f"the journal calls for {said}; here is {', '.join(found) or 'none'}",
        )
    attempt = run.attempt_plan()
    if attempt is None:
        return
    for phase in called:
        if phase not in _ALLOWED[attempt.entry]:
            what = f"entry {attempt.entry} has no phase {phase}"
            report.fault(Step.PHASES, run.folder, what)


def _called_for(run: Run) -> list[PhaseName]:
    """List the receipts of an ended run, in order; ``pipeline/finish.py`` mints them."""
    assert run.journal is not None  # noqa: S101 - the caller has looked
    has = run.journal.has
    attempt = run.attempt_plan()
    explored = run.kind is Kind.ATTEMPT and (attempt is None or attempt.entry == "explore")
    replay, scoring = run.kind is Kind.REPLAY, run.kind is Kind.SCORING
    rules = (
        (PhaseName.EXPLORE, explored),
        (PhaseName.SUBMIT, has("submitted")),
        (PhaseName.GATE, replay and has("gate_started")),
        (PhaseName.REPLAY, has("run_started")),
        (PhaseName.COLLECT, has("collected") and not has("run_started")),
        (PhaseName.VALIDATE, has("collected")),
        (PhaseName.SCORE, scoring and has("gate_started")),
    )
    return [phase for phase, called in rules if called]


def check_chain(run: Run, report: Report) -> None:
    """Check who each receipt follows, its number, and that all speak of this run."""
    _check_place(run, report)
    for receipt in run.receipts:
        _check_name(run, receipt, report)
    if not run.receipts:
        return
    first = run.receipts[0]
    before = _before(run, report)
    if before is None:
        if run.kind is Kind.ATTEMPT or run.parent is not None:
            if first.statement.predicate.prev is not None:
                report.fault(Step.CHAIN, first.path, "it follows one, but is the first")
            if first.number != 1:
                report.fault(Step.CHAIN, first.path, "the first receipt is not number 1")
        else:
            report.note(first.path, "the receipt it follows is not here")
    for earlier, later in pairwise([*([before] if before else []), *run.receipts]):
        if later.statement.predicate.prev != earlier.digest:
            report.fault(Step.CHAIN, later.path, f"prev is not {earlier.path.name}")
        elif later.number != earlier.number + 1:
            what = f"its number does not follow {earlier.path.name}"
            report.fault(Step.CHAIN, later.path, what)


def _before(run: Run, report: Report) -> Receipt | None:
    """Find the receipt that the first one of ``run`` follows.

    A replay follows its attempt's last receipt, a scoring its replay's validate receipt.
    """
    if run.parent is None or not run.parent.receipts:
        return None
    last = run.parent.receipts[-1]
    if run.kind is Kind.SCORING and last.phase is not PhaseName.VALIDATE:
        report.fault(Step.CHAIN, run.folder, "its replay has no validate receipt at its end")
    return last


def _check_place(run: Run, report: Report) -> None:
    """Check that the plan is of this folder, and of the run above it."""
    plan = run.plan
    if plan is None:
        return
    path = run.folder / "plan.json"
    if plan.number != run.number:
        report.fault(Step.CHAIN, path, f"it is of number {plan.number}")
    if run.journal is not None and run.journal.lines and run.journal.lines[0].id != plan.run_id:
        report.fault(Step.CHAIN, path, f"its journal is of run {run.journal.lines[0].id}")
    above = run.parent.plan.run_id if run.parent and run.parent.plan else None
    attempt, replay, scoring = run.attempt_plan(), run.replay_plan(), run.scoring_plan()
    if run.kind is Kind.ATTEMPT and attempt and attempt.config != run.folder.parent.name:
        report.fault(Step.CHAIN, path, f"it is of config {attempt.config}")
    if run.kind is Kind.REPLAY and replay and above not in {None, replay.attempt_id}:
        report.fault(Step.CHAIN, path, f"it is of attempt {replay.attempt_id}")
    if scoring and above not in {None, scoring.replay_id}:
        report.fault(Step.CHAIN, path, f"it is of replay {scoring.replay_id}")


def _check_name(run: Run, receipt: Receipt, report: Report) -> None:
    """Check that a receipt names this run, by its plan and by where it lies."""
    said = receipt.statement.predicate.run
    numbers = {above.kind: above.number for above in run.line()}
    attempt, replay = run.attempt_plan(), run.replay_plan()
    rules = (
        ("run", said.run_id, run.plan.run_id if run.plan else None),
        ("task", said.task, attempt.task.name if attempt else None),
        ("config", said.config, attempt.config if attempt else None),
        ("attempt", said.attempt, numbers.get(Kind.ATTEMPT)),
        ("replay", said.replay, numbers.get(Kind.REPLAY)),
        ("scoring", said.scoring, numbers.get(Kind.SCORING)),
        ("series", said.series, replay.series if replay else None),
    )
    for word, found, wanted in rules:
        if wanted is not None and found != wanted:
            report.fault(Step.CHAIN, receipt.path, f"it is about {word} {found}, not {wanted}")
