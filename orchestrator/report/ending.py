"""How a run came out, in the few lines that end a command, with the command to go on with."""

from collections.abc import Iterator

from orchestrator.domain.attempt import RunKind
from orchestrator.domain.checkpoint import ArtifactStatus
from orchestrator.domain.records import Aggregate, Artifacts, ScoredCheckpoint
from orchestrator.lifecycle.machine import Event, State
from orchestrator.report.lookup import path_id, run_id
from orchestrator.report.views import contested_of, read
from orchestrator.report.words import figure, short_digest
from orchestrator.storage.journal import read_journal
from orchestrator.storage.layout import AttemptFolder, ReplayFolder, RunFolder, ScoringFolder
from orchestrator.storage.records import load


def lines(folder: RunFolder, state: State) -> Iterator[str]:
    """Tell a person how a run ended."""
    match folder:
        case AttemptFolder():
            yield from _attempt(folder, state)
        case ReplayFolder():
            yield from _replay(folder, state)
        case ScoringFolder():
            yield from _scoring(folder, state)


def _attempt(folder: AttemptFolder, state: State) -> Iterator[str]:
    view = read_journal(folder.journal, RunKind.ATTEMPT)
    ended = view.last(Event.CAPTURED) or view.last(Event.DECLINED)
    data = {} if ended is None else ended.data
    short = run_id(folder)[:8]
    yield f"{path_id(folder)}  [{short}]"
    yield f"  {state.value}: {data.get('reason') or data.get('origin', '')}"
    if state is State.SUBMITTED and data.get("patch_sha256"):
        yield f"  candidate {short_digest(str(data['patch_sha256']))}"
        yield f"  next: orch replay {short}"
    else:
        yield f"  look further: orch lifecycle {short}"


def _replay(folder: ReplayFolder, state: State) -> Iterator[str]:
    view = read_journal(folder.journal, RunKind.REPLAY)
    exited = view.last(Event.EXITED)
    yield f"{path_id(folder)}  [{run_id(folder)[:8]}]"
    facts = {} if exited is None else exited.data["exit"]
    if facts:
        code, spent, why = facts["exit_code"], facts["duration_s"], facts["stop_reason"]
        yield f"  {state.value}: exit code {code} after {spent:.1f} s ({why})"
    else:
        yield f"  {state.value}"
    if folder.artifacts.exists():
        judged = load(folder.artifacts, Artifacts).artifacts
        counts = {s: sum(a.status is s for a in judged) for s in ArtifactStatus}
        yield "  checkpoints: " + ", ".join(f"{n} {s.value}" for s, n in counts.items())
        for artifact in judged:
            if artifact.status is ArtifactStatus.REJECTED:
                yield f"    {artifact.name}: {artifact.reason}"
    if contested := contested_of(read(folder)):
        yield f"  contested: {', '.join(contested)}"
    if not folder.scorings():
        yield f"  look further: orch show {run_id(folder)[:8]}"


def _scoring(folder: ScoringFolder, state: State) -> Iterator[str]:
    yield f"{path_id(folder)}  [{run_id(folder)[:8]}]"
    if not folder.summary.exists():
        yield f"  {state.value}"
        return
    found = load(folder.summary, Aggregate)
    kind = "official" if found.official else "local"
    marks = "".join(f", contested: {mark}" for mark in contested_of(read(folder)))
    yield f"  {state.value} ({kind}{marks}), {found.metric}:"
    for row in found.checkpoints:
        yield f"    {_row(row, best=found.best)}"
    yield f"  look further: orch show {run_id(folder)[:8]}"


def _row(row: ScoredCheckpoint, *, best: ScoredCheckpoint | None) -> str:
    mark = "  <- best" if best is not None and best.checkpoint == row.checkpoint else ""
    said = figure(row.value) if row.value is not None else f"{row.status}: {row.reason}"
    return f"{row.checkpoint:<24} {said}{mark}"
