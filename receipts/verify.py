"""Offline verification of receipts, in numbered steps, over the stored bytes alone.

Read this file from top to bottom: each step is one call, and ``PROVES`` says what it proves.

What all of it together proves is consistency, not honesty: whoever owns the host can fake what was
measured (docs/verification.md).
"""

from pathlib import Path

from receipts.verify_campaign import check_campaign, check_journal
from receipts.verify_chain import check_chain, check_phases, check_signatures
from receipts.verify_commit import check_commit
from receipts.verify_edges import check_edges
from receipts.verify_files import check_assets, check_files
from receipts.verify_find import find
from receipts.verify_model import Report, Step, Wanted
from receipts.verify_score import check_score


def verify(folder: Path, wanted: Wanted = Wanted()) -> Report:  # noqa: B008 - it is frozen
    """Verify every run under ``folder``, and those above that it rests on.

    Args:
        folder: a runs folder, a config, an attempt, a replay or a scoring.
        wanted: what the caller knows from elsewhere; without keys and a task the verdict is at
            best "unauthenticated".

    Raises:
        OSError: ``folder`` itself cannot be read.
    """
    report = Report(authenticated=bool(wanted.keys) and wanted.task is not None)
    found = find(folder, report)  # 1
    check_signatures(found.runs, wanted.keys, found.home, report)  # 2
    hashed: dict[tuple[str, str], bool] = {}
    for run in found.runs:
        report.runs += not run.bare
        report.receipts += len(run.receipts)
        check_phases(run, report)  # 3
        check_chain(run, report)  # 4
        check_edges(run, wanted.task, report)  # 5
        files = check_files(run, report)  # 6
        if wanted.deep:
            check_assets(run, hashed, report)
        check_score(run, files, report)  # 7
        check_journal(run, report)  # 8
    check_campaign(found, wanted, report)  # 9
    for run in found.runs:
        check_commit(run, report)  # 10
    if not found.runs and not report.faults:
        report.fault(Step.PARSE, folder, "no run here")
    return report
