"""What each receipt says, computed from a run's plan, journal and files alone.

So minting after a crash gives the same bytes as minting before it.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from orchestrator.domain.records import (
    Artifacts,
    AttemptPlan,
    GateRecord,
    PhasePlan,
    ReplayPlan,
    ScoringPlan,
)
from orchestrator.domain.roles import Phase, is_visible
from orchestrator.lifecycle.machine import Event, State
from orchestrator.storage.journal import JournalView, Record
from orchestrator.storage.layout import AttemptFolder, ReplayFolder, ScoringFolder, number_of
from orchestrator.storage.records import load
from receipts.canonical import sha256_hex
from receipts.statement import (
    Engine,
    ExitFacts,
    Image,
    Lifecycle,
    Outcome,
    PhaseName,
    PhasePredicate,
    RunName,
    Statement,
    Subject,
    SubjectDigest,
    Times,
)

_REASON_KEYS = ("reason", "message")
_LIFTED = frozenset({"exit", "host_facts", "contested", "reason", "message", "started", "ended"})


def statement(
    plan: PhasePlan,
    phase: PhaseName,
    *,
    run: RunName,
    view: JournalView,
    event: Record,
    state: State,
    materials: Mapping[str, str],
    subjects: Mapping[str, str],
    prev: str | None,
    times: Times,
    argv: tuple[str, ...] = (),
) -> Statement:
    """Put a phase's statement together.

    Args:
        plan: where image, engine, limits and relaxations come from.
        event: the journal record that says how the phase came out.
        state: the run's state after it.
        materials: name to digest of everything the phase took in.
        subjects: name to sha256 (hexadecimal) of everything it gave out.
        prev: digest of the payload before, None for the first.
    """
    last = view.records[-1]
    return Statement(
        subject=tuple(
            Subject(name=name, digest=SubjectDigest(sha256=sha256))
            for name, sha256 in sorted(subjects.items())
        ),
        predicate=PhasePredicate(
            phase=phase,
            run=run,
            official=plan.official,
            relaxations=plan.relaxations,
            materials=dict(materials),
            argv=argv,
            limits=limits(plan),
            image=Image(**plan.image.model_dump()),
            runtime="runc",
            engine=Engine(**plan.engine.model_dump()),
            outcome=outcome(event, state),
            times=times,
            orchestrator=plan.version,
            lifecycle=Lifecycle(seq=last.seq, head=view.head),
            prev=prev,
        ),
    )


def limits(plan: PhasePlan) -> dict[str, str | int | float | bool | None]:
    """Name the limits a phase ran under."""
    need = plan.resources
    return {
        "cpus": need.cpus,
        "memory": need.memory,
        "swap": need.memory,
        "shm": need.shm,
        "tmp": need.tmp,
        "pids": need.pids,
        "disk": need.disk,
        "gpus": need.gpus,
        "network": "none",
        "read_only": need.read_only,
        "wall_s": plan.wall,
    }


def outcome(event: Record, state: State) -> Outcome:
    """Turn a journal record into a receipt's outcome."""
    data = event.data
    exit_facts = data.get("exit")
    reason = next((str(data[key]) for key in _REASON_KEYS if data.get(key)), "")
    return Outcome(
        event=event.event.value,
        state=state.value,
        reason=reason,
        exit=None if exit_facts is None else ExitFacts(**exit_facts),
        host_facts=tuple(data.get("host_facts", ())),
        contested=tuple(data.get("contested", ())),
        details={key: value for key, value in data.items() if key not in _LIFTED},
    )


def times(first: Record, last: Record) -> Times:
    """Say when, from two journal records of one boot; the clock that cannot step gives the length.

    Across a reboot the monotonic clock says nothing; the wall clock is all there is.
    """
    wall = (datetime.fromisoformat(last.ts) - datetime.fromisoformat(first.ts)).total_seconds()
    same_boot = first.boot_id == last.boot_id
    duration = (last.mono_ns - first.mono_ns) / 1e9 if same_boot else max(0.0, wall)
    return Times(
        started=first.ts,
        ended=last.ts,
        duration_s=round(duration, 3),
        clock_step=round(wall - duration, 3) if abs(wall - duration) > 1.0 else 0.0,
    )


def seen_by(plan: PhasePlan, phase: Phase) -> dict[str, str]:
    """Name the assets a phase's containers saw, by role and path."""
    return {
        f"{material.role.value}:{path}": material.digest
        for path, material in plan.materials.items()
        if is_visible(material.role, phase, frozenset(material.also))
    }


def file_sha256(path: Path) -> str:
    """Hash a small file of ours, in hexadecimal digits."""
    return sha256_hex(path.read_bytes())


def attempt_name(plan: AttemptPlan) -> RunName:
    """Name an attempt in its receipts."""
    return RunName(config=plan.config, attempt=plan.number, run_id=plan.run_id)


def replay_name(folder: ReplayFolder, plan: ReplayPlan) -> RunName:
    """Name a replay in its receipts."""
    return RunName(
        config=folder.attempt.root.parent.name,
        attempt=number_of(folder.attempt.root),
        replay=plan.number,
        series=plan.series,
        run_id=plan.run_id,
    )


def scoring_name(folder: ScoringFolder, plan: ScoringPlan) -> RunName:
    """Name a scoring in its receipts."""
    replay = folder.replay
    return RunName(
        config=replay.attempt.root.parent.name,
        attempt=number_of(replay.attempt.root),
        replay=number_of(replay.root),
        scoring=plan.number,
        series=load(replay.plan, ReplayPlan).series,
        run_id=plan.run_id,
    )


def candidate_subjects(folder: AttemptFolder) -> dict[str, str]:
    """Name what a submission gives out, those of its files that exist."""
    files = (folder.patch, folder.manifest, folder.submission)
    return {f"candidate/{f.name}": file_sha256(f) for f in files if f.exists()}


def checkpoint_subjects(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Name collected checkpoints by the sha256 of their tree identity."""
    return {
        f"checkpoints/{row['name']}": str(row["digest"]).rpartition(":")[2]
        for row in rows
        if row.get("digest")
    }


def gate_subjects(folder: ReplayFolder) -> dict[str, str]:
    """Name the gate's evidence."""
    return {"gate.json": file_sha256(folder.gate)} if folder.gate.exists() else {}


def validation_subjects(folder: ReplayFolder) -> dict[str, str]:
    """Name what validation gives out: its table, and each accepted checkpoint."""
    artifacts = load(folder.artifacts, Artifacts)
    rows = [{"name": a.name, "digest": a.digest} for a in artifacts.accepted()]
    return {"artifacts.json": file_sha256(folder.artifacts), **checkpoint_subjects(rows)}


def score_subjects(folder: ScoringFolder, plan: ScoringPlan) -> dict[str, str]:
    """Name every summary and official receipt of a scoring, those that exist."""
    found = {}
    for checkpoint in plan.checkpoints:
        place = folder.checkpoint(checkpoint.name)
        for file in (place.summary, place.official_receipt):
            if file.exists():
                found[f"{checkpoint.name}/out/{file.name}"] = file_sha256(file)
    if folder.summary.exists():
        found["summary.json"] = file_sha256(folder.summary)
    return found


def gate_passed(folder: ReplayFolder) -> bool:
    """Tell whether the gate's evidence says it was passed."""
    return folder.gate.exists() and load(folder.gate, GateRecord).passed


def event_of(view: JournalView, *events: Event) -> Record | None:
    """Return the latest record of any of ``events``."""
    return next((r for r in reversed(view.records) if r.event in events), None)
