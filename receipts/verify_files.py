"""Step 6: the files on disk against what the receipts say they are."""

import re
from collections.abc import Mapping
from pathlib import Path

from receipts.canonical import sha256_hex
from receipts.errors import MalformedError
from receipts.reading import hash_file, read_file
from receipts.statement import PhaseName
from receipts.tree import MAX_BYTES, MAX_ENTRIES, identity_of, tree_identity
from receipts.verify_model import Receipt, Report, Run, Step
from receipts.verify_records import (
    MAX_RECORD,
    Artifacts,
    Gate,
    Manifest,
    R,
    Submission,
    parse_record,
)

MAX_PATCH = 256 * 1024**2
_CHECKPOINT = re.compile(r"checkpoints/(checkpoint-[0-9]{1,12})")
_FILES: Mapping[PhaseName, re.Pattern[str]] = {
    PhaseName.EXPLORE: re.compile(
        r"gate\.json|telemetry\.jsonl"
        r"|candidate/(?:candidate\.patch|manifest\.json|submission\.json)"
    ),
    PhaseName.SUBMIT: re.compile(r"candidate/(?:candidate\.patch|manifest\.json|submission\.json)"),
    PhaseName.GATE: re.compile(r"gate\.json"),
    PhaseName.REPLAY: re.compile(rf"telemetry\.jsonl|{_CHECKPOINT.pattern}"),
    PhaseName.COLLECT: _CHECKPOINT,
    PhaseName.VALIDATE: re.compile(
        rf"artifacts\.json|gate(?:-validate)?\.json|telemetry\.jsonl|{_CHECKPOINT.pattern}"
    ),
    PhaseName.SCORE: re.compile(
        r"(?:summary|gate)\.json|telemetry\.jsonl"
        r"|checkpoint-[0-9]{1,12}/out/(?:summary|official-eval-receipt)\.json"
    ),
}
"""What each phase may give out; no other path of a receipt is ever opened."""
_TOLD = frozenset({"transcript.jsonl", "exchanges.jsonl", "agent-raw.log"})


class Files:
    """The receipted files of one run, each read once."""

    def __init__(self, run: Run, report: Report) -> None:
        self._run = run
        self._report = report
        self._known: dict[str, bytes | None] = {}

    def check(self, receipt: Receipt) -> None:
        """Compare every file that ``receipt`` names, but for trees."""
        for name, sha256 in receipt.subjects().items():
            if not _FILES[receipt.phase].fullmatch(name):
                what = f"{receipt.phase} gives out no {name}"
                self._report.fault(Step.FILES, receipt.path, what)
            elif not _CHECKPOINT.fullmatch(name):
                data = self._read(name)
                if data is not None and sha256_hex(data) != sha256:
                    path = self._run.folder / name
                    what = f"not the bytes that {receipt.path.name} names"
                    self._report.fault(Step.FILES, path, what)
                    self._known[name] = None

    def record(self, name: str, model: type[R]) -> R | None:
        """Parse a file that was found to be the receipted one."""
        data = self._known.get(name)
        if data is None:
            return None
        try:
            return parse_record(data, model)
        except MalformedError as error:
            self._report.fault(Step.FILES, self._run.folder / name, str(error))
            return None

    def size(self, name: str) -> int | None:
        """Bytes of such a file."""
        data = self._known.get(name)
        return None if data is None else len(data)

    def digest(self, name: str) -> str | None:
        """``sha256:...`` of such a file."""
        data = self._known.get(name)
        return None if data is None else f"sha256:{sha256_hex(data)}"

    def _read(self, name: str) -> bytes | None:
        if name not in self._known:
            path = self._run.folder / name
            limit = MAX_PATCH if name.endswith(".patch") else MAX_RECORD
            self._known[name] = None
            try:
                self._known[name] = read_file(path, max_bytes=limit)
            except FileNotFoundError:
                self._report.fault(Step.FILES, path, "missing")
            except (MalformedError, OSError) as error:
                self._report.fault(Step.FILES, path, str(error))
        return self._known[name]


def check_files(run: Run, report: Report) -> Files:
    """Check the files of ``run`` and return them for the step that recomputes the score."""
    files = Files(run, report)
    for receipt in run.receipts:
        files.check(receipt)
    _check_told(run, report)
    _check_candidate(run, files, report)
    _check_gate(run, files, report)
    _check_artifacts(run, files, report)
    return files


def _check_told(run: Run, report: Report) -> None:
    """Hash what an exploration with a model leaves of it, against what its ending names."""
    receipt = run.receipt(PhaseName.EXPLORE)
    named = receipt.statement.predicate.outcome.details.get("records") if receipt else None
    for name, digest in named.items() if isinstance(named, dict) else ():
        path = run.folder / name
        if name not in _TOLD:
            report.fault(Step.FILES, run.folder, f"an exploration leaves no {name[:80]}")
            continue
        try:
            found = f"sha256:{hash_file(path)}"
        except FileNotFoundError:
            report.fault(Step.FILES, path, "missing")
        except (MalformedError, OSError) as error:
            report.fault(Step.FILES, path, str(error))
        else:
            if found != digest:
                report.fault(Step.FILES, path, "not the bytes that the exploration's ending names")


def check_assets(run: Run, known: dict[tuple[str, str], bool], report: Report) -> None:
    """Hash the assets of a plan again, where they lie on this host; ``known`` were hashed."""
    for path, material in sorted(run.plan.materials.items() if run.plan else ()):
        source = Path(material.source)
        key = (material.source, material.digest)
        if not source.is_absolute() or not source.is_dir():
            report.note(run.folder, f"asset {path}: absent by policy, digest receipted")
        elif key not in known:
            known[key] = True
            try:
                found = tree_identity(source.resolve())
            except (MalformedError, OSError) as error:
                report.fault(Step.FILES, source, str(error))
                continue
            if found != material.digest:
                report.fault(Step.FILES, source, f"asset {path} is {found}")


def _check_candidate(run: Run, files: Files, report: Report) -> None:
    """Compute the manifest's digest again, and hold the submission against the three files."""
    folder = run.folder / "candidate"
    manifest = files.record("candidate/manifest.json", Manifest)
    submission = files.record("candidate/submission.json", Submission)
    if manifest is not None and identity_of(manifest.entries) != manifest.digest:
        report.fault(
            Step.FILES, folder / "manifest.json", "its entries are not those of its digest"
        )
    if submission is None:
        return
    rules = (
        ("patch", files.digest("candidate/candidate.patch"), submission.patch_sha256),
        ("patch size", files.size("candidate/candidate.patch"), submission.patch_size),
        ("manifest", manifest and manifest.digest, submission.manifest_digest),
    )
    for word, found, wanted in rules:
        if found is not None and found != wanted:
            report.fault(Step.FILES, folder / "submission.json", f"its {word} is another")
    submit = run.receipt(PhaseName.SUBMIT)
    if submit is None:
        return
    for name, digest in (
        ("manifest", submission.manifest_digest),
        ("base", submission.base_digest),
    ):
        if submit.materials.get(name) != digest:
            report.fault(Step.FILES, submit.path, f"its {name} is not that of submission.json")


def _check_gate(run: Run, files: Files, report: Report) -> None:
    """Check that the gate's evidence says what the journal says."""
    had = {
        device.uuid for receipt in run.receipts for device in receipt.statement.predicate.devices
    }
    given: set[str] = set()
    for name in ("gate.json", "gate-validate.json"):
        gate = files.record(name, Gate)
        if gate is None or run.journal is None:
            continue
        path = run.folder / name
        # The evidence is written first: orch may be killed before it has told the journal.
        if name == "gate.json" and run.journal.has("gate_passed") and not gate.passed:
            report.fault(Step.FILES, path, "the journal says it was passed, and it says it was not")
        if gate.passed and not all(check.passed for check in gate.checks):
            report.fault(Step.FILES, path, "passed, with a check that was not")
        given |= set(gate.gpus)
    for uuid in sorted(had - given):
        report.fault(Step.FILES, run.folder, f"GPU {uuid} was used, and no gate has let it through")


def _check_artifacts(run: Run, files: Files, report: Report) -> None:
    """Hash the collected checkpoints, and hold the table of verdicts against the receipts."""
    artifacts = files.record("artifacts.json", Artifacts)
    rows = {a.name: a for a in artifacts.artifacts} if artifacts else {}
    given: dict[str, str] = {}
    for receipt in run.receipts:
        for name, sha256 in receipt.subjects().items():
            if match := _CHECKPOINT.fullmatch(name):
                given[match.group(1)] = sha256
    for name, sha256 in sorted(given.items()):
        folder = run.folder / "checkpoints" / name
        row = rows.get(name)
        _check_tree(
            folder,
            sha256,
            files=row.files if row and row.files is not None else MAX_ENTRIES,
            size=row.size if row and row.size is not None else MAX_BYTES,
            report=report,
        )
    validated = run.receipt(PhaseName.VALIDATE)
    if artifacts is None or validated is None:
        return
    accepted = {
        f"checkpoints/{a.name}": (a.digest or "").rpartition(":")[2]
        for a in artifacts.artifacts
        if a.status == "accepted"
    }
    said = {k: v for k, v in validated.subjects().items() if k.startswith("checkpoints/")}
    path = run.folder / "artifacts.json"
    if accepted != said:
        report.fault(Step.FILES, path, "it accepts other checkpoints than the receipt")
    attempt = run.attempt_plan()
    if attempt is not None and len(accepted) > attempt.task.checkpoints.keep:
        report.fault(Step.FILES, path, "it accepts more checkpoints than the task keeps")
    for row in artifacts.artifacts:
        if row.progress is not None and row.name.rpartition("-")[2].lstrip("0") != (
            str(row.progress).lstrip("0")
        ):
            report.fault(Step.FILES, path, f"{row.name} has progress {row.progress}")


def _check_tree(folder: Path, sha256: str, *, files: int, size: int, report: Report) -> None:
    if not folder.exists() and not folder.is_symlink():
        report.note(folder, "absent by policy, digest receipted")
        return
    try:
        found = tree_identity(folder, max_entries=files, max_bytes=size)
    except (MalformedError, OSError) as error:
        report.fault(Step.FILES, folder, str(error))
        return
    if found != f"tree:v1:sha256:{sha256}":
        report.fault(Step.FILES, folder, f"it is {found}, receipted is {sha256}")
