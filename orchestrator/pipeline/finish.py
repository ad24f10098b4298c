"""Finish a run: mint the receipts its journal calls for, link ``.complete``, tidy up.

Everything here is computed from what is on disk and is idempotent: a run whose terminal event was
written and whose ``.complete`` was not is finished by doing this again.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from orchestrator.domain.attempt import Entry, RunKind
from orchestrator.domain.records import AttemptPlan, PhasePlan, ReplayPlan, ScoringPlan
from orchestrator.domain.roles import Phase
from orchestrator.errors import EngineUnavailableError
from orchestrator.evidence import statements
from orchestrator.evidence.context import Context
from orchestrator.evidence.statements import Due
from orchestrator.lifecycle.machine import Event, State, advance
from orchestrator.storage.campaign import CampaignEvent, read_campaign
from orchestrator.storage.durable import remove_file, sync_file
from orchestrator.storage.journal import JournalView, Record, read_journal
from orchestrator.storage.layout import AttemptFolder, ReplayFolder, ScoringFolder
from orchestrator.storage.receipt_folder import Minted, last_receipt, mint, write_complete
from orchestrator.storage.records import load
from receipts.statement import PhaseName, RunName

_REMOVERS = 4
_ENDS = (Event.INFRASTRUCTURE, Event.OPERATOR)
_JUDGED = frozenset({Event.VALIDATED, Event.NO_CHECKPOINT, Event.NONE_VALID})


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
    _mint(
        ctx,
        folder.receipts,
        folder.telemetry,
        plan,
        RunKind.ATTEMPT,
        view,
        _attempt_due(plan, view, folder),
        statements.attempt_name(plan),
        None,
    )
    _commit(ctx, plan.run_id, folder.receipts, folder.complete, None, view)


def _attempt_due(plan: AttemptPlan, view: JournalView, folder: AttemptFolder) -> list[Due]:
    basis = statements.basis(folder.plan, plan.task_digest)
    due: list[Due] = []
    end = statements.event_of(view, Event.CAPTURED, Event.DECLINED, *_ENDS)
    if plan.entry is Entry.EXPLORE and end is not None:
        due.append(
            Due(
                PhaseName.EXPLORE,
                view.records[0],
                end,
                {
                    **basis,
                    **statements.agent_materials(plan),
                    **statements.start_materials(plan),
                    "harness": plan.harness_digest,
                    **statements.seen_by(plan, Phase.EXPLORE),
                },
                {
                    **statements.candidate_subjects(folder),
                    **statements.evidence_subjects(folder.gate, folder.telemetry),
                },
                statements.limits(plan.resources, plan.wall, view.last(Event.EXPLORE_STARTED)),
                devices=statements.devices(plan, Phase.EXPLORE, folder.gate),
            )
        )
    submitted = view.last(Event.SUBMITTED)
    if submitted is not None:
        due.append(
            Due(
                PhaseName.SUBMIT,
                view.last(Event.CAPTURED) or view.records[0],
                submitted,
                {**basis, **statements.candidate_materials(folder)},
                statements.candidate_subjects(folder),
            )
        )
    return due


def finish_replay(ctx: Context, folder: ReplayFolder) -> None:
    """Mint a replay's receipts and commit it."""
    plan = load(folder.plan, ReplayPlan)
    view = read_journal(folder.journal, RunKind.REPLAY)
    _mint(
        ctx,
        folder.receipts,
        folder.telemetry,
        plan,
        RunKind.REPLAY,
        view,
        _replay_due(plan, view, folder),
        statements.replay_name(folder, plan),
        last_receipt(folder.attempt.receipts),
    )
    _commit(ctx, plan.run_id, folder.receipts, folder.complete, None, view)


def _replay_due(plan: ReplayPlan, view: JournalView, folder: ReplayFolder) -> list[Due]:
    """List the phases that happened, in order; the last of them says how the replay ended."""
    attempt = load(folder.attempt.plan, AttemptPlan)
    basis = statements.basis(folder.plan, attempt.task_digest)
    source, seen = _source(plan), statements.seen_by(plan, Phase.REPLAY)
    gate, run = view.last(Event.GATE_STARTED), view.last(Event.RUN_STARTED)
    collected, terminal = view.last(Event.COLLECTED), view.records[-1]
    exited = view.last(Event.EXITED)
    rows = () if collected is None else collected.data["checkpoints"]
    taken = statements.checkpoint_subjects(rows)
    due: list[Due] = []
    if gate is not None:
        passed = (view.last(Event.GATE_PASSED) if run is not None else None) or terminal
        materials = {**basis, **source, **seen}
        evidence = statements.evidence_subjects(folder.gate)
        devices = statements.devices(plan, Phase.REPLAY, folder.gate)
        due.append(Due(PhaseName.GATE, gate, passed, materials, evidence, devices=devices))
    if run is not None:
        due.append(
            Due(
                PhaseName.REPLAY,
                run,
                (exited or collected) if collected is not None else terminal,
                {**basis, "harness": plan.harness_digest, **source, **seen},
                {**taken, **statements.evidence_subjects(folder.telemetry)},
                statements.limits(plan.resources, plan.wall, run),
                plan.argv,
                exited,
                statements.devices(plan, Phase.REPLAY, folder.gate),
            )
        )
    if collected is None:
        return due
    if run is None:
        due.append(Due(PhaseName.COLLECT, view.records[0], collected, basis, taken))
    task = attempt.task
    judged = statements.validation_subjects(folder) if terminal.event in _JUDGED else {}
    own_gate = (folder.gate_again, *([folder.gate] if gate is None else []))
    due.append(
        Due(
            PhaseName.VALIDATE,
            collected,
            terminal,
            {
                **basis,
                "harness": plan.harness_digest,
                **statements.seen_by(plan, Phase.VALIDATE),
                **{row["name"]: row["digest"] for row in rows if row.get("digest")},
            },
            {**judged, **statements.evidence_subjects(*own_gate, folder.telemetry)},
            statements.limits(task.resources(Phase.VALIDATE), task.validate_.total_wall),
            devices=statements.devices(plan, Phase.VALIDATE, folder.gate_again, folder.gate),
        )
    )
    return due


def _source(plan: ReplayPlan) -> dict[str, str]:
    """Name what a replay's workspace is made of; nothing where checkpoints were handed in."""
    made_of = {
        "patch": plan.patch_sha256,
        "manifest": plan.manifest_digest,
        "base": plan.base_digest,
    }
    return {name: digest for name, digest in made_of.items() if digest is not None}


def finish_scoring(ctx: Context, folder: ScoringFolder) -> None:
    """Mint a scoring's receipt and commit it."""
    plan = load(folder.plan, ScoringPlan)
    view = read_journal(folder.journal, RunKind.SCORING)
    if view.records[-1].event in _ENDS:
        _withdraw(folder, plan)
    due: list[Due] = []
    if view.last(Event.GATE_STARTED) is not None:
        materials = {
            **statements.basis(folder.plan, plan.task_digest),
            "evaluator": plan.evaluator_digest,
            **statements.seen_by(plan, Phase.SCORE),
            **{c.name: c.digest for c in plan.checkpoints},
        }
        due.append(
            Due(
                PhaseName.SCORE,
                view.records[0],
                view.records[-1],
                materials,
                {
                    **statements.score_subjects(folder, plan),
                    **statements.evidence_subjects(folder.gate, folder.telemetry),
                },
                statements.limits(plan.resources, plan.wall),
                devices=statements.devices(plan, Phase.SCORE, folder.gate),
            )
        )
    _mint(
        ctx,
        folder.receipts,
        folder.telemetry,
        plan,
        RunKind.SCORING,
        view,
        due,
        statements.scoring_name(folder, plan),
        last_receipt(folder.replay.receipts),
    )
    summary = folder.summary if folder.summary.exists() else None
    _commit(ctx, plan.run_id, folder.receipts, folder.complete, summary, view)


def _withdraw(folder: ScoringFolder, plan: ScoringPlan) -> None:
    """Remove what a scoring that failed has written and not committed: it is no result."""
    remove_file(folder.summary)
    for place in (folder.checkpoint(c.name) for c in plan.checkpoints):
        if not place.complete.exists():
            for file in (place.summary, place.official_receipt):
                remove_file(file)


def _mint(
    ctx: Context,
    folder: Path,
    telemetry: Path,
    plan: PhasePlan,
    kind: RunKind,
    view: JournalView,
    due: Sequence[Due],
    run: RunName,
    before: Minted | None,
) -> None:
    """Mint what is due, numbered on from the receipt before."""
    # A supervisor that was killed has not seen to it that its last rows are on the disk.
    sync_file(telemetry)
    for item in due:
        state = state_after(kind, view, item.last)
        prev = None if before is None else before.digest
        said = statements.statement(plan, item, run=run, view=view, state=state, prev=prev)
        before = mint(folder, 1 if before is None else before.number + 1, said, ctx.key)


def _commit(
    ctx: Context,
    run_id: str,
    receipts: Path,
    marker: Path,
    summary: Path | None,
    view: JournalView,
) -> None:
    """Pin the journal's end, link ``.complete``, and only then let the containers go."""
    last = last_receipt(receipts)
    if run_id not in ended_runs(ctx):
        ctx.campaign.append(
            CampaignEvent.ENDED,
            run_id=run_id,
            state=None if view.state is None else view.state.value,
            head=view.head,
        )
    if last is not None:
        write_complete(marker, last.path, summary)
    try:
        _remove_containers(ctx, run_id)
    except EngineUnavailableError:
        ctx.say("the engine is away; the next writing command removes the run's containers")


def ended_runs(ctx: Context) -> frozenset[str]:
    """Return the ids of the runs whose end the campaign log holds."""
    records = read_campaign(ctx.runs.campaign).records
    return frozenset(
        str(record.data["run_id"]) for record in records if record.event is CampaignEvent.ENDED
    )


def _remove_containers(ctx: Context, run_id: str) -> None:
    with ThreadPoolExecutor(max_workers=_REMOVERS) as removers:
        for removal in [removers.submit(c.remove) for c in ctx.engine.find(ctx.own(run_id))]:
            removal.result()
