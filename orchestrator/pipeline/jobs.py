"""What a person asks for, whole: an exploration, replays with their scoring, an entered patch.

Each job registers before it starts, drives its run to an end, and returns where that lies. The
members of a series are declared before the first of them starts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.agents.registry import make_agent
from orchestrator.domain.attempt import Entry, RunKind, Series, SubmissionOrigin, Through, seeded
from orchestrator.domain.checkpoint import EntryKind, Published, select
from orchestrator.domain.records import Artifacts, AttemptPlan, ReplayPlan
from orchestrator.domain.roles import Phase
from orchestrator.errors import UsageError
from orchestrator.evidence.adoption import Adoption
from orchestrator.evidence.collect import Collected, collect_one
from orchestrator.evidence.context import Context, Outcome
from orchestrator.evidence.image_workspace import with_workspace
from orchestrator.evidence.tree import tree_digest
from orchestrator.lifecycle.machine import Event, State
from orchestrator.phases import explore as explore_phase
from orchestrator.phases.submit import enter_patch, judge_patch
from orchestrator.pipeline import drive, plans, reconcile, register
from orchestrator.pipeline.agents import Supply, verify_package
from orchestrator.pipeline.plans import pack_of
from orchestrator.pipeline.versions import require_known
from orchestrator.ports import Agent
from orchestrator.report import words
from orchestrator.storage.campaign import CampaignEvent, read_campaign
from orchestrator.storage.durable import make_folder
from orchestrator.storage.journal import read_journal
from orchestrator.storage.layout import AttemptFolder, ReplayFolder, ScoringFolder
from orchestrator.storage.pack import Pack, load_pack
from orchestrator.storage.records import load
from orchestrator.storage.supervisor import alone

_LARGEST_CHECKPOINT = 1 << 50


@dataclass(frozen=True, slots=True)
class Replayed:
    """One replay and, where it went that far, its scoring."""

    folder: ReplayFolder
    state: State
    scoring: ScoringFolder | None = None
    scored: State | None = None


def plan_explore(
    ctx: Context, task: Path, *, agent: str, model: str, effort: str, official: bool
) -> tuple[Pack, AttemptPlan]:
    """Plan an exploration; nothing is written.

    Raises:
        UsageError: the agent or the model cannot be had.
        TaskPackError: the pack is faulty, or its instruction does not render.
        AssetMismatchError: an asset is missing.
    """
    pack = _at_hand(ctx, load_pack(task))
    chosen = Supply(ctx.packages, ctx.models).choose(agent, pack, model=model, effort=effort)
    plan = plans.plan_attempt(
        ctx,
        pack,
        agent=chosen.name,
        agent_digest=chosen.agent.digest,
        model=model,
        effort=effort,
        entry=Entry.EXPLORE,
        official=official,
    )
    plan = chosen.completed(plan)
    explore_phase.instruction(plan, pack)
    return pack, plan


def _at_hand(ctx: Context, pack: Pack) -> Pack:
    """Have the shipped solution here; for a look at a plan an image may be absent."""
    try:
        return with_workspace(ctx.engine, ctx.assets, pack)
    except UsageError:
        if not ctx.look:
            raise
        return pack


def explore(ctx: Context, pack: Pack, plan: AttemptPlan) -> tuple[AttemptFolder, State]:
    """Run a planned exploration to its submission."""
    ctx.stop.check("an attempt was registered")
    agent = ready(ctx, pack, plan)
    folder = register.register_attempt(ctx, plan)
    ctx.say(f"{folder.root.name} of {plan.config}")
    return folder, drive.drive_attempt(ctx, folder, pack, agent)


def ready(ctx: Context, pack: Pack, plan: AttemptPlan) -> Agent:
    """Hash what a planned exploration is about to use; return its agent.

    Raises:
        AssetMismatchError: an asset or the agent's package is not what was locked.
    """
    agent = make_agent(plan.agent, pack)
    ctx.assets.verify(pack, (Phase.EXPLORE,), tree_digest)
    verify_package(ctx, plan)
    return agent


def submit_patch(
    ctx: Context, task: Path, patch: Path, *, official: bool
) -> tuple[AttemptFolder, State]:
    """Enter a patch as a candidate, without an exploration.

    Raises:
        TaskPackError: the patch does not apply whole or breaks the policy; nothing was registered.
    """
    pack = _at_hand(ctx, load_pack(task))
    judged = judge_patch(ctx, pack, patch)
    plan = plans.plan_attempt(
        ctx,
        pack,
        agent="patch",
        agent_digest=judged.submission.patch_sha256,
        model=plans.NO_MODEL,
        effort="none",
        entry=Entry.PATCH,
        official=official,
        patch_name=patch.name.encode("utf-8", "backslashreplace").decode(),
    )
    folder = register.register_attempt(ctx, plan)
    return folder, drive.drive_entered(ctx, folder, enter_patch(folder, judged))


def replay(
    ctx: Context,
    attempt: AttemptFolder,
    *,
    repeats: int | None,
    again: str | None,
    through: Through,
    official: bool,
) -> tuple[Replayed, ...]:
    """Replay a candidate: its official member, or its declared seeded members one by one.

    Raises:
        UsageError: nothing is left to replay, or another number was declared before.
    """
    pack = with_workspace(ctx.engine, ctx.assets, pack_of(attempt))
    left_running = reconcile.unfinished_replay(ctx, attempt)
    if left_running is not None:
        ctx.say(f"going on with {left_running.root.name}, which has no supervisor")
        state = reconcile.take_over(ctx, left_running, Adoption())
        plan = load(left_running.plan, ReplayPlan)
        return (_scored(ctx, left_running, state, through, official=plan.official),)
    plans.require_standing(official, load(attempt.plan, AttemptPlan), attempt.root)
    if repeats is None:
        return (_replay_member(ctx, attempt, pack, Series(), again, through, official=official),)
    members = declare(ctx, attempt, repeats)
    done: list[Replayed] = []
    refusals: list[UsageError] = []
    for member in members:
        try:
            done.append(
                _replay_member(ctx, attempt, pack, member, again, through, official=official)
            )
        except UsageError as refusal:
            refusals.append(refusal)
    if not done:
        raise refusals[0]
    return tuple(done)


def declare(ctx: Context, attempt: AttemptFolder, count: int) -> tuple[Series, ...]:
    """Declare how many seeded members there will be, before the first starts.

    Raises:
        UsageError: another number was declared before.
    """
    run_id = load(attempt.plan, AttemptPlan).run_id
    with alone(attempt.root):
        declared = _declared(ctx, run_id)
        if declared is None:
            ctx.campaign.append(
                CampaignEvent.SERIES_DECLARED, attempt_id=run_id, series="seed", count=count
            )
        elif declared != count:
            raise UsageError(
                f"{attempt.root} has {declared} seeded replays declared, not {count}",
                remedy=f"--repeats {declared} goes on with them",
            )
    return seeded(count)


def _declared(ctx: Context, run_id: str) -> int | None:
    """Return how many seeded members an attempt has declared; None when it has not yet."""
    for record in read_campaign(ctx.runs.campaign).records:
        if (
            record.event is CampaignEvent.SERIES_DECLARED
            and record.data.get("attempt_id") == run_id
        ):
            return int(record.data["count"])
    return None


def _replay_member(
    ctx: Context,
    attempt: AttemptFolder,
    pack: Pack,
    series: Series,
    again: str | None,
    through: Through,
    *,
    official: bool,
) -> Replayed:
    ctx.stop.check("a replay was registered")
    plan = plans.plan_replay(ctx, attempt, pack, series=series, again=again, official=official)
    folder = register.register_replay(ctx, attempt, plan, through)
    ctx.say(f"{folder.root.name} (series {series.name}), {plan.standing}")
    state = drive.drive_replay(ctx, folder, pack)
    return _scored(ctx, folder, state, through, official=official)


def _scored(
    ctx: Context, folder: ReplayFolder, state: State, through: Through, *, official: bool
) -> Replayed:
    """Go on to scoring where that was asked for and there is something to score."""
    if through is Through.VALIDATE or not folder.artifacts.exists():
        return Replayed(folder, state)
    if not load(folder.artifacts, Artifacts).accepted():
        return Replayed(folder, state)
    scoring, scored = score(ctx, folder, reference_run=False, official=official)
    return Replayed(folder, state, scoring, scored)


def go_on(ctx: Context, folder: ReplayFolder) -> None:
    """Score a replay that was taken over, where it was started to be scored and is not yet.

    Raises:
        InfrastructureError: the scoring failed; recorded as its ending.
    """
    registered = read_journal(folder.journal, RunKind.REPLAY).records[0]
    if folder.scorings() or registered.data.get("through") != Through.SCORE:
        return
    plan = load(folder.plan, ReplayPlan)
    _scored(ctx, folder, State.TERMINAL_BEHAVIOR, Through.SCORE, official=plan.official)


def score(
    ctx: Context, replayed: ReplayFolder, *, reference_run: bool, official: bool
) -> tuple[ScoringFolder, State]:
    """Score a replay's accepted checkpoints as a new numbered scoring."""
    ctx.stop.check("a scoring was registered")
    require_known(replayed)
    pack = pack_of(replayed.attempt)
    plan = plans.plan_scoring(ctx, replayed, pack, reference_run=reference_run, official=official)
    folder = register.register_scoring(ctx, replayed, plan)
    found = words.count(len(plan.checkpoints), "checkpoint")
    ctx.say(f"{folder.root.name} over {found}, {plan.standing}")
    return folder, drive.drive_scoring(ctx, folder, pack)


def score_checkpoints(
    ctx: Context,
    task: Path,
    checkpoints: Mapping[str, Path],
    *,
    reference_run: bool,
    official: bool,
) -> Replayed:
    """Validate and score checkpoints that exist already, without exploration or replay.

    Args:
        checkpoints: progress (as text) to folder.

    Raises:
        UsageError: a progress is not a number, or a folder is not there.
    """
    pack = _at_hand(ctx, load_pack(task))
    rows = _numbered(checkpoints)
    plan = plans.plan_attempt(
        ctx,
        pack,
        agent="checkpoint",
        agent_digest="sha256:" + "0" * 64,
        model=plans.NO_MODEL,
        effort="none",
        entry=Entry.CHECKPOINT,
        official=official,
    )
    attempt = register.register_attempt(ctx, plan)
    entered = {"reason": None, "origin": SubmissionOrigin.OPERATOR_CHECKPOINT.value}
    drive.drive_entered(ctx, attempt, Outcome(Event.CAPTURED, entered))
    replay_plan = plans.plan_replay(
        ctx, attempt, pack, series=Series(), again=None, official=official
    )
    folder = register.register_replay(ctx, attempt, replay_plan)
    state = drive.drive_checkpoints(ctx, folder, pack, lambda: _entered(folder, rows))
    if not load(folder.artifacts, Artifacts).accepted():
        return Replayed(folder, state)
    scoring, scored = score(ctx, folder, reference_run=reference_run, official=official)
    return Replayed(folder, state, scoring, scored)


def _numbered(checkpoints: Mapping[str, Path]) -> list[tuple[str, Path]]:
    """Order checkpoints as validation wants them, greatest progress first."""
    sources = {f"checkpoint-{progress}".encode(): path for progress, path in checkpoints.items()}
    found, passed = select(Published(name, EntryKind.FOLDER, 0) for name in sources)
    if passed:
        raise UsageError(
            f"{passed[0].name.decode(errors='backslashreplace')} is not checkpoint-<number>",
            remedy="--checkpoint 7800=path/to/folder",
        )
    for path in checkpoints.values():
        if not path.is_dir():
            raise UsageError(f"{path} is not a folder", remedy="--checkpoint 7800=path/to/folder")
    return [(numbered.name.decode(), sources[numbered.name].resolve()) for numbered in found]


def _entered(folder: ReplayFolder, rows: Sequence[tuple[str, Path]]) -> Outcome:
    """Copy checkpoints in; a disk that has no room for them ends the replay."""
    make_folder(folder.checkpoints)
    collected = [_enter(folder, name, source) for name, source in rows]
    return Outcome(Event.COLLECTED, {"checkpoints": collected, "ignored": []})


def _enter(folder: ReplayFolder, name: str, source: Path) -> dict[str, Any]:
    got = collect_one(source, folder.checkpoints / name, max_bytes=_LARGEST_CHECKPOINT)
    progress = int(name.rpartition("-")[2])
    if isinstance(got, Collected):
        return {
            "name": name,
            "progress": progress,
            "digest": got.digest,
            "size": got.bytes,
            "files": got.files,
        }
    return {"name": name, "progress": progress, "refused": got.reason.value, "where": got.path}
