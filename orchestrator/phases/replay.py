"""Replay: the same-hash patch on the pristine tree, a fresh container, exactly the task's command.

Nothing crosses from the exploration but ``candidate.patch``. Before the command starts only host
facts or an invalid patch can refuse; after it has started ``domain.outcome`` decides.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from orchestrator.domain.checkpoint import MAX_EXAMINED, select
from orchestrator.domain.container import ContainerSpec, ContainerStatus
from orchestrator.domain.outcome import HostFact, Verdict, verdict
from orchestrator.domain.records import AttemptPlan, ReplayPlan
from orchestrator.domain.roles import Phase
from orchestrator.errors import (
    ContainerLostError,
    EngineUnavailableError,
    GateRefusedError,
    InfrastructureError,
    StorageFullError,
)
from orchestrator.evidence.adoption import Adoption
from orchestrator.evidence.apply import Applied, InvalidPatch, PatchDiffers, apply, copy_pristine
from orchestrator.evidence.capped_log import CappedLog
from orchestrator.evidence.collect import Collected, collect_one, forged, published
from orchestrator.evidence.context import Context, Outcome, container_name
from orchestrator.evidence.observer import Subject
from orchestrator.evidence.rooms import Rooms, harness_mounts, host_mounts, writable_mounts
from orchestrator.evidence.supervise import Ending, Watch
from orchestrator.evidence.tree import encode_path
from orchestrator.evidence.walk import remove_tree, reopen
from orchestrator.lifecycle.machine import Event
from orchestrator.ports import Clock, Container, Volume
from orchestrator.sandbox import PHASE_LABEL, asset_mounts, container_spec
from orchestrator.storage.campaign import CampaignEvent
from orchestrator.storage.durable import make_folder
from orchestrator.storage.journal import Journal, Record
from orchestrator.storage.layout import ReplayFolder
from orchestrator.storage.ledger import Reservation
from orchestrator.storage.pack import Pack
from orchestrator.storage.records import load

_NS = 1_000_000_000
_MOST_LISTED = 200
SHELL = "/bin/bash"


@dataclass(slots=True)
class _Replay:
    ctx: Context
    plan: ReplayPlan
    folder: ReplayFolder
    journal: Journal
    rooms: Rooms


def run(
    ctx: Context,
    plan: ReplayPlan,
    pack: Pack,
    folder: ReplayFolder,
    journal: Journal,
    held: Reservation,
) -> None:
    """Run a candidate formally, collect what it published, and record what it came to.

    That is recorded before the folders it lies in are closed: a supervisor that is killed in
    between has lost nothing.

    Raises:
        InfrastructureError: the machine would not start it, or a proven patch no longer applies.
        InterruptedByOperator: a person asked for a stop before it began.
        ContainerLeftRunning: asked twice.
    """
    with Rooms(ctx, host_folder(folder), held) as rooms:
        replay = _Replay(ctx, plan, folder, journal, rooms)
        workspace = rooms.volume(folder.workspace, plan.resources.disk, "/workspace")
        refusal = _lay_workspace(replay, pack, workspace)
        if refusal is not None:
            journal.append(refusal.event, **refusal.data)
            return
        out = rooms.volume(folder.out, plan.resources.disk, "/out")
        _conclude(replay, out, _start(replay, held).run())


def resume(
    ctx: Context,
    plan: ReplayPlan,
    folder: ReplayFolder,
    journal: Journal,
    adoption: Adoption,
    held: Reservation | None,
) -> None:
    """Go on with a replay whose supervisor is gone: same container, same deadline.

    Where the host restarted, nobody knows whether all that was published reached the disk.

    Args:
        held: what of its reservation could be had again.

    Raises:
        ContainerLostError: the container is gone, so nobody knows how it ended.
        InfrastructureError: it was made and never started.
        EngineUnavailableError: the engine does not answer; nothing was judged.
    """
    started = journal.view.last(Event.RUN_STARTED)
    assert started is not None  # noqa: S101 - the state is running
    if started.boot_id != ctx.clock.boot_id():
        adoption.note(ctx, journal)
        message = "the host restarted before what was published was collected"
        journal.append(Event.INFRASTRUCTURE, fact=HostFact.HOST_REBOOTED.value, message=message)
        return
    seen = journal.view.last(Event.EXITED)
    found = ctx.engine.find({**ctx.own(plan.run_id), PHASE_LABEL: Phase.REPLAY.value})
    if not found and seen is None:
        raise ContainerLostError(f"the container of {folder.root} is gone, its end was not seen")
    if seen is None and found[0].state().status is ContainerStatus.CREATED:
        raise InfrastructureError("orch ended before the run had started")
    with Rooms(ctx, host_folder(folder), held) as rooms:
        replay = _Replay(ctx, plan, folder, journal, rooms)
        rooms.outlive(EngineUnavailableError)
        rooms.outlive(GateRefusedError)
        rooms.adopt(folder.workspace, plan.resources.disk)
        out = rooms.adopt(folder.out, plan.resources.disk)
        if seen is not None:
            rooms.outlive(StorageFullError)
            adoption.note(ctx, journal)
            _settle(replay, out, Ending.from_data(seen.data))
            return
        log = CappedLog(folder.logs)
        rooms.defer(log.close)
        deadline_ns = int(started.data["deadline_boottime_ns"])
        watch = _watch(replay, found[0], deadline_ns, log)
        watch.resume(datetime.fromisoformat(started.ts), started.mono_ns)
        found[0].adopt(log, plan.engine.incarnation)
        adoption.note(ctx, journal)
        _conclude(replay, out, watch.run())


def _conclude(replay: _Replay, out: Volume, ending: Ending) -> None:
    """Record how a run ended, and go on from there.

    What it published is kept where it lies should the disk be full now: it is collected later.
    """
    replay.journal.append(Event.EXITED, **ending.as_data())
    replay.rooms.outlive(StorageFullError)
    _pin(replay, Event.EXITED)
    _settle(replay, out, ending)


def _settle(replay: _Replay, out: Volume, ending: Ending) -> None:
    """Record what a run that has ended came to."""
    outcome = _decide(replay, out, ending)
    replay.journal.append(outcome.event, **outcome.data)


def _decide(replay: _Replay, out: Volume, ending: Ending) -> Outcome:
    """Say what a run came to, and collect what it published when it was had."""
    decided = verdict(ending.facts, ending.host_facts)
    if decided is Verdict.OPERATOR:
        spent = f"{ending.facts.duration_s:.0f} s"
        return Outcome(Event.OPERATOR, {"message": f"interrupted after {spent}"})
    if decided is Verdict.INFRASTRUCTURE:
        facts = sorted(ending.host_facts)
        message = f"the run was ended by the machine: {', '.join(facts)}"
        return Outcome(Event.INFRASTRUCTURE, {"fact": facts[0].value, "message": message})
    return _collect(replay, out)


def _lay_workspace(replay: _Replay, pack: Pack, workspace: Volume) -> Outcome | None:
    """Put pristine plus patch into the workspace and prove the result; None when it is right."""
    plan, ctx = replay.plan, replay.ctx
    if plan.patch_sha256 is None:
        copy_pristine(pack.solution, workspace.path, exclude=pack.exclude, owner=ctx.users.agent)
        return None
    found = apply(
        replay.folder.attempt.patch,
        pack.solution,
        workspace.path,
        store=ctx.store,
        expected_sha256=plan.patch_sha256.removeprefix("sha256:"),
        expected_manifest_digest=plan.manifest_digest,
        exclude=pack.exclude,
        policy=pack.spec.patch,
        owner=ctx.users.agent,
    )
    match found:
        case Applied():
            return None
        case PatchDiffers():
            raise InfrastructureError(
                f"patch_not_applied: {found.reason}",
                remedy="compare the attempt's candidate/ with its receipt: orch show",
            )
        case InvalidPatch():
            if plan.proven:
                raise InfrastructureError(f"patch_not_applied: {found.reason}")
            said = ": ".join((found.reason, *map(str, found.violations[:1])))
            return Outcome(Event.INVALID_PATCH, {"reason": said})


def _start(replay: _Replay, held: Reservation) -> Watch:
    ctx, plan, rooms = replay.ctx, replay.plan, replay.rooms
    ctx.stop.check("the run began")
    deadline_ns = ctx.clock.boottime_ns() + int(plan.wall * _NS)
    rooms.deadline(deadline_ns, plan.wall)
    container = ctx.engine.create(
        rooms.shield(spec(ctx, plan, replay.folder, deadline_ns=deadline_ns, held=held))
    )
    if not container.has_file(SHELL):
        container.remove()
        raise GateRefusedError(
            f"image {plan.image.reference} has no {SHELL}",
            remedy="choose an image with bash in task.yaml, replay.image",
        )
    log = CappedLog(replay.folder.logs)
    rooms.defer(log.close)
    watch = _watch(replay, container, deadline_ns, log)
    replay.journal.append(
        Event.RUN_STARTED,
        container=container.id,
        deadline_boottime_ns=str(deadline_ns),
        wall_s=plan.wall,
        argv=list(plan.argv),
        size_limits=dict(rooms.limits),
    )
    rooms.outlive(EngineUnavailableError)
    _pin(replay, Event.RUN_STARTED)
    watch.begin()
    container.start(log)
    rooms.close_views()
    return watch


def _watch(replay: _Replay, container: Container, deadline_ns: int, log: CappedLog) -> Watch:
    task = load(replay.folder.attempt.plan, AttemptPlan).task
    passed = replay.journal.view.last(Event.GATE_PASSED)
    devices = () if passed is None else tuple(passed.data.get("gpus", ()))
    subject = Subject.of(Phase.REPLAY, replay.folder, task, replay.rooms.held)
    return replay.ctx.watch(
        Phase.REPLAY,
        container,
        deadline_ns,
        log,
        outgrown=replay.rooms.outgrown,
        kills=replay.folder.kills,
        subject=replace(
            subject, gpus=devices[: replay.plan.resources.gpus]
        ),  # also where somebody else has one by now
    )


def spec(
    ctx: Context,
    plan: ReplayPlan,
    folder: ReplayFolder,
    *,
    deadline_ns: int,
    held: Reservation | None,
) -> ContainerSpec:
    """Describe the replay's container; nothing is made. ``held`` is None for a look."""
    return container_spec(
        name=container_name(Phase.REPLAY, plan.run_id),
        phase=Phase.REPLAY,
        image=plan.image.reference,
        argv=plan.argv,
        user=ctx.users.agent,
        agent=ctx.users.agent,
        resources=plan.resources,
        mounts=(
            *writable_mounts(folder.workspace, folder.out),
            *asset_mounts(Phase.REPLAY, plan.materials),
            *harness_mounts(ctx.harness, "timer.sh"),
            *host_mounts(host_folder(folder)),
        ),
        env=plan.env,
        labels=ctx.labels(plan.run_id, plan.engine, deadline_ns),
        isolation=ctx.isolation.of(plan),
        cpuset="" if held is None else held.cpuset,
        gpus=() if held is None else held.gpus[: plan.resources.gpus],
    )


def host_folder(folder: ReplayFolder) -> Path:
    """Where the host's files for a replay lie."""
    return folder.logs / "host"


def _deadline_of_files(clock: Clock, started: Record) -> int:
    """Say when the deadline was on the wall clock, in which file times are kept, in nanoseconds.

    Where that clock was set back meanwhile, what was published before has times by the old one: the
    later of both readings counts, for the container was ended at the true deadline anyway.
    """
    deadline_ns = int(started.data["deadline_boottime_ns"])
    at_start = int(datetime.fromisoformat(started.ts).timestamp() * 1e9) - started.mono_ns
    return max(at_start, clock.wall_ns() - clock.boottime_ns()) + deadline_ns


def _collect(replay: _Replay, out: Volume) -> Outcome:
    """Copy what was published, with the container ended, into folders of our own."""
    ctx, folder = replay.ctx, replay.folder
    started = replay.journal.view.last(Event.RUN_STARTED)
    assert started is not None  # noqa: S101 - the state is running
    deadline_ns = _deadline_of_files(ctx.clock, started)
    reopen(out.path)
    found, passed_over = select(published(out.path / "checkpoints"), deadline_ns=deadline_ns)
    remove_tree(folder.checkpoints)  # what a collection that was cut off has left
    make_folder(folder.checkpoints)
    rows: list[dict[str, Any]] = []
    # A copy has no holes and no second names of a file; all together get what /out had.
    left = replay.plan.resources.disk
    _note_forgeries(replay, out.path, "")
    for numbered in found[:MAX_EXAMINED]:
        name = numbered.name.decode("ascii")
        _note_forgeries(replay, out.path, f"checkpoints/{name}/")
        got = collect_one(
            out.path / "checkpoints" / name,
            folder.checkpoints / name,
            max_bytes=left,
        )
        row: dict[str, Any] = {"name": name, "progress": numbered.progress}
        if isinstance(got, Collected):
            left -= got.bytes
            row |= {"digest": got.digest, "size": got.bytes, "files": got.files}
        else:
            row |= {"refused": got.reason.value, "where": got.path}
        rows.append(row)
    return Outcome(
        Event.COLLECTED,
        {
            "checkpoints": rows,
            "unexamined": max(0, len(found) - MAX_EXAMINED),
            "ignored": [
                {"name": encode_path(p.name), "reason": p.reason}
                for p in passed_over[:_MOST_LISTED]
            ],
            "ignored_count": len(passed_over),
        },
    )


def _note_forgeries(replay: _Replay, out: Path, below: str) -> None:
    """Note files that look like results of ours; nothing reads them."""
    for name in forged(out / below):
        replay.journal.append(Event.NOTED, audit="result_file_forgery", name=below + name)


def _pin(replay: _Replay, event: Event) -> None:
    """Put the journal's head into the campaign log, so that a journal cut back shows."""
    replay.ctx.campaign.append(
        CampaignEvent.HEAD,
        run_id=replay.plan.run_id,
        event=event.value,
        seq=replay.journal.view.records[-1].seq,
        head=replay.journal.head,
    )
