"""What each receipt says, computed from a run's plan, journal and files alone.

So minting after a crash gives the same bytes as minting before it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from orchestrator.domain.records import (
    Artifacts,
    AttemptPlan,
    GateRecord,
    PhasePlan,
    ReplayPlan,
    ScoringPlan,
    Submission,
)
from orchestrator.domain.roles import Phase, is_visible
from orchestrator.domain.task import Resources
from orchestrator.evidence.adoption import adoptions
from orchestrator.lifecycle.machine import Event, State
from orchestrator.storage.journal import JournalView, Record
from orchestrator.storage.layout import AttemptFolder, ReplayFolder, ScoringFolder, number_of
from orchestrator.storage.records import load
from receipts.canonical import sha256_hex
from receipts.statement import (
    Device,
    Engine,
    ExitFacts,
    Image,
    Lifecycle,
    Outcome,
    PhaseName,
    PhasePredicate,
    RunName,
    Scalar,
    Statement,
    Subject,
    SubjectDigest,
    Times,
)

_REASON_KEYS = ("reason", "message")
_LIFTED = frozenset({"exit", "host_facts", "contested", "reason", "message", "started", "ended"})
_HOST_ONLY = frozenset({PhaseName.SUBMIT, PhaseName.COLLECT})
"""Phases that run no container and need no image."""
_IMAGE_OF = {PhaseName.VALIDATE: Phase.VALIDATE}
"""Phases whose image may be another than the run's own."""


@dataclass(frozen=True, slots=True)
class Due:
    """A receipt that a journal calls for.

    Attributes:
        first: the journal record the phase began with.
        last: the one that says how it came out.
        materials: name to digest of everything the phase took in.
        subjects: name to sha256 (hexadecimal) of everything it gave out.
        limits: what its container ran under; empty where there was none.
        exited: the record that holds the exit facts, where it is another than ``last``.
        devices: the GPUs that its container was given.
    """

    phase: PhaseName
    first: Record
    last: Record
    materials: Mapping[str, str]
    subjects: Mapping[str, str]
    limits: Mapping[str, Scalar] = field(default_factory=dict)
    argv: tuple[str, ...] = ()
    exited: Record | None = None
    devices: tuple[Device, ...] = ()


def statement(
    plan: PhasePlan, due: Due, *, run: RunName, view: JournalView, state: State, prev: str | None
) -> Statement:
    """Put a phase's statement together.

    Args:
        plan: where image, engine and relaxations come from.
        due: what the journal calls for.
        state: the run's state after ``due.last``.
        prev: digest of the payload before, None for the first.
    """
    head = view.records[-1]
    phase = _IMAGE_OF.get(due.phase)
    image = plan.image if phase is None else plan.image_of(phase)
    contained = due.phase not in _HOST_ONLY
    seccomp = {"seccomp": plan.seccomp} if due.limits and plan.seccomp else {}
    return Statement(
        subject=tuple(
            Subject(name=name, digest=SubjectDigest(sha256=sha256))
            for name, sha256 in sorted(due.subjects.items())
        ),
        predicate=PhasePredicate(
            phase=due.phase,
            run=run,
            official=plan.official,
            relaxations=plan.relaxations,
            materials={**due.materials, **seccomp},
            argv=due.argv,
            limits=dict(due.limits),
            image=Image(**image.model_dump()) if contained else None,
            runtime=plan.runtime if contained else None,
            engine=Engine(**plan.engine.model_dump()) if contained else None,
            devices=due.devices,
            outcome=outcome(due.last, state, due.exited, _taken_over(view, due)),
            times=times(due.first, due.last),
            orchestrator=plan.version,
            lifecycle=Lifecycle(seq=head.seq, head=view.head),
            prev=prev,
        ),
    )


def limits(need: Resources, wall: float, started: Record | None = None) -> dict[str, Scalar]:
    """Name the limits a phase ran under.

    ``wall_s`` is in seconds, sizes are bytes. How the size of each writable folder was limited is
    what the host could do; ``started`` says it.
    """
    sizes = {} if started is None else started.data.get("size_limits", {})
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
        "wall_s": wall,
        **{f"size_limit:{target}": how for target, how in sizes.items()},
    }


def _taken_over(view: JournalView, due: Due) -> dict[str, Any]:
    """Say who took the run over, by then, from a supervisor that died."""
    found = adoptions(view.records[: due.last.seq])
    return {"adopted": found} if found else {}


def outcome(
    event: Record,
    state: State,
    exited: Record | None = None,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> Outcome:
    """Turn a journal record into a receipt's outcome; exit facts may stand in another record.

    Args:
        more: details that stand in further records.
    """
    data = event.data
    facts = data if exited is None else exited.data
    exit_facts = facts.get("exit")
    reason = next((str(data[key]) for key in _REASON_KEYS if data.get(key)), "")
    return Outcome(
        event=event.event.value,
        state=state.value,
        reason=reason,
        exit=None if exit_facts is None else ExitFacts(**exit_facts),
        host_facts=tuple(facts.get("host_facts", ())),
        contested=tuple(facts.get("contested", ())),
        details={key: value for key, value in data.items() if key not in _LIFTED} | dict(more),
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
    return RunName(task=plan.task.name, config=plan.config, attempt=plan.number, run_id=plan.run_id)


def replay_name(folder: ReplayFolder, plan: ReplayPlan) -> RunName:
    """Name a replay in its receipts."""
    return RunName(
        task=load(folder.attempt.plan, AttemptPlan).task.name,
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
        task=load(replay.attempt.plan, AttemptPlan).task.name,
        config=replay.attempt.root.parent.name,
        attempt=number_of(replay.attempt.root),
        replay=number_of(replay.root),
        scoring=plan.number,
        series=load(replay.plan, ReplayPlan).series,
        run_id=plan.run_id,
    )


def basis(plan: Path, task_digest: str) -> dict[str, str]:
    """Name what every phase rests on: the task, and the plan by the bytes of its file."""
    return {"task": task_digest, "plan": f"sha256:{file_sha256(plan)}"}


def agent_materials(plan: AttemptPlan) -> dict[str, str]:
    """Name what explored: our own code for it and, where it has one, its package."""
    package = plan.agent_package
    fetched = {} if package is None else {"agent_package": package.package.digest}
    return {"agent": plan.agent_digest, **fetched}


def start_materials(plan: AttemptPlan) -> dict[str, str]:
    """Name the shipped solution that an exploration starts from."""
    return {"workspace": plan.workspace} if plan.workspace else {}


def candidate_materials(folder: AttemptFolder) -> dict[str, str]:
    """Name what a submission takes in: the captured files, the tree they make, the tree before."""
    files = {name: f"sha256:{digest}" for name, digest in candidate_subjects(folder).items()}
    if not folder.submission.exists():
        return files
    submission = load(folder.submission, Submission)
    return {**files, "manifest": submission.manifest_digest, "base": submission.base_digest}


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


def evidence_subjects(*evidence: Path) -> dict[str, str]:
    """Name what the gate and the watch saw, those files of it which exist."""
    return {file.name: file_sha256(file) for file in evidence if file.exists()}


def devices(plan: PhasePlan, phase: Phase, *evidence: Path) -> tuple[Device, ...]:
    """Name the GPUs that a phase had, by the latest evidence of the gate that there is."""
    found = next((file for file in evidence if file.exists()), None)
    if plan.gpu is None or found is None:
        return ()
    record = load(found, GateRecord)
    if not record.passed or record.devices is None:
        return ()
    from orchestrator.domain.gate_evidence import DeviceEvidence  # noqa: PLC0415 - GPUs only

    seen = DeviceEvidence.model_validate(record.devices)
    given = seen.devices[: plan.gpu.counts.get(phase, 0)]
    return tuple(Device(**device.model_dump(include=set(Device.model_fields))) for device in given)


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


def event_of(view: JournalView, *events: Event) -> Record | None:
    """Return the latest record of any of ``events``."""
    return next((r for r in reversed(view.records) if r.event in events), None)
