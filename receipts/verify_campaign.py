"""Steps 8 and 9: the journals behind the receipts, and both against the campaign log."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from receipts.errors import MalformedError
from receipts.journal import Journal, Line, read_journal
from receipts.statement import PhaseName
from receipts.verify_corrections import check_corrections
from receipts.verify_find import Found
from receipts.verify_model import ENDINGS, Kind, Receipt, Report, Run, Step, Wanted

NAME = "campaign.jsonl"
_APART = frozenset({"exit", "host_facts", "contested", "reason", "message", "started", "ended"})
"""What a receipt's outcome holds in fields of its own."""
_REGISTERED: Mapping[str, Kind] = MappingProxyType(
    {
        "attempt_registered": Kind.ATTEMPT,
        "replay_registered": Kind.REPLAY,
        "scoring_registered": Kind.SCORING,
    }
)
_EVENTS = frozenset(_REGISTERED) | {
    *("series_declared", "final_mounted", "head", "ended", "corrected", "closed")
}
_ONE_DRAW: Mapping[str, tuple[tuple[str, ...], frozenset[str]]] = MappingProxyType(
    {
        "replay_registered": (("attempt_id", "series"), frozenset({"terminal_behavior"})),
        "scoring_registered": (
            ("replay_id", "evaluator_digest"),
            frozenset({"scored", "invalid", "unscorable"}),
        ),
    }
)
"""Of what one run may finish, and how a run that finished is logged to have ended."""


def check_journal(run: Run, report: Report) -> None:
    """Check that a journal hangs together, ends where it ends, and carries the receipts."""
    path = run.folder / "lifecycle.jsonl"
    journal = run.journal
    if journal is None:
        if not run.bare:
            report.fault(Step.JOURNAL, path, "missing")
        return
    if journal.fault:
        report.fault(Step.JOURNAL, path, journal.fault)
    if journal.torn:
        report.note(path, "its last line was cut off while being written; it counts for nothing")
    _check_story(run.kind, path, journal, report)
    for receipt in run.receipts:
        said = receipt.statement.predicate.lifecycle
        if said.head != journal.head or said.seq != len(journal.lines):
            what = f"made over line {said.seq} of the journal, whose end is {len(journal.lines)}"
            if said.head not in journal.digests:
                what = "made over a journal line that is not here"
            report.fault(Step.JOURNAL, receipt.path, what)
        for what in _disagreements(receipt, journal):
            report.fault(Step.JOURNAL, receipt.path, what)


def _disagreements(receipt: Receipt, journal: Journal) -> Iterator[str]:
    """Yield where a receipt tells another story than the journal it was made over."""
    said = receipt.statement.predicate.outcome
    line = journal.last(said.event)
    if line is None:
        yield f"it tells of {said.event[:80]}, which did not happen"
        return
    told = {key: value for key, value in line.data.items() if key not in _APART}
    told |= _adoptions(journal.lines[: journal.lines.index(line)])
    if said.details != told:
        yield f"it tells {said.event} otherwise than the journal"
    ended = journal.last("exited") if receipt.phase is PhaseName.REPLAY else line
    facts = ended.data if ended is not None else {}
    exit_facts = said.exit.model_dump() if said.exit else None
    signs = (exit_facts, list(said.host_facts), list(said.contested))
    if signs != (facts.get("exit"), facts.get("host_facts", []), facts.get("contested", [])):
        yield "its exit facts or host signs are not those of the journal"
    collected = journal.last("collected")
    if receipt.phase in {PhaseName.REPLAY, PhaseName.COLLECT} and collected is not None:
        rows = collected.data.get("checkpoints")
        found = {
            f"checkpoints/{row.get('name')}": str(row["digest"]).rpartition(":")[2]
            for row in (rows if isinstance(rows, list) else ())
            if isinstance(row, dict) and row.get("digest")
        }
        given = receipt.subjects()
        given.pop("telemetry.jsonl", None)
        if given != found:
            yield "it gave out other checkpoints than the journal tells of"


def _adoptions(lines: Sequence[Line]) -> dict[str, Any]:
    """Read who took the run over from a supervisor that died, as a receipt has to say it."""
    notes = (line.data for line in lines if line.event == "noted")
    found = [
        {key: value for key, value in note.items() if key != "audit"}
        for note in notes
        if note.get("audit") == "adopted"
    ]
    return {"adopted": found} if found else {}


def _check_story(kind: Kind, path: Path, journal: Journal, report: Report) -> None:
    """Check that the lines are of one run, the first its beginning, the last its ending."""
    for number, line in enumerate(journal.lines, start=1):
        if line.id != journal.lines[0].id:
            report.fault(Step.JOURNAL, path, f"line {number}: it belongs to run {line.id[:80]}")
        if (line.event == "registered") != (number == 1):
            report.fault(Step.JOURNAL, path, f"line {number}: {line.event[:80]} out of place")
        if line.event in ENDINGS[kind] and number < len(journal.lines):
            report.fault(Step.JOURNAL, path, f"line {number}: something follows its ending")


@dataclass(slots=True)
class _Log:
    """The campaign log, by run."""

    registered: dict[str, Line] = field(default_factory=dict)
    heads: dict[str, list[Line]] = field(default_factory=lambda: defaultdict(list))
    ended: dict[str, Line] = field(default_factory=dict)
    mounts: Counter[str] = field(default_factory=Counter)


def check_campaign(found: Found, wanted: Wanted, report: Report) -> None:
    """Check the log itself, every run against it, and, where asked, it against every run."""
    path = found.home / NAME
    try:
        journal = read_journal(path)
    except FileNotFoundError:
        what = "no campaign log here: nothing excludes that runs were dropped"
        if wanted.whole_campaign or wanted.campaign_head:
            report.fault(Step.CAMPAIGN, path, what)
        else:
            report.note(path, what)
        check_corrections(found.runs, None, report)
        return
    except (MalformedError, OSError) as error:
        report.fault(Step.CAMPAIGN, path, str(error))
        return
    if journal.fault:
        report.fault(Step.CAMPAIGN, path, journal.fault)
    if journal.torn:
        report.note(path, "its last line was cut off while being written; it counts for nothing")
    for number, line in enumerate(journal.lines, start=1):
        if line.event not in _EVENTS:
            known = "which this verifier does not know: nothing was made of it"
            report.note(path, f"line {number} has event {line.event[:80]!r}, {known}")
    log = _sorted(path, journal, report)
    _check_drawn_once(path, log, report)
    for run in found.runs:
        _check_run(run, log, report)
    check_corrections(found.runs, journal.lines, report)
    if wanted.whole_campaign:
        _check_dropped(path, found.runs, log, report)
    _check_head(path, journal, wanted.campaign_head, report)


def _sorted(path: Path, journal: Journal, report: Report) -> _Log:
    log = _Log()
    mounts, closed = 0, False
    for number, line in enumerate(journal.lines, start=1):
        run_id = str(line.data.get("run_id"))
        if line.id != "campaign":
            report.fault(Step.CAMPAIGN, path, f"line {number}: it belongs to {line.id[:80]}")
        if closed and (line.event in _REGISTERED or line.event == "series_declared"):
            report.fault(Step.CAMPAIGN, path, f"line {number}: begun after the campaign's end")
        if line.event in _REGISTERED:
            if run_id in log.registered:
                report.fault(Step.CAMPAIGN, path, f"line {number}: registers {run_id} again")
            log.registered[run_id] = line
        elif line.event == "head":
            log.heads[run_id].append(line)
        elif line.event == "ended":
            log.ended[run_id] = line
        elif line.event == "final_mounted":
            mounts += 1
            log.mounts[run_id] += 1
            if line.data.get("count") != mounts:
                what = f"line {number}: mount of final data counted {line.data.get('count')}"
                report.fault(Step.CAMPAIGN, path, what)
        closed = closed or line.event == "closed"
    return log


def _check_drawn_once(path: Path, log: _Log, report: Report) -> None:
    """Check that no member of a series, and no evaluator of a replay, finished more than once."""
    drawn: Counter[tuple[str, ...]] = Counter()
    for run_id, line in log.registered.items():
        ended = log.ended.get(run_id)
        names, endings = _ONE_DRAW.get(line.event, ((), frozenset()))
        if ended is not None and ended.data.get("state") in endings:
            drawn[line.event, *(str(line.data.get(name))[:80] for name in names)] += 1
    for (event, of, member), count in sorted(drawn.items()):
        if count > 1:
            kind = _REGISTERED[event]
            what = f"{count} finished runs of {kind} {member} of {of}; one counts at most"
            report.fault(Step.CAMPAIGN, path, what)


def _check_run(run: Run, log: _Log, report: Report) -> None:
    """Check one run on disk against what was registered for it."""
    if run.plan is None or run.journal is None:
        return
    run_id = run.plan.run_id
    registered = log.registered.get(run_id)
    if registered is None:
        report.fault(Step.CAMPAIGN, run.folder, "never registered in the campaign log")
        return
    for name, value in _registration(run).items():
        if registered.data.get(name) != value:
            report.fault(Step.CAMPAIGN, run.folder, f"registered with another {name}")
    digests = set(run.journal.digests)
    for pinned in log.heads.get(run_id, ()):
        if pinned.data.get("head") not in digests:
            what = f"the line that the log pins at {str(pinned.data.get('event'))[:80]} is not here"
            report.fault(Step.CAMPAIGN, run.folder / "lifecycle.jsonl", what)
    ended = log.ended.get(run_id)
    if ended is not None and ended.data.get("head") != run.journal.head:
        what = "the log names another end of it: cut back, or replaced"
        report.fault(Step.CAMPAIGN, run.folder / "lifecycle.jsonl", what)
    if ended is None and (run.folder / ".complete").exists():
        report.fault(Step.CAMPAIGN, run.folder, "committed, but its end was never logged")
    scored = sum(line.event == "checkpoint_scored" for line in run.journal.lines)
    if scored > log.mounts[run_id]:
        what = f"{scored} checkpoints scored, final data mounted {log.mounts[run_id]} times"
        report.fault(Step.CAMPAIGN, run.folder, what)


def _registration(run: Run) -> dict[str, Any]:
    """What the log must say of a run."""
    attempt, replay, scoring = run.attempt_plan(), run.replay_plan(), run.scoring_plan()
    said: dict[str, Any] = {"number": run.number}
    if run.kind is Kind.ATTEMPT and attempt:
        said |= {
            "config": attempt.config,
            "task_digest": attempt.task_digest,
            "entry": attempt.entry,
        }
    elif run.kind is Kind.REPLAY and replay:
        said |= {
            "attempt_id": replay.attempt_id,
            "candidate": replay.candidate,
            "series": replay.series,
        }
    elif scoring:
        said |= {
            "replay_id": scoring.replay_id,
            "evaluator_digest": scoring.evaluator_digest,
        }
    return said


def _check_dropped(path: Path, runs: Sequence[Run], log: _Log, report: Report) -> None:
    """Check that every registered run lies on disk, with its ending, and no number is missing."""
    here = {run.plan.run_id: run for run in runs if run.plan is not None}
    numbers: dict[tuple[Kind, str], set[int]] = defaultdict(set)
    for run_id, line in log.registered.items():
        kind = _REGISTERED[line.event]
        number = line.data.get("number")
        group = {"attempt": "config", "replay": "attempt_id", "score": "replay_id"}[kind]
        if isinstance(number, int):
            numbers[kind, str(line.data.get(group))].add(number)
        run = here.get(run_id)
        if run is None and not _never_started(runs, kind, line):
            what = f"{kind} {number} (run {run_id[:80]}) was registered and is not here"
            report.fault(Step.CAMPAIGN, path, what)
        elif run is not None and run.ending is not None and run_id not in log.ended:
            report.note(run.folder, "ended, and its end is not in the log yet")
    for run in (run for run in runs if run.bare):
        above = run.parent.plan.run_id if run.parent and run.parent.plan else run.folder.parent.name
        numbers[run.kind, above].add(run.number)
    for (kind, group), known in sorted(numbers.items()):
        if known != set(range(1, len(known) + 1)):
            report.fault(Step.CAMPAIGN, path, f"the numbers of {kind} of {group[:80]} have holes")


def _never_started(runs: Sequence[Run], kind: Kind, line: Line) -> bool:
    """Tell whether a registered run came to nothing: its folder is there, and empty of evidence."""
    return any(
        run.bare
        and run.kind is kind
        and run.number == line.data.get("number")
        and _above(run) == _belongs(kind, line)
        for run in runs
    )


def _above(run: Run) -> str:
    if run.parent is None:
        return run.folder.parent.name
    return run.parent.plan.run_id if run.parent.plan else ""


def _belongs(kind: Kind, line: Line) -> str:
    name = {Kind.ATTEMPT: "config", Kind.REPLAY: "attempt_id", Kind.SCORING: "replay_id"}[kind]
    return str(line.data.get(name))


def _check_head(path: Path, journal: Journal, head: str | None, report: Report) -> None:
    """Say what a published head excludes."""
    if head is None:
        return
    if head not in journal.digests:
        report.fault(Step.CAMPAIGN, path, "the published head is no line of this log")
        return
    seq = journal.digests.index(head) + 1
    report.selection = (
        f"selection excluded up to line {seq} of {len(journal.lines)}, whose head was published"
    )
