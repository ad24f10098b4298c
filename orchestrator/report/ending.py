"""How a run came out, in the few lines that end a command, with the command to go on with."""

from collections.abc import Iterator

from orchestrator.domain.attempt import RunKind
from orchestrator.domain.checkpoint import ArtifactStatus
from orchestrator.domain.records import (
    Aggregate,
    Artifact,
    Artifacts,
    AttemptPlan,
    ReplayPlan,
    ScoredCheckpoint,
)
from orchestrator.lifecycle.machine import Event, State
from orchestrator.report.facts import breaches
from orchestrator.report.lookup import path_id, run_id
from orchestrator.report.text import one_line
from orchestrator.report.views import contested_of, ending_reason, read
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
    said = (data.get("reason") or data.get("origin", ""), data.get("message", ""))
    yield f"  {state.value}: {one_line(': '.join(str(part) for part in said if part))}"
    yield from (f"    {breach}" for breach in breaches(view))
    if state is State.SUBMITTED and data.get("patch_sha256"):
        yield f"  candidate {short_digest(str(data['patch_sha256']))}"
        yield f"  next: orch replay {short}{load(folder.plan, AttemptPlan).option}"
    else:
        yield f"  look further: orch lifecycle {short}"


def _replay(folder: ReplayFolder, state: State) -> Iterator[str]:
    view = read_journal(folder.journal, RunKind.REPLAY)
    exited = view.last(Event.EXITED)
    short, run = run_id(folder)[:8], read(folder)
    yield f"{path_id(folder)}  [{short}]"
    facts = {} if exited is None else exited.data["exit"]
    if facts:
        code, spent, why = facts["exit_code"], facts["duration_s"], facts["stop_reason"]
        yield f"  {state.value}: exit code {code} after {spent:.1f} s ({why})"
    else:
        yield f"  {state.value}"
    judged: tuple[Artifact, ...] = ()
    if folder.artifacts.exists():
        judged = load(folder.artifacts, Artifacts).artifacts
        counts = {s: sum(a.status is s for a in judged) for s in ArtifactStatus}
        yield "  checkpoints: " + ", ".join(f"{n} {s.value}" for s, n in counts.items())
        for artifact in judged:
            if artifact.status is ArtifactStatus.REJECTED:
                why = filter(None, (artifact.reason, artifact.detail))
                yield f"    {one_line(artifact.name)}: {one_line(': '.join(why))}"
    if contested := contested_of(run):
        yield f"  contested: {', '.join(contested)}"
    if folder.scorings():
        return
    if any(artifact.status is ArtifactStatus.ACCEPTED for artifact in judged):
        yield f"  next: orch score {short}{load(folder.plan, ReplayPlan).option}"
        return
    yield f"  no score: {one_line(ending_reason(run))}"
    if facts:
        yield f"  what it wrote: orch logs {short}"
    yield f"  look further: orch show {short}"


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
