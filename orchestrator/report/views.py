"""What is known of a run, read once from disk and never judged anew.

Reading appends nothing and repairs nothing. What cannot be read becomes a ``fault``, a line that
is shown beside the rest. The state is always folded from the journal. A score is a number only
where the scoring's ``.complete`` matches the bytes beside it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from orchestrator.domain.attempt import RunKind
from orchestrator.domain.records import (
    FORMAT,
    Aggregate,
    Artifacts,
    AttemptPlan,
    ConfigRecord,
    GateRecord,
    ReplayPlan,
    ScoredCheckpoint,
    ScoringPlan,
    Submission,
    Summary,
)
from orchestrator.errors import OrchError
from orchestrator.lifecycle.machine import Event, State
from orchestrator.report.lookup import path_id
from orchestrator.storage import durable
from orchestrator.storage.journal import JournalView, Record, read_journal
from orchestrator.storage.layout import (
    AttemptFolder,
    CheckpointScore,
    ConfigFolder,
    ReplayFolder,
    RunFolder,
    RunsFolder,
    ScoringFolder,
)
from receipts.complete import Completeness, Finding, check

_Model = TypeVar("_Model", bound=BaseModel)
_EMPTY = JournalView(records=(), state=None, head="", torn=False)


class Faults:
    """Collects what could not be read while a view is built."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, line: str) -> None:
        """Remember a fault."""
        self._lines.append(line)

    @property
    def lines(self) -> tuple[str, ...]:
        """Everything that was remembered."""
        return tuple(self._lines)


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """One checkpoint inside a scoring. ``summary`` is None unless its ``.complete`` matches."""

    name: str
    completion: Finding
    summary: Summary | None


@dataclass(frozen=True, slots=True)
class ScoringView:
    """One scoring. ``aggregate`` is None unless its ``.complete`` matches."""

    folder: ScoringFolder
    id: str
    plan: ScoringPlan | None
    journal: JournalView
    completion: Finding
    aggregate: Aggregate | None
    checkpoints: tuple[CheckpointView, ...]
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReplayView:
    """One replay with its scorings."""

    folder: ReplayFolder
    id: str
    plan: ReplayPlan | None
    journal: JournalView
    completion: Finding
    gate: GateRecord | None
    artifacts: Artifacts | None
    scorings: tuple[ScoringView, ...]
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AttemptView:
    """One attempt with its replays."""

    folder: AttemptFolder
    id: str
    config: ConfigRecord | None
    plan: AttemptPlan | None
    journal: JournalView
    completion: Finding
    submission: Submission | None
    replays: tuple[ReplayView, ...]
    faults: tuple[str, ...]


RunView = AttemptView | ReplayView | ScoringView

KINDS: Mapping[type[RunView], RunKind] = {
    AttemptView: RunKind.ATTEMPT,
    ReplayView: RunKind.REPLAY,
    ScoringView: RunKind.SCORING,
}


@dataclass(frozen=True, slots=True)
class Score:
    """The result of a replay as it may be shown.

    Attributes:
        word: the scoring's state, or ``corrupt`` or ``incomplete`` where its marker says so.
        best: the best checkpoint; None unless there is a valid score that is committed.
        official: ``official`` and not ``local``.
        contested: host signs below the bar of infrastructure that stand beside it.
        reason: why there is no number, in a few words.
    """

    word: str
    best: ScoredCheckpoint | None
    official: bool
    contested: tuple[str, ...]
    reason: str = ""


def attempts(runs: RunsFolder) -> tuple[AttemptView, ...]:
    """Read every attempt of a runs folder."""
    return tuple(read_attempt(a) for config in runs.configs() for a in config.attempts())


def read(folder: RunFolder) -> RunView:
    """Read one run of any kind, with what lies below it."""
    if isinstance(folder, AttemptFolder):
        return read_attempt(folder)
    return read_replay(folder) if isinstance(folder, ReplayFolder) else read_scoring(folder)


def read_attempt(folder: AttemptFolder) -> AttemptView:
    """Read an attempt, its replays and their scorings."""
    faults = Faults()
    return AttemptView(
        folder=folder,
        id=path_id(folder),
        config=read_record(ConfigFolder(folder.root.parent).config, ConfigRecord, faults),
        plan=read_record(folder.plan, AttemptPlan, faults, required=True),
        journal=_journal(folder.journal, RunKind.ATTEMPT, faults),
        completion=_completion(folder.complete, faults),
        submission=read_record(folder.submission, Submission, faults),
        replays=tuple(read_replay(replay) for replay in folder.replays()),
        faults=faults.lines,
    )


def read_replay(folder: ReplayFolder) -> ReplayView:
    """Read a replay and its scorings."""
    faults = Faults()
    plan = read_record(folder.plan, ReplayPlan, faults, required=True)
    return ReplayView(
        folder=folder,
        id=path_id(folder),
        plan=plan,
        journal=_journal(folder.journal, RunKind.REPLAY, faults),
        completion=_completion(folder.complete, faults),
        gate=read_record(folder.gate, GateRecord, faults),
        artifacts=read_record(folder.artifacts, Artifacts, faults),
        scorings=tuple(read_scoring(scoring) for scoring in folder.scorings()),
        faults=faults.lines,
    )


def read_scoring(folder: ScoringFolder) -> ScoringView:
    """Read a scoring; numbers only where they are committed."""
    faults = Faults()
    plan = read_record(folder.plan, ScoringPlan, faults, required=True)
    completion = _completion(folder.complete, faults)
    committed = completion.completeness is Completeness.COMPLETE
    return ScoringView(
        folder=folder,
        id=path_id(folder),
        plan=plan,
        journal=_journal(folder.journal, RunKind.SCORING, faults),
        completion=completion,
        aggregate=read_record(folder.summary, Aggregate, faults) if committed else None,
        checkpoints=tuple(
            _checkpoint(folder.checkpoint(planned.name), faults)
            for planned in (plan.checkpoints if plan else ())
        ),
        faults=faults.lines,
    )


def scoring_of(replay: ReplayView) -> ScoringView | None:
    """Choose the scoring that counts: the latest that is committed and not spoilt, else the last.

    A later one that the machine or a person ended takes nothing from what is finished.
    """
    spoilt = {State.SCORE_FAILED, State.TERMINAL_OPERATOR}
    committed = [s for s in replay.scorings if s.completion.completeness is not Completeness.ABSENT]
    finished = [s for s in committed if s.journal.state not in spoilt]
    return next(reversed(finished or replay.scorings), None)


def score_of(replay: ReplayView) -> Score | None:
    """Say what may be shown as the replay's result; None before any scoring."""
    chosen = scoring_of(replay)
    if chosen is None:
        return None
    contested = contested_of(replay) + contested_of(chosen)
    official = bool(chosen.plan and chosen.plan.official)
    found = chosen.completion
    if found.completeness is Completeness.COMPLETE and chosen.aggregate:
        best = chosen.aggregate.best
        reason = "" if best else "; ".join(c.reason for c in chosen.aggregate.checkpoints)
        return Score(
            word=chosen.aggregate.status,
            best=best,
            official=chosen.aggregate.official,
            contested=contested,
            reason=reason,
        )
    if found.completeness in {Completeness.CORRUPT, Completeness.INCOMPLETE}:
        return Score(found.completeness, None, official, contested, found.reason)
    if found.record and found.record.summary:
        return Score(Completeness.CORRUPT, None, official, contested, "; ".join(chosen.faults))
    if chosen.journal.state in {State.SCORED, State.INVALID, State.UNSCORABLE}:
        return Score(Completeness.INCOMPLETE, None, official, contested, "not committed yet")
    return Score(state_word(chosen), None, official, contested, ending_reason(chosen))


def faults_below(view: RunView) -> tuple[str, ...]:
    """List what could not be read of a run and of all that lies below it, each with its id."""
    parts: list[RunView] = [view]
    for replay in view.replays if isinstance(view, AttemptView) else ():
        parts += [replay, *replay.scorings]
    if isinstance(view, ReplayView):
        parts += view.scorings
    return tuple(f"{part.id}: {fault}" for part in parts for fault in part.faults)


def state_word(view: RunView) -> str:
    """Name a run's state; without one it is ``unreadable`` or still ``unregistered``."""
    if view.journal.state is not None:
        return view.journal.state
    return "unreadable" if view.faults else "unregistered"


def contested_of(view: RunView) -> tuple[str, ...]:
    """Collect the host signs noted about a run, each once, in order."""
    signs: dict[str, None] = {}
    for record in view.journal.records:
        listed = record.data.get("contested")
        for sign in listed if isinstance(listed, list) else ():
            signs[str(sign)] = None
        if record.event is Event.NOTED and "sign" in record.data:
            signs[str(record.data["sign"])] = None
    return tuple(signs)


def relaxations_of(view: RunView) -> tuple[str, ...]:
    """List what made the results local, as the plan says."""
    return view.plan.relaxations if view.plan else ()


def exit_facts_of(view: RunView) -> Mapping[str, Any]:
    """Find the exit facts in the journal; empty where nothing has ended yet."""
    for record in reversed(view.journal.records):
        if isinstance(found := record.data.get("exit"), dict):
            return found
    return {}


def ending_reason(view: RunView) -> str:
    """Say in a few words why a run ended as it did; "" while it has not."""
    last = next((r for r in reversed(view.journal.records) if r.event is not Event.NOTED), None)
    if last is None:
        return ""
    said = [str(last.data[key]) for key in ("fact", "reason", "message") if last.data.get(key)]
    if said:
        return ": ".join(said)
    return "" if last.event in _SILENT else last.event.replace("_", " ")


_SILENT = frozenset(
    {Event.REGISTERED, Event.SUBMITTED, Event.VALIDATED, Event.SCORED, Event.GATE_STARTED}
    | {Event.GATE_PASSED, Event.RUN_STARTED, Event.EXPLORE_STARTED, Event.SCORE_STARTED}
)


def reason_and_origin(view: AttemptView) -> tuple[str, str]:
    """Return why an exploration ended and whose act the submission was, from the journal."""
    for event in (Event.DECLINED, Event.CAPTURED):
        if record := view.journal.last(event):
            return _text(record, "reason"), _text(record, "origin")
    return "", ""


def read_record(
    path: Path, model: type[_Model], faults: Faults, *, required: bool = False
) -> _Model | None:
    """Read one of our records; None, and a fault, where it is not what it should be.

    A record of another format is said to be one. A missing file is a fault only if ``required``.
    """
    try:
        return model.model_validate(durable.read_json(path))
    except FileNotFoundError:
        if required:
            faults.add(f"{path.name} is missing")
    except ValidationError as error:
        faults.add(f"{path.name} {_why_not(error)}")
    except OrchError as error:
        faults.add(_nearby(str(error), path))
    except OSError as error:
        faults.add(f"{path.name} cannot be read: {error.strerror}")
    return None


def _nearby(text: str, path: Path) -> str:
    """Leave out the folder that ``text`` names: it is the one being shown."""
    return text.replace(f"{path.parent}/", "")


def _why_not(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    if where == "format":
        return f"has format {first['input']!r}; this orch reads format {FORMAT} and leaves it alone"
    return f"is not valid: {where + ': ' if where else ''}{first['msg']}"


def _journal(path: Path, kind: RunKind, faults: Faults) -> JournalView:
    try:
        found = read_journal(path, kind)
    except OrchError as error:
        faults.add(_nearby(str(error), path))
        return _EMPTY
    except OSError as error:
        faults.add(f"{path.name} cannot be read: {error.strerror}")
        return _EMPTY
    if found.torn:
        faults.add(f"{path.name} ends in a line that was cut off; it counts for nothing")
    return found


def _completion(marker: Path, faults: Faults) -> Finding:
    found = check(marker)
    found = replace(found, reason=_nearby(found.reason, marker))
    if found.completeness is Completeness.CORRUPT:
        faults.add(f"corrupt: {found.reason}")
    return found


def _checkpoint(folder: CheckpointScore, faults: Faults) -> CheckpointView:
    completion = _completion(folder.complete, faults)
    committed = completion.completeness is Completeness.COMPLETE
    return CheckpointView(
        name=folder.root.name,
        completion=completion,
        summary=read_record(folder.summary, Summary, faults) if committed else None,
    )


def _text(record: Record, key: str) -> str:
    return str(record.data.get(key) or "")


def headline(view: AttemptView) -> ReplayView | None:
    """Choose the replay that stands for an attempt: the finished official one, else the latest."""
    official = (
        replay
        for replay in view.replays
        if replay.journal.state is State.TERMINAL_BEHAVIOR
        and replay.plan
        and replay.plan.series == "official"
    )
    return next(official, view.replays[-1] if view.replays else None)
