"""A verification as text and as JSON. Everything beyond printable ASCII is escaped."""

from collections.abc import Iterator
from typing import Any

from receipts.verify_model import PROVES, Report, Step, Verdict

_WORDS = {
    Verdict.AUTHENTIC: "verified: consistent, and signed by the given keys for the given task",
    Verdict.FINDING: "FINDING: does not hold",
    Verdict.UNAUTHENTICATED: "consistent, unauthenticated (give both --key and --task DIGEST)",
}
_OPEN = "selection not excluded: no published head of the campaign log was compared"
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), 127)}


def lines(report: Report) -> Iterator[str]:
    """Tell what each step came to, the notes and the verdict."""
    going_on = f", {report.going_on} of them in progress" if report.going_on else ""
    yield f"{report.receipts} receipts of {report.runs} runs{going_on}"
    for number, step in enumerate(Step, start=1):
        faults = [fault for fault in report.faults if fault.step is step]
        said = _counted(report, len(faults))
        yield f"{number:2}. {step:<10} {said:<12} {PROVES[step]}"
        for fault in faults:
            yield ascii_only(f"      {fault.where}: {fault.what}")
    if report.more_faults:
        yield f"and {report.more_faults} findings more"
    for note in report.notes:
        yield ascii_only(f"note: {note}")
    yield report.selection or _OPEN
    yield f"verdict: {_WORDS[report.verdict]}"


def _counted(report: Report, faults: int) -> str:
    if not faults:
        return "holds" if report.runs else "no run"
    return "1 finding" if faults == 1 else f"{faults} findings"


def document(report: Report) -> dict[str, Any]:
    """Return the same as one JSON document."""
    return {
        "verdict": report.verdict.name.lower(),
        "exit": report.verdict.value,
        "receipts": report.receipts,
        "runs": report.runs,
        "in_progress": report.going_on,
        "selection": report.selection or _OPEN,
        "steps": [
            {
                "number": number,
                "step": step.value,
                "proves": PROVES[step],
                "findings": [
                    {"where": ascii_only(str(fault.where)), "what": ascii_only(fault.what)}
                    for fault in report.faults
                    if fault.step is step
                ],
            }
            for number, step in enumerate(Step, start=1)
        ],
        "more_findings": report.more_faults,
        "notes": [ascii_only(note) for note in report.notes],
    }


def ascii_only(text: str) -> str:
    """Escape what could steer a terminal: file names and fields are not ours."""
    return text.encode("ascii", "backslashreplace").decode().translate(_CONTROLS)
