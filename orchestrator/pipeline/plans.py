"""Plan a run: everything that is decided before it starts, and nothing written yet.

A plan says which task, image, assets, limits and engine a run has, and why it is not official.
"""

import uuid
from pathlib import Path
from typing import Any

from orchestrator import __version__
from orchestrator.domain.attempt import ConfigName, Entry, RunKind, Series, candidate_key
from orchestrator.domain.records import (
    OTHER_TASK,
    Artifacts,
    AttemptPlan,
    PhasePlan,
    PlannedCheckpoint,
    ReplayPlan,
    ScoringPlan,
    Submission,
)
from orchestrator.domain.roles import Phase
from orchestrator.domain.task import wall_settings
from orchestrator.errors import TaskPackError, UsageError
from orchestrator.evidence.context import Context
from orchestrator.evidence.readable import require_readable
from orchestrator.lifecycle.machine import State, is_terminal
from orchestrator.pipeline.gpus import plan_gpus
from orchestrator.pipeline.on_host import (
    evaluator_digest,
    harness_digest,
    image_record,
    materials,
    relaxations,
    workspace_digest,
)
from orchestrator.pipeline.versions import require_known
from orchestrator.storage.campaign import CampaignEvent, read_campaign
from orchestrator.storage.journal import read_journal
from orchestrator.storage.layout import AttemptFolder, ReplayFolder
from orchestrator.storage.pack import Pack, load_pack
from orchestrator.storage.records import load
from orchestrator.storage.supervisor import named

NO_MODEL = "none"


def pack_of(folder: AttemptFolder) -> Pack:
    """Load the pack an attempt was made with, from where it was.

    Raises:
        TaskPackError: it is faulty; or the attempt or its config is of another version.
    """
    require_known(folder)
    return load_pack(Path(load(folder.plan, AttemptPlan).pack))


def plan_attempt(
    ctx: Context,
    pack: Pack,
    *,
    agent: str,
    agent_digest: str,
    model: str,
    effort: str,
    entry: Entry,
    official: bool,
    patch_name: str = "",
) -> AttemptPlan:
    """Plan an attempt; nothing is written."""
    phase = Phase.EXPLORE if entry is not Entry.CHECKPOINT else Phase.VALIDATE
    config = ConfigName(agent, pack.spec.name, model, effort)
    return AttemptPlan(
        **_common(ctx, pack, phase, (phase,), official=official),
        wall=pack.spec.explore.wall,
        entry=entry,
        config=config.folder,
        pack=str(pack.source),
        task_digest=pack.digest,
        task=pack.spec,
        workspace=workspace_digest(ctx, pack),
        agent=agent,
        agent_digest=agent_digest,
        model=model,
        effort=effort,
        patch_name=patch_name,
    )


def plan_replay(
    ctx: Context,
    folder: AttemptFolder,
    pack: Pack,
    *,
    series: Series,
    again: str | None,
    official: bool,
) -> ReplayPlan:
    """Plan a further replay of an attempt's candidate.

    Raises:
        UsageError: there is no candidate, or this member of the series is finished already, or one
            of attempt and replay is official and the other is not.
        TaskPackError: the pack is not the one the attempt was made with.
    """
    attempt = load(folder.plan, AttemptPlan)
    require_same_pack(attempt, pack)
    require_standing(official, attempt, folder.root)
    state = read_journal(folder.journal, RunKind.ATTEMPT).state
    if state is not State.SUBMITTED:
        raise UsageError(
            f"{folder.root} has no candidate to replay (it is {state})",
            remedy=f"orch lifecycle {attempt.run_id[:8]} tells its story",
        )
    require_free_member(ctx, folder, series, again)
    submission = load(folder.submission, Submission) if folder.submission.exists() else None
    # Checkpoints that are handed in have no tree; their attempt stands for them.
    tree = attempt.run_id if submission is None else submission.manifest_digest
    seen = (Phase.REPLAY, Phase.VALIDATE)
    common = _common(ctx, pack, Phase.REPLAY, seen, official=official)
    return ReplayPlan(
        **common,
        wall=pack.spec.replay.wall,
        attempt_id=attempt.run_id,
        validator_image=image_record(ctx, pack.spec.resources(Phase.VALIDATE).image),
        candidate=candidate_key(attempt.task_digest, tree, common["image"].digest),
        series=series.name,
        argv=tuple(pack.spec.replay.command.split()),
        env=replay_environment(pack, series),
        patch_sha256=None if submission is None else submission.patch_sha256,
        manifest_digest=None if submission is None else submission.manifest_digest,
        base_digest=None if submission is None else submission.base_digest,
        proven=submission is not None,
        again=again,
    )


def plan_scoring(
    ctx: Context, replay: ReplayFolder, pack: Pack, *, reference_run: bool, official: bool
) -> ScoringPlan:
    """Plan a scoring of a replay's accepted checkpoints.

    Raises:
        UsageError: the replay has no accepted checkpoint, or a finished scoring with this
            evaluator exists; one of replay and scoring is official and the other is not; or
            ``official``, with another pack than the attempt's.
        TaskPackError: more of the task than its evaluator is another than the attempt's.
    """
    plan, attempt = load(replay.plan, ReplayPlan), load(replay.attempt.plan, AttemptPlan)
    another = _another_pack(attempt, pack, official=official)
    if not another:
        require_standing(official, plan, replay.root)
    if pack.spec != attempt.task:
        raise TaskPackError(
            f"{pack.source} is not the task of {replay.attempt.root}",
            remedy="restore its task.yaml; a corrected evaluator goes into the same file",
        )
    state = read_journal(replay.journal, RunKind.REPLAY).state
    accepted = load(replay.artifacts, Artifacts).accepted() if replay.artifacts.exists() else ()
    if state is not State.TERMINAL_BEHAVIOR or not accepted:
        raise UsageError(
            f"{replay.root} has no accepted checkpoint to score (it is {state})",
            remedy=f"orch show {plan.run_id[:8]} says what became of it",
        )
    evaluator = evaluator_digest(pack)
    supersedes = superseded(replay, evaluator)
    common = _common(ctx, pack, Phase.SCORE, (Phase.SCORE,), official=official)
    return ScoringPlan(
        **{**common, "relaxations": common["relaxations"] + another},
        wall=pack.spec.score.wall,
        replay_id=plan.run_id,
        task_digest=attempt.task_digest,
        evaluator_digest=evaluator,
        metric=pack.spec.score.metric,
        direction=pack.spec.score.direction,
        checkpoints=tuple(
            PlannedCheckpoint(name=a.name, progress=a.progress, digest=a.digest)
            for a in accepted
            if a.progress is not None and a.digest is not None
        ),
        reference_run=reference_run,
        supersedes=supersedes,
    )


def _another_pack(attempt: AttemptPlan, pack: Pack, *, official: bool) -> tuple[str, ...]:
    """Say so where a pack is not the attempt's any more: its digest vouches for no evaluator then.

    Raises:
        UsageError: ``official`` was asked for.
    """
    if pack.digest == attempt.task_digest:
        return ()
    if official:
        raise UsageError(
            f"{pack.source} is {pack.digest}, the attempt was made with {attempt.task_digest}: "
            "no score with it is official",
            remedy="restore the pack of the attempt; without --official the score is local, and "
            "supersedes one there is",
        )
    return (f"{OTHER_TASK}: {pack.digest}",)


def _common(
    ctx: Context, pack: Pack, phase: Phase, seen: tuple[Phase, ...], *, official: bool
) -> dict[str, Any]:
    """Say what every plan says: which run, on what, under which limits, with which assets.

    Args:
        phase: whose resources and image the run has.
        seen: the phases whose assets the run mounts.
    """
    need = pack.spec.resources(phase)
    require_readable(ctx.harness, pack, ctx.users)
    gpu = plan_gpus(ctx, pack.spec, seen)
    return {
        "run_id": uuid.uuid4().hex,
        "number": 0,
        "created": ctx.now(),
        "version": __version__,
        "official": official,
        "relaxations": relaxations(ctx, need, gpu, official=official),
        "engine": ctx.engine_record(),
        "image": image_record(ctx, need.image),
        "resources": need,
        "materials": materials(ctx, pack, seen),
        "harness_digest": harness_digest(ctx),
        "runtime": ctx.isolation.runtime,
        "seccomp": ctx.isolation.digest,
        "gpu": gpu,
    }


def replay_environment(pack: Pack, series: Series) -> dict[str, str]:
    """Name the variables that ``run.sh`` gets: where to publish, how long it has, its seed."""
    maximum, reserve = wall_settings(pack.spec.replay.wall, pack.spec.replay.reserve)
    env = {
        "OUTPUT_DIR": "/out",
        "MAX_WALL_TIME_SECONDS": str(maximum),
        "DEADLINE_RESERVE_SECONDS": str(reserve),
    }
    variable, seed = pack.spec.replay.seed_variable, series.seed
    if variable is not None and seed is not None:
        env[variable] = str(seed)
    return env


def require_same_pack(attempt: AttemptPlan, pack: Pack) -> None:
    """Hold a pack, as it lies there now, against the one that an attempt was made with.

    Raises:
        TaskPackError: it is another.
    """
    if pack.digest != attempt.task_digest:
        raise TaskPackError(
            f"{pack.source} is {pack.digest}, the attempt was made with {attempt.task_digest}",
            remedy="restore the pack of the attempt, or explore again with this one",
        )


def require_standing(official: bool, before: PhasePlan, root: Path) -> None:  # noqa: FBT001
    """Refuse an official run on top of a local one, and the reverse.

    A result is as official as its least part, and the first finished one counts: a word forgotten
    would make what hours of official work led to local for good.

    Raises:
        UsageError: it is such a run.
    """
    if official and not before.official:
        raise UsageError(
            f"{root} is local, so nothing official can follow from it",
            remedy="begin with orch explore --official, or leave out --official",
        )
    if before.official and not official:
        raise UsageError(
            f"{root} is official; what follows from it without --official would be local for good",
            remedy="add --official; for a local try enter its patch apart: orch submit-patch",
        )


def require_free_member(
    ctx: Context, folder: AttemptFolder, series: Series, again: str | None
) -> None:
    """Refuse a member that has a replay which is finished or under way.

    Raises:
        UsageError: it has, here or by the campaign log; or a person stopped it and no reason to go
            on is given.
    """
    _require_here(ctx, folder, series)
    for earlier in folder.replays():
        if not earlier.plan.exists():
            continue
        plan = load(earlier.plan, ReplayPlan)
        if plan.series != series.name:
            continue
        state = read_journal(earlier.journal, RunKind.REPLAY).state
        if state is State.TERMINAL_BEHAVIOR:
            raise UsageError(
                f"{earlier.root} is finished; a series has at most one finished replay per member",
                remedy=f"orch show {plan.run_id[:8]} prints it; --repeats N adds seeded members",
            )
        if state is State.TERMINAL_OPERATOR and not again:
            raise UsageError(
                f"{earlier.root} was stopped by a person",
                remedy='give --again "REASON"; it is recorded and shown beside the result',
            )
        if state not in {State.TERMINAL_INFRASTRUCTURE, State.TERMINAL_OPERATOR}:
            raise UsageError(
                f"{earlier.root} has not ended (it is {state}, seen to by {named(earlier.root)})",
                remedy=f"orch lifecycle {plan.run_id[:8]} tells where it stands",
            )


def _require_here(ctx: Context, folder: AttemptFolder, series: Series) -> None:
    """Refuse to draw again what finished and was removed."""
    attempt_id = load(folder.plan, AttemptPlan).run_id
    here = {load(r.plan, ReplayPlan).run_id for r in folder.replays() if r.plan.exists()}
    drawn: set[str] = set()
    for record in read_campaign(ctx.runs.campaign).records:
        run_id, data = str(record.data.get("run_id")), record.data
        if record.event is CampaignEvent.REPLAY_REGISTERED:
            if (data.get("attempt_id"), data.get("series")) == (attempt_id, series.name):
                drawn.add(run_id)
        elif (
            record.event is CampaignEvent.ENDED
            and run_id in drawn - here
            and data.get("state") == State.TERMINAL_BEHAVIOR
        ):
            raise UsageError(
                f"replay {run_id[:8]} ({series.name}) of {folder.root} is finished by the "
                "campaign log, and its folder is gone",
                remedy="put it back; a series has at most one finished replay per member",
            )


def superseded(replay: ReplayFolder, evaluator: str) -> int | None:
    """Return the number of a finished scoring by another evaluator.

    Raises:
        UsageError: one by this evaluator is finished, or any is under way.
    """
    older: int | None = None
    for earlier in replay.scorings():
        if not earlier.plan.exists():
            continue
        state = read_journal(earlier.journal, RunKind.SCORING).state
        if state is not None and not is_terminal(RunKind.SCORING, state):
            raise UsageError(
                f"{earlier.root} has not ended (it is {state}, seen to by {named(earlier.root)})",
                remedy=f"orch lifecycle {earlier.root} tells where it stands",
            )
        if state not in {State.SCORED, State.INVALID, State.UNSCORABLE}:
            continue
        plan = load(earlier.plan, ScoringPlan)
        if plan.evaluator_digest == evaluator:
            raise UsageError(
                f"{earlier.root} is finished; the first finished scoring counts",
                remedy=f"orch show {plan.run_id[:8]} prints it",
            )
        older = plan.number
    return older
