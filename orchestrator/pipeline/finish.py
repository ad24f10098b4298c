"""Finish a run: mint the receipts its journal calls for, link ``.complete``, tidy up.

Everything here is computed from what is on disk and is idempotent: a run whose terminal event was
written and whose ``.complete`` was not is finished by doing this again.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from orchestrator.domain.attempt import Entry, RunKind
from orchestrator.domain.records import AttemptPlan, ReplayPlan, ScoringPlan
from orchestrator.domain.roles import Phase
from orchestrator.evidence import statements
from orchestrator.evidence.context import Context
from orchestrator.lifecycle.machine import Event, State, advance
from orchestrator.sandbox import RUN_LABEL
from orchestrator.storage.campaign import CampaignEvent
from orchestrator.storage.journal import JournalView, Record, read_journal
from orchestrator.storage.layout import AttemptFolder, ReplayFolder, ScoringFolder
from orchestrator.storage.receipt_folder import last_receipt, mint, write_complete
from orchestrator.storage.records import load
from receipts.statement import PhaseName

_REMOVERS = 4
_ENDS = (Event.INFRASTRUCTURE, Event.OPERATOR)


@dataclass(frozen=True, slots=True)
class _Due:
    """A receipt that the journal calls for: from which record to which, and what goes in."""

    phase: PhaseName
    first: Record
    last: Record
    materials: dict[str, str]
    subjects: dict[str, str]
    argv: tuple[str, ...] = ()


def state_after(kind: RunKind, view: JournalView, record: Record) -> State:
    """Return the state right after ``record``."""
    state: State | None = None
    for earlier in view.records[: record.seq]:
        state = advance(kind, state, earlier.event)
    assert state is not None  # noqa: S101 - the record itself is in the journal
    return state


def finish_attempt(ctx: Context, folder: AttemptFolder) -> None:
    """Mint an attempt's receipts and commit it."""
    plan = load(folder.plan, AttemptPlan)
    view = read_journal(folder.journal, RunKind.ATTEMPT)
    due: list[_Due] = []
    first = view.records[0]
    if plan.entry is Entry.EXPLORE:
        end = statements.event_of(view, Event.CAPTURED, Event.DECLINED, *_ENDS)
        if end is not None:
            materials = {
                "task": plan.task_digest,
                **statements.seen_by(plan, Phase.EXPLORE),
            }
            subjects = statements.candidate_subjects(folder)
            due.append(_Due(PhaseName.EXPLORE, first, end, materials, subjects))
    submitted = view.last(Event.SUBMITTED)
    if submitted is not None:
        captured = statements.event_of(view, Event.CAPTURED) or first
        materials = {"task": plan.task_digest}
        materials |= {
            name: f"sha256:{digest}"
            for name, digest in statements.candidate_subjects(folder).items()
        }
        due.append(
            _Due(
                PhaseName.SUBMIT,
                captured,
                submitted,
                materials,
                statements.candidate_subjects(folder),
            )
        )
    number = {PhaseName.EXPLORE: 1, PhaseName.SUBMIT: 2}
    prev: str | None = None
    for item in due:
        said = statements.statement(
            plan,
            item.phase,
            run=statements.attempt_name(plan),
            view=view,
            event=item.last,
            state=state_after(RunKind.ATTEMPT, view, item.last),
            materials=item.materials,
            subjects=item.subjects,
            prev=prev,
            times=statements.times(item.first, item.last),
        )
        prev = mint(folder.receipts, number[item.phase], said, ctx.key).digest
    _commit(ctx, plan.run_id, folder.receipts, folder.complete, None, view)


def finish_replay(ctx: Context, folder: ReplayFolder) -> None:
    """Mint a replay's receipts and commit it."""
    plan = load(folder.plan, ReplayPlan)
    view = read_journal(folder.journal, RunKind.REPLAY)
    attempt = load(folder.attempt.plan, AttemptPlan)
    shared = {"task": attempt.task_digest}
    if plan.patch_sha256 is not None and plan.manifest_digest is not None:
        shared |= {"patch": plan.patch_sha256, "manifest": plan.manifest_digest}
    before = last_receipt(folder.attempt.receipts)
    prev = None if before is None else before.digest
    number = 3
    for item in _replay_due(plan, view, folder, shared):
        said = statements.statement(
            plan,
            item.phase,
            run=statements.replay_name(folder, plan),
            view=view,
            event=item.last,
            state=state_after(RunKind.REPLAY, view, item.last),
            materials=item.materials,
            subjects=item.subjects,
            prev=prev,
            times=statements.times(item.first, item.last),
            argv=item.argv,
        )
        prev = mint(folder.receipts, number, said, ctx.key).digest
        number += 1
    _commit(ctx, plan.run_id, folder.receipts, folder.complete, None, view)


def _replay_due(
    plan: ReplayPlan, view: JournalView, folder: ReplayFolder, shared: dict[str, str]
) -> list[_Due]:
    """List the phases that happened, in order, each with the record that says how it came out."""
    due: list[_Due] = []
    gate = view.last(Event.GATE_STARTED)
    run = view.last(Event.RUN_STARTED)
    terminal = view.records[-1]
    if gate is not None:
        passed = view.last(Event.GATE_PASSED) or terminal
        materials = {**shared, **statements.seen_by(plan, Phase.REPLAY)}
        due.append(_Due(PhaseName.GATE, gate, passed, materials, statements.gate_subjects(folder)))
    collected = view.last(Event.COLLECTED)
    if run is not None:
        end = collected or view.last(Event.EXITED) or terminal
        # What the run came to is in exited; where that is missing the terminal event says why.
        rows = [] if collected is None else list(collected.data["checkpoints"])
        due.append(
            _Due(
                PhaseName.REPLAY,
                run,
                view.last(Event.EXITED) or end,
                {**shared, **statements.seen_by(plan, Phase.REPLAY)},
                statements.checkpoint_subjects(rows),
                plan.argv,
            )
        )
    if collected is not None and folder.artifacts.exists():
        seen = statements.seen_by(plan, Phase.VALIDATE)
        rows = list(collected.data["checkpoints"])
        taken = {row["name"]: row["digest"] for row in rows if row.get("digest")}
        due.append(
            _Due(
                PhaseName.VALIDATE,
                collected,
                terminal,
                {"task": shared["task"], **seen, **taken},
                statements.validation_subjects(folder),
            )
        )
    return due


def finish_scoring(ctx: Context, folder: ScoringFolder) -> None:
    """Mint a scoring's receipt and commit it."""
    plan = load(folder.plan, ScoringPlan)
    view = read_journal(folder.journal, RunKind.SCORING)
    before = last_receipt(folder.replay.receipts)
    if view.last(Event.GATE_STARTED) is not None:
        materials = {
            "task": plan.task_digest,
            "evaluator": plan.evaluator_digest,
            **statements.seen_by(plan, Phase.SCORE),
            **{c.name: c.digest for c in plan.checkpoints},
        }
        terminal = view.records[-1]
        said = statements.statement(
            plan,
            PhaseName.SCORE,
            run=statements.scoring_name(folder, plan),
            view=view,
            event=terminal,
            state=state_after(RunKind.SCORING, view, terminal),
            materials=materials,
            subjects=statements.score_subjects(folder, plan),
            prev=None if before is None else before.digest,
            times=statements.times(view.records[0], terminal),
        )
        number = 1 if before is None else before.number + 1
        mint(folder.receipts, number, said, ctx.key)
    summary = folder.summary if folder.summary.exists() else None
    _commit(ctx, plan.run_id, folder.receipts, folder.complete, summary, view)


def _commit(
    ctx: Context,
    run_id: str,
    receipts: Path,
    marker: Path,
    summary: Path | None,
    view: JournalView,
) -> None:
    """Link ``.complete``, pin the journal's end, and only then let the containers go."""
    last = last_receipt(receipts)
    already = marker.exists()
    if last is not None:
        write_complete(marker, last.path, summary)
    if not already:
        ctx.campaign.append(
            CampaignEvent.ENDED,
            run_id=run_id,
            state=None if view.state is None else view.state.value,
            head=view.head,
        )
    with ThreadPoolExecutor(max_workers=_REMOVERS) as removers:
        for removal in [removers.submit(c.remove) for c in ctx.engine.find({RUN_LABEL: run_id})]:
            removal.result()
