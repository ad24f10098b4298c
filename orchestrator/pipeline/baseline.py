"""Measure what a task's results are held against: the start as it is, and the shipped solution.

Both go the formal way: the start as a checkpoint that is handed in, in a reference run, and the
shipped solution as a candidate that changes nothing. What comes out is a reference point each,
with what it took, written into the pack. The runs stay, and are registered like any others; they
carry the digest that the pack had before.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator import __version__
from orchestrator.domain.attempt import RunKind, Through
from orchestrator.domain.quantity import human
from orchestrator.domain.records import Aggregate, Number, ScoringPlan, Summary
from orchestrator.domain.roles import DataRole, Phase
from orchestrator.domain.task import ReferencePoint
from orchestrator.errors import TaskPackError
from orchestrator.evidence.context import Context
from orchestrator.evidence.telemetry_log import read_telemetry
from orchestrator.lifecycle.machine import Event
from orchestrator.pipeline import jobs
from orchestrator.report.lookup import run_id
from orchestrator.report.telemetry import figures
from orchestrator.report.views import contested_of, read
from orchestrator.storage.durable import folder_faults, require_writable
from orchestrator.storage.journal import read_journal
from orchestrator.storage.layout import ReplayFolder, ScoringFolder
from orchestrator.storage.pack import Pack, load_pack
from orchestrator.storage.records import load
from orchestrator.storage.references import with_references, write_references

START, SHIPPED = "start", "shipped"
_DIGITS = 10
"""Significant digits of a figure that is written down."""
_PACK_DIGITS = 12
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Measured:
    """A reference point, and the replay whose scoring it is from."""

    point: ReferencePoint
    replayed: jobs.Replayed


def measure(ctx: Context, task: Path, *, official: bool) -> tuple[Measured, ...]:
    """Measure the start and the shipped solution, and write both into the pack.

    Raises:
        UsageError: the pack cannot be written to.
        TaskPackError: the task has no anchor, one of the two comes to no score, or the file is not
            one that can be edited.
        InfrastructureError: the machine failed; the same command may be run again.
    """
    pack = load_pack(task)
    with folder_faults("the pack", pack.folder, "copy it to where you can write, and name that"):
        require_writable(pack.folder)
    with_references(pack, [ReferencePoint(name=name) for name in (START, SHIPPED)])  # it can be
    found = (
        _measured(pack, START, _start(ctx, pack, task, official=official)),
        _measured(pack, SHIPPED, _shipped(ctx, task, official=official)),
    )
    write_references(pack, [one.point for one in found])
    return found


def _start(ctx: Context, pack: Pack, task: Path, *, official: bool) -> jobs.Replayed:
    anchors = [name for name, a in pack.spec.assets.items() if a.role is DataRole.ANCHOR]
    if not anchors:
        raise TaskPackError(f"{pack.source}: no asset has the role anchor, so there is no start")
    ctx.say("the start, as a checkpoint that is handed in")
    folder = ctx.assets.locate(pack, anchors[0])
    return jobs.score_checkpoints(ctx, task, {"0": folder}, reference_run=True, official=official)


def _shipped(ctx: Context, task: Path, *, official: bool) -> jobs.Replayed:
    ctx.say("the shipped solution, as a candidate that changes nothing")
    with tempfile.TemporaryDirectory(prefix="orch-baseline-") as scratch:
        patch = Path(scratch) / "empty.patch"
        patch.touch()
        attempt, _ = jobs.submit_patch(ctx, task, patch, official=official)
    (replayed,) = jobs.replay(
        ctx, attempt, repeats=None, again=None, through=Through.SCORE, official=official
    )
    return replayed


def _measured(pack: Pack, name: str, replayed: jobs.Replayed) -> Measured:
    scoring, best = replayed.scoring, None
    if scoring is not None and scoring.summary.exists():
        best = load(scoring.summary, Aggregate).best
    if scoring is None or best is None or best.value is None:
        ended = replayed.scored or replayed.state
        raise TaskPackError(
            f"{pack.source}: {name} came to no score ({ended.value.replace('_', ' ')})",
            remedy=f"orch show {run_id(scoring or replayed.folder)[:8]} says why",
        )
    point = ReferencePoint(
        name=name,
        value=_figure(best.value),
        components=_components(pack, load(scoring.checkpoint(best.checkpoint).summary, Summary)),
        note=_note(pack, name, replayed.folder, scoring),
    )
    return Measured(point, replayed)


def _components(pack: Pack, summary: Summary) -> dict[str, float]:
    """Pick the parts that the task names, or all that was measured; the metric is no part."""
    return {
        name: _figure(number.value)
        for name in pack.spec.score.components or summary.metrics
        if name != summary.metric
        and isinstance(number := summary.metrics.get(name), Number)
        and number.value is not None
    }


def _note(pack: Pack, name: str, replay: ReplayFolder, scoring: ScoringFolder) -> str:
    """Say what it took, and by which run of which pack it was measured."""
    plan = load(scoring.plan, ScoringPlan)
    standing = "official" if plan.official else "local"
    digest = pack.digest.rpartition(":")[2][:_PACK_DIGITS]
    took = [*(_replay(replay) if name == SHIPPED else ()), *_scoring(scoring)]
    signs = {sign for folder in (replay, scoring) for sign in contested_of(read(folder))}
    took += [f"contested: {sign}" for sign in sorted(signs)]
    return (
        f"{', '.join(took)}; measured {plan.created[:10]} by orch {__version__} ({standing}), "
        f"run {run_id(replay)[:8]} of pack {digest}"
    )


def _replay(folder: ReplayFolder) -> Iterator[str]:
    ended = read_journal(folder.journal, RunKind.REPLAY).last(Event.EXITED)
    if ended is not None:
        yield f"replay {ended.data['exit']['duration_s']:.1f} s"
    yield from _resources(folder.telemetry, Phase.REPLAY)


def _scoring(folder: ScoringFolder) -> Iterator[str]:
    journal = read_journal(folder.journal, RunKind.SCORING)
    began = journal.last(Event.SCORE_STARTED)
    if began is not None:
        yield f"scoring {(journal.records[-1].mono_ns - began.mono_ns) / _NS:.1f} s"
    yield from _resources(folder.telemetry, Phase.SCORE)


def _resources(telemetry: Path, phase: Phase) -> Iterator[str]:
    seen = figures(read_telemetry(telemetry).rows, phase)
    if seen.memory is not None:
        yield f"{human(seen.memory)} of memory"
    if seen.gpu_memory is not None:
        yield f"{human(seen.gpu_memory)} of GPU memory"


def _figure(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
