"""Offline verification of receipts, in numbered steps, over the stored bytes alone.

1. parse: every receipt is a strict envelope around a strict statement, under its right name;
2. signatures: each is signed by a known key;
3. chain: each names the payload before it, across attempt, replay and scoring;
4. commit: each ``.complete`` matches, and names the last receipt.

What this proves is consistency, not honesty: whoever owns the host can fake what was measured.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from pathlib import Path

from receipts.canonical import sha256_hex
from receipts.complete import Completeness, check
from receipts.envelope import Envelope, parse_envelope, signers
from receipts.errors import KeyUnusableError, MalformedError, SignatureError
from receipts.keys import VerifyingKey, load_public
from receipts.reading import read_file
from receipts.statement import PhaseName, Statement, parse_statement

_RUN = re.compile(r"(?:attempt|replay|score)-[0-9]{3,}")
_CHECKPOINT = re.compile(r"checkpoint-[0-9]{1,12}")
_NAME = re.compile(r"([0-9]{3})-([a-z]+)\.json")
_MAX_RECEIPT = 16 * 1024**2
STEPS = ("parse", "signatures", "chain", "commit")


class Verdict(IntEnum):
    """What verification came to, as the exit code of the command."""

    AUTHENTIC = 0
    FINDING = 1
    UNAUTHENTICATED = 3


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that does not hold; ``step`` is one of ``STEPS``."""

    step: str
    where: Path
    what: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """One receipt as it was read."""

    path: Path
    number: int
    envelope: Envelope
    statement: Statement

    @property
    def digest(self) -> str:
        """What the next receipt names as ``prev``."""
        return f"sha256:{sha256_hex(self.envelope.payload)}"


@dataclass(slots=True)
class Report:
    """What was checked and what was found. ``notes`` are no faults."""

    authenticated: bool
    receipts: int = 0
    runs: int = 0
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        """Any fault is a finding; without a key from elsewhere nothing is authenticated."""
        if self.faults:
            return Verdict.FINDING
        return Verdict.AUTHENTIC if self.authenticated else Verdict.UNAUTHENTICATED


def verify(folder: Path, keys: Sequence[VerifyingKey] = (), task: str | None = None) -> Report:
    """Verify every run under ``folder``: a runs folder, a config, an attempt, replay or scoring.

    Args:
        folder: where to look.
        keys: public halves that the caller trusts; without any, those published beside the runs
            are used, and the verdict is at best "unauthenticated".
        task: the task digest the caller expects; without it the same holds.
    """
    report = Report(authenticated=bool(keys) and task is not None)
    known = tuple(keys) or tuple(_published(folder, report))
    for run in _runs(folder):
        receipts = _parse(run, report)
        if receipts or (run / ".complete").exists():
            report.runs += 1
        report.receipts += len(receipts)
        _signatures(receipts, known, report)
        if task is not None:
            _task(receipts, task, report)
        _chain(run, receipts, report)
        _commit(run, receipts, report)
    if not report.receipts and not report.faults:
        report.faults.append(Fault("parse", folder, "no receipt here"))
    return report


def _runs(folder: Path) -> Iterator[Path]:
    """Walk the layout by name; what a candidate wrote (``out``, ``workspace``) is never entered."""
    if folder.name == "receipts":
        folder = folder.parent
    if _RUN.fullmatch(folder.name):
        yield folder
    for child in sorted(folder.iterdir()):
        below = _RUN.fullmatch(child.name) or (child / "config.json").is_file()
        if below and child.is_dir() and not child.is_symlink():
            yield from _runs(child)


def _published(folder: Path, report: Report) -> Iterator[VerifyingKey]:
    resolved = folder.resolve()
    for place in (resolved, *resolved.parents):
        for path in sorted((place / "keys").glob("*.pem")):
            try:
                key = load_public(path)
            except KeyUnusableError as error:
                report.faults.append(Fault("signatures", path, str(error)))
                continue
            if path.stem == key.keyid:
                yield key
            else:
                report.faults.append(Fault("signatures", path, f"it holds key {key.keyid}"))
        if (place / "keys").is_dir():
            return


def _parse(run: Path, report: Report) -> list[Receipt]:
    folder = run / "receipts"
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        try:
            found.append(_read(path))
        except (MalformedError, OSError) as error:
            report.faults.append(Fault("parse", path, str(error)))
    return found


def _read(path: Path) -> Receipt:
    name = _NAME.fullmatch(path.name)
    if name is None:
        raise MalformedError("not the name of a receipt")
    envelope = parse_envelope(read_file(path, max_bytes=_MAX_RECEIPT))
    statement = parse_statement(envelope.payload)
    if statement.predicate.phase != name.group(2):
        raise MalformedError(f"it is about phase {statement.predicate.phase}")
    return Receipt(path, int(name.group(1)), envelope, statement)


def _signatures(receipts: list[Receipt], keys: tuple[VerifyingKey, ...], report: Report) -> None:
    for receipt in receipts:
        try:
            signers(receipt.envelope, keys)
        except SignatureError as error:
            report.faults.append(Fault("signatures", receipt.path, str(error)))


def _task(receipts: list[Receipt], task: str, report: Report) -> None:
    for receipt in receipts:
        found = receipt.statement.predicate.materials.get("task")
        if found != task:
            report.faults.append(Fault("parse", receipt.path, f"its task is {found}"))


def _chain(run: Path, receipts: list[Receipt], report: Report) -> None:
    if not receipts:
        return
    before = _before(run, report)
    first = receipts[0]
    if before is None and first.statement.predicate.prev is not None:
        if run.name.startswith("attempt-"):
            report.faults.append(Fault("chain", first.path, "it follows one, but is the first"))
        else:
            report.notes.append(f"{first.path}: the receipt it follows is not here")
    for earlier, later in pairwise([*([before] if before else []), *receipts]):
        if later.statement.predicate.prev != earlier.digest:
            fault = Fault("chain", later.path, f"prev is not {earlier.path.name}")
            report.faults.append(fault)
        elif later.number != earlier.number + 1:
            fault = Fault("chain", later.path, f"its number does not follow {earlier.path.name}")
            report.faults.append(fault)


def _before(run: Path, report: Report) -> Receipt | None:
    """Find the receipt that the first one of ``run`` follows.

    A replay follows its attempt's last receipt, a scoring its replay's validate receipt.
    """
    if run.name.startswith("attempt-"):
        return None
    found = _parse(run.resolve().parent, Report(authenticated=False))
    if run.name.startswith("score-") and found:
        validated = [r for r in found if r.statement.predicate.phase is PhaseName.VALIDATE]
        if not validated:
            report.faults.append(Fault("chain", run, "its replay has no validate receipt"))
        found = validated
    return found[-1] if found else None


def _commit(run: Path, receipts: list[Receipt], report: Report) -> None:
    found = check(run / ".complete")
    if found.completeness is Completeness.ABSENT:
        if receipts:
            report.faults.append(Fault("commit", run / ".complete", "missing: not finished"))
    elif found.record is None:
        report.faults.append(Fault("commit", run / ".complete", found.reason))
    elif not receipts or found.record.receipt.name != f"receipts/{receipts[-1].path.name}":
        what = f"it names {found.record.receipt.name}, not the last receipt"
        report.faults.append(Fault("commit", run / ".complete", what))
    if not run.name.startswith("score-"):
        return
    for folder in sorted(run.iterdir()):
        if _CHECKPOINT.fullmatch(folder.name):
            score = check(folder / ".complete")
            if score.completeness in {Completeness.CORRUPT, Completeness.INCOMPLETE}:
                report.faults.append(Fault("commit", folder / ".complete", score.reason))
