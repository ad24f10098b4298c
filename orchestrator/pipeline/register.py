"""Make a planned run exist: its number, its line in the campaign log, its plan, its journal.

Registration comes before any outcome can be known, so that no draw is free. Whether a
member of a series is free is decided under a lock, so that two commands never both get it.
"""

from contextlib import suppress
from pathlib import Path

from orchestrator.domain.attempt import RunKind, Series, Through
from orchestrator.domain.records import AttemptPlan, ConfigRecord, ReplayPlan, ScoringPlan
from orchestrator.errors import UsageError
from orchestrator.evidence.context import Context, save
from orchestrator.lifecycle.machine import Event
from orchestrator.pipeline.plans import require_free_member, superseded
from orchestrator.storage.campaign import CampaignEvent
from orchestrator.storage.durable import make_folder
from orchestrator.storage.journal import Journal
from orchestrator.storage.layout import AttemptFolder, ReplayFolder, ScoringFolder, number_of
from orchestrator.storage.records import load
from orchestrator.storage.supervisor import alone, claim


def register_attempt(ctx: Context, plan: AttemptPlan) -> AttemptFolder:
    """Give an attempt its number and make it exist."""
    ctx.campaign.require_open()
    config = ctx.runs.config(plan.config)
    make_folder(config.root, exist_ok=True)
    record = ConfigRecord(
        agent=plan.agent,
        agent_digest=plan.agent_digest,
        task=plan.task.name,
        task_digest=plan.task_digest,
        model=plan.model,
        effort=plan.effort,
        auxiliary_models=plan.auxiliary_models,
        budget=plan.task.explore.budget,
        image=plan.image.digest,
    )
    _freeze_config(config.config, record)
    folder = AttemptFolder(_next(config.root, "attempt"))
    final = plan.model_copy(update={"number": number_of(folder.root)})
    ctx.campaign.append(
        CampaignEvent.ATTEMPT_REGISTERED,
        run_id=plan.run_id,
        config=plan.config,
        number=final.number,
        task_digest=plan.task_digest,
        entry=plan.entry.value,
    )
    save(folder.plan, final)
    Journal(folder.journal, RunKind.ATTEMPT, plan.run_id, ctx.clock).append(Event.REGISTERED)
    return folder


def _freeze_config(path: Path, record: ConfigRecord) -> None:
    """Write the config's identity once; a later attempt under the same names must match it.

    A changed task or image under the same name is another measurement, told apart by its digests
    in each plan; the names must still be the same.
    """
    if not path.exists():
        with suppress(FileExistsError):  # another command froze it meanwhile
            save(path, record)
            return
    known = load(path, ConfigRecord)
    if (known.agent, known.task, known.model, known.effort) != (
        record.agent,
        record.task,
        record.model,
        record.effort,
    ):
        raise UsageError(
            f"{path} belongs to other names: {known.agent}, {known.task}",
            remedy="choose another runs folder",
        )


def register_replay(
    ctx: Context, attempt: AttemptFolder, plan: ReplayPlan, through: Through = Through.VALIDATE
) -> ReplayFolder:
    """Give a replay its number and make it exist.

    Args:
        through: how far to go by itself, for whoever has to take it over.

    Raises:
        UsageError: another command was faster: the member is under way or finished.
    """
    ctx.campaign.require_open()
    with alone(attempt.root):
        require_free_member(ctx, attempt, Series(plan.series), plan.again)
        return _register_replay(ctx, attempt, plan, through)


def _register_replay(
    ctx: Context, attempt: AttemptFolder, plan: ReplayPlan, through: Through
) -> ReplayFolder:
    folder = ReplayFolder(_next(attempt.root, "replay"))
    final = plan.model_copy(update={"number": number_of(folder.root)})
    ctx.campaign.append(
        CampaignEvent.REPLAY_REGISTERED,
        run_id=plan.run_id,
        attempt_id=plan.attempt_id,
        candidate=plan.candidate,
        number=final.number,
        series=plan.series,
        again=plan.again,
    )
    save(folder.plan, final)
    journal = Journal(folder.journal, RunKind.REPLAY, plan.run_id, ctx.clock)
    journal.append(Event.REGISTERED, series=plan.series, through=through.value)
    return folder


def register_scoring(ctx: Context, replay: ReplayFolder, plan: ScoringPlan) -> ScoringFolder:
    """Give a scoring its number and make it exist.

    Raises:
        UsageError: another command was faster: a scoring is under way or finished.
    """
    ctx.campaign.require_open()
    with alone(replay.root):
        superseded(replay, plan.evaluator_digest)
        return _register_scoring(ctx, replay, plan)


def _register_scoring(ctx: Context, replay: ReplayFolder, plan: ScoringPlan) -> ScoringFolder:
    folder = ScoringFolder(_next(replay.root, "score"))
    final = plan.model_copy(update={"number": number_of(folder.root)})
    ctx.campaign.append(
        CampaignEvent.SCORING_REGISTERED,
        run_id=plan.run_id,
        replay_id=plan.replay_id,
        number=final.number,
        evaluator_digest=plan.evaluator_digest,
    )
    save(folder.plan, final)
    Journal(folder.journal, RunKind.SCORING, plan.run_id, ctx.clock).append(Event.REGISTERED)
    return folder


def _next(parent: Path, word: str) -> Path:
    """Claim the next number by making its folder; two claimants get two numbers."""
    number = 1
    while True:
        path = parent / f"{word}-{number:03d}"
        try:
            make_folder(path)
        except FileExistsError:
            number += 1
        else:
            claim(path)
            return path
