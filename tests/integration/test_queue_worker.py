"""A worker on the in-memory engine: what it takes, how each ending is booked, what it leaves."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from orchestrator.adapters.in_memory import Inside
from orchestrator.domain.queue import Job, JobKind, JobStatus
from orchestrator.domain.roles import Phase
from orchestrator.errors import EngineUnavailableError, InterruptedByOperator, UsageError
from orchestrator.lifecycle.machine import State
from orchestrator.pipeline import enqueue, jobs
from orchestrator.pipeline.agents import Supply
from orchestrator.pipeline.queued import PLANNERS
from orchestrator.pipeline.work import Wishes, _Sweeper, work
from orchestrator.sandbox import PHASE_LABEL
from orchestrator.storage.layout import AttemptFolder
from orchestrator.storage.ledger import Claim as Resources
from orchestrator.storage.pack import load_pack
from orchestrator.storage.queue import Queue
from orchestrator.storage.queue_claim import Claim, New
from orchestrator.storage.supervisor import supervising
from receipts.verify import verify
from receipts.verify_model import Wanted
from tests.e2e.rig import until
from tests.integration.memory_bench import Bench, Clock, program_of_three, state_of

WANTED = enqueue.Wanted()


@dataclass
class Shop:
    """A bench with a queue, and a worker that is called when it is wanted."""

    root: Path
    program: Callable[[Inside], int] | None = None
    changes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bench = Bench(self.root, self.program, **self.changes)
        self.clock, self.said = Clock(), list[str]()
        base = self.root / "base"
        base.mkdir()
        self.ctx = replace(self.bench.context(base, self.clock), say=self.said.append)
        self.queue = Queue(self.ctx.runs, self.clock, self.said.append)
        self.wishes = Wishes()

    def explorations(self, through: JobKind = JobKind.SCORE, repeats: int = 1) -> tuple[New, ...]:
        """Jobs for the bench's own task."""
        wanted = enqueue.Wanted(through, repeats)
        return self.planned([self.bench.pack], wanted=wanted)

    def planned(
        self,
        packs: Sequence[Path],
        agent: str = "scripted",
        models: Sequence[str] = ("none",),
        wanted: enqueue.Wanted = WANTED,
    ) -> tuple[New, ...]:
        """Jobs for a matrix."""
        supply = Supply(self.ctx.packages, self.ctx.models)
        return enqueue.explorations(supply, packs, agent, models, "none", wanted)

    def work(self, limit: int | None = None) -> int:
        """Be a worker, with a wish of its own for each call."""
        self.wishes = Wishes()
        return work(self.ctx, self.queue, self.wishes, limit=limit)

    def jobs(self) -> tuple[Job, ...]:
        return self.queue.read().jobs

    def job(self, name: str = "j1") -> Job:
        return self.queue.job(name)

    def attempts(self) -> list[AttemptFolder]:
        return [a for config in self.ctx.runs.configs() for a in config.attempts()]

    def submitted(self) -> AttemptFolder:
        """An attempt that was explored by hand."""
        pack, plan = jobs.plan_explore(
            self.ctx, self.bench.pack, agent="scripted", model="none", effort="none", official=False
        )
        return jobs.explore(self.ctx, pack, plan)[0]

    def die_after(self, what: str) -> Claim:
        """Take a job as a worker does that dies once ``what`` was done."""
        claim = self.queue.claim()
        assert claim is not None
        task = PLANNERS[claim.job.kind](self.ctx, claim, claim.request)
        claim.intend(task.run_id)
        if what != "intend":
            folder, go = task.register()
            if what == "end":
                go()
            elif what == "register":
                # The lock of a supervisor that is gone: this process must not keep it.
                with supervising(folder.root):
                    pass
        claim.release()
        return claim


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_an_exploration_leads_on_to_its_replay_and_its_score(shop: Shop) -> None:
    shop.queue.add(shop.explorations())
    assert shop.work() == 3
    rows = [(job.kind, job.status, job.outcome, job.exit) for job in shop.jobs()]
    done = JobStatus.TERMINAL_BEHAVIOR
    assert rows == [
        (JobKind.EXPLORE, done, "agent_explicit_submit", 0),
        (JobKind.REPLAY, done, "validated", 0),
        (JobKind.SCORE, done, "scored", 0),
    ]
    (attempt,) = shop.attempts()
    (replayed,) = attempt.replays()
    (scoring,) = replayed.scorings()
    assert state_of(scoring) is State.SCORED
    assert {(job.config, job.attempt) for job in shop.jobs()} == {
        (attempt.root.parent.name, "attempt-001")
    }
    assert [job.replay for job in shop.jobs()] == ["", "replay-001", "replay-001"]
    assert shop.jobs()[2].note == "score-001"
    assert [shop.queue.files.request(f"j{n}").follows for n in (1, 2, 3)] == ["", "j1", "j2"]
    assert not verify(shop.ctx.runs.root, Wanted(whole_campaign=True)).faults
    assert shop.ctx.ledger.held() == ()


@pytest.mark.parametrize(("through", "count"), [(JobKind.EXPLORE, 1), (JobKind.REPLAY, 2)])
def test_it_goes_no_further_than_was_asked(shop: Shop, through: JobKind, count: int) -> None:
    shop.queue.add(shop.explorations(through))
    assert shop.work() == count
    assert len(shop.jobs()) == count


def test_what_has_no_candidate_leads_to_nothing(tmp_path: Path) -> None:
    # Nothing is changed, so what the host captures at the early exit is no candidate.
    shop = Shop(tmp_path, lambda _: 0)
    shop.queue.add(shop.explorations())
    assert shop.work() == 1
    (job,) = shop.jobs()
    assert job.status is JobStatus.TERMINAL_BEHAVIOR
    assert job.outcome == "agent_early_exit"


def test_repeats_are_attempts_of_one_config(shop: Shop) -> None:
    shop.queue.add(shop.explorations(JobKind.EXPLORE, repeats=3))
    assert shop.work() == 3
    assert sorted(job.attempt for job in shop.jobs()) == [f"attempt-00{n}" for n in (1, 2, 3)]


def test_seeded_replays_are_declared_before_the_first(shop: Shop) -> None:
    attempt = shop.submitted()
    new = enqueue.replays(attempt, enqueue.Wanted(JobKind.REPLAY, repeats=2))
    shop.queue.add(new)
    assert shop.work() == 2
    assert [job.series for job in shop.jobs()] == ["seed-1", "seed-2"]
    assert {job.outcome for job in shop.jobs()} == {"validated"}
    with pytest.raises(UsageError, match="2 seeded replays declared, not 3"):
        jobs.declare(shop.ctx, attempt, 3)


def test_a_refusal_of_what_was_asked_is_the_operators(shop: Shop) -> None:
    shop.queue.add(shop.explorations())
    with (shop.bench.pack / "instruction.md").open("a") as file:
        file.write("more\n")
    shop.work()
    job = shop.job()
    assert (job.status, job.outcome, job.exit) == (JobStatus.TERMINAL_OPERATOR, "refused", 65)
    assert "the job was added for" in job.note
    assert shop.attempts() == []


def test_a_finished_member_is_not_drawn_again(shop: Shop) -> None:
    attempt = shop.submitted()
    new = enqueue.replays(attempt, enqueue.Wanted(JobKind.REPLAY))
    shop.queue.add([*new, *new])
    shop.work()
    first, second = shop.jobs()
    assert first.status is JobStatus.TERMINAL_BEHAVIOR
    assert (second.status, second.exit) == (JobStatus.TERMINAL_OPERATOR, 64)
    assert len(attempt.replays()) == 1


def test_what_others_have_costs_no_try_and_registers_nothing(shop: Shop) -> None:
    shop.queue.add(shop.explorations())
    cpus = len(os.sched_getaffinity(0))
    other = Resources("other", Phase.REPLAY, cpus, 1, 0, shop.ctx.runs.root)
    with shop.ctx.ledger.reserve(other):
        shop.work(limit=1)
    job = shop.job()
    assert (job.status, job.tries, job.outcome) == (JobStatus.QUEUED, 0, "refused")
    assert "reserved by other" in job.note
    assert job.not_before
    assert shop.attempts() == []
    shop.clock.advance(31)
    assert shop.work() == 3


def test_the_machines_failure_is_tried_again_and_then_left_to_a_person(shop: Shop) -> None:
    shop.queue.add(shop.explorations(JobKind.EXPLORE))
    materials = shop.ctx.assets.materials(load_pack(shop.bench.pack))
    made = Path(materials["data/train"].source)
    aside = made.rename(made.with_name("aside"))
    for tries in (1, 2):
        shop.work(limit=1)
        assert (shop.job().status, shop.job().tries) == (JobStatus.QUEUED, tries)
        assert shop.queue.claim() is None
        shop.clock.advance(3600)
    shop.work(limit=1)
    assert (shop.job().status, shop.job().exit) == (JobStatus.TERMINAL_INFRASTRUCTURE, 75)
    aside.rename(made)
    shop.queue.retry("j1", "")
    shop.work()
    assert shop.job().status is JobStatus.TERMINAL_BEHAVIOR


def test_a_worker_that_died_before_registering_has_spoilt_one_try(shop: Shop) -> None:
    shop.queue.add(shop.explorations(JobKind.EXPLORE))
    shop.die_after("intend")
    assert shop.queue.orphans() == ("j1",)
    _sweep(shop)
    job = shop.job()
    assert (job.status, job.tries, job.outcome) == (JobStatus.QUEUED, 1, "orchestrator_failed")
    assert shop.attempts() == []
    shop.clock.advance(30)
    shop.work()
    assert [a.root.name for a in shop.attempts()] == ["attempt-001"]


def _sweep(shop: Shop) -> None:
    _Sweeper(shop.ctx, shop.queue).sweep()


def test_a_run_that_ended_under_a_worker_that_died_is_booked_as_it_ended(shop: Shop) -> None:
    shop.queue.add(shop.explorations())
    shop.die_after("end")
    assert shop.job().status is JobStatus.CLAIMED
    assert shop.work() == 2
    assert [job.outcome for job in shop.jobs()] == ["agent_explicit_submit", "validated", "scored"]
    assert len(shop.attempts()) == 1


def test_a_run_that_was_registered_and_never_begun_is_ended_and_tried_again(shop: Shop) -> None:
    shop.queue.add(shop.explorations(JobKind.EXPLORE))
    shop.die_after("register")
    _sweep(shop)
    (attempt,) = shop.attempts()
    assert state_of(attempt) is State.TERMINAL_INFRASTRUCTURE
    assert (shop.job().status, shop.job().tries) == (JobStatus.QUEUED, 1)
    shop.clock.advance(30)
    shop.work()
    assert [state_of(a) for a in shop.attempts()] == [
        State.TERMINAL_INFRASTRUCTURE,
        State.SUBMITTED,
    ]
    assert shop.job().attempt == "attempt-002"


def test_a_run_that_somebody_supervises_is_left_alone(shop: Shop) -> None:
    shop.queue.add(shop.explorations(JobKind.EXPLORE))
    claim = shop.queue.claim()
    assert claim is not None
    task = PLANNERS[claim.job.kind](shop.ctx, claim, claim.request)
    claim.intend(task.run_id)
    folder, go = task.register()
    claim.started(folder.root.name)
    claim.release()
    _sweep(shop)
    assert shop.job().status is JobStatus.RUNNING
    assert shop.queue.orphans() == ("j1",)
    go()
    _sweep(shop)
    assert shop.job().status is JobStatus.TERMINAL_BEHAVIOR


def _until_stopped(inside: Inside) -> int:
    if Phase(inside.spec.labels[PHASE_LABEL]) is Phase.REPLAY:
        inside.until_killed()
        return 137
    return program_of_three(inside)


@pytest.fixture
def endless(tmp_path: Path) -> Shop:
    """A shop whose replays end only when they are stopped, with one of them queued."""
    shop = Shop(tmp_path, _until_stopped)
    shop.queue.add(enqueue.replays(shop.submitted(), enqueue.Wanted(JobKind.REPLAY)))
    return shop


@contextmanager
def _worker(shop: Shop) -> Iterator[list[BaseException]]:
    """Let a worker run in a thread until the block has done what ends it."""
    failed: list[BaseException] = []

    def call() -> None:
        try:
            shop.work()
        except InterruptedByOperator as stop:
            failed.append(stop)

    thread = threading.Thread(target=call)
    thread.start()
    try:
        until(lambda: shop.job().status is JobStatus.RUNNING)
        yield failed
    finally:
        # A person has some seconds for a second thought, and this clock stands still.
        until(lambda: _passed(shop, thread))


def _passed(shop: Shop, thread: threading.Thread) -> bool:
    shop.clock.advance(1)
    thread.join(0.1)
    return not thread.is_alive()


def test_a_cancelled_job_is_stopped_and_the_worker_goes_on(endless: Shop) -> None:
    endless.queue.add(endless.explorations(JobKind.EXPLORE))
    with _worker(endless) as failed:
        Queue(endless.ctx.runs, endless.clock, endless.said.append).cancel("j1")
    assert failed == []
    first, second = endless.jobs()
    assert (first.status, first.outcome, first.exit) == (
        JobStatus.TERMINAL_OPERATOR,
        "operator_interrupt",
        130,
    )
    assert second.status is JobStatus.TERMINAL_BEHAVIOR


def test_an_interrupt_stops_the_job_and_the_worker(endless: Shop) -> None:
    endless.queue.add(endless.explorations(JobKind.EXPLORE))
    with _worker(endless) as failed:
        assert endless.wishes.interrupt() == 1
    assert len(failed) == 1
    assert [job.status for job in endless.jobs()] == [
        JobStatus.TERMINAL_OPERATOR,
        JobStatus.QUEUED,
    ]


def test_what_a_person_stopped_runs_again_for_a_reason_that_is_kept(endless: Shop) -> None:
    with _worker(endless):
        endless.wishes.interrupt()
    endless.queue.retry("j1", "I pressed the wrong key")
    with _worker(endless):
        endless.wishes.interrupt()
    (attempt,) = endless.attempts()
    second = attempt.replays()[1]
    assert '"again": "I pressed the wrong key"' in second.plan.read_text()
    assert endless.job().replay == "replay-002"


def test_draining_ends_the_worker_after_the_job_under_way(shop: Shop) -> None:
    shop.queue.add(shop.explorations(JobKind.EXPLORE, repeats=2))
    shop.ctx = replace(shop.ctx, say=lambda text: shop.wishes.drain() if "j1: " in text else None)
    shop.work()
    assert [job.status for job in shop.jobs()] == [
        JobStatus.TERMINAL_BEHAVIOR,
        JobStatus.QUEUED,
    ]


def test_an_idle_worker_heeds_a_wish_at_once(shop: Shop) -> None:
    thread = threading.Thread(
        target=work, args=(shop.ctx, shop.queue, shop.wishes), kwargs={"forever": True}
    )
    thread.start()
    shop.wishes.drain()
    thread.join(30)
    assert not thread.is_alive()


def test_a_matrix_is_added_whole_or_not_at_all(shop: Shop) -> None:
    pack = shop.bench.pack
    with pytest.raises(UsageError):
        shop.planned([pack, pack / "nowhere"])
    with pytest.raises(UsageError, match="works without a model"):
        shop.planned([pack], models=["none", "gpt"])
    with pytest.raises(UsageError, match="no agent"):
        shop.planned([pack], "nobody")
    assert not shop.ctx.runs.queue.exists()


def test_an_engine_that_is_away_spoils_no_job(shop: Shop) -> None:
    shop.queue.add(shop.explorations(JobKind.EXPLORE, repeats=2))
    with mock.patch.object(shop.ctx.engine, "identity", side_effect=EngineUnavailableError("away")):
        shop.work(limit=2)
    assert [(job.status, job.tries, job.note) for job in shop.jobs()] == [
        (JobStatus.QUEUED, 0, "away"),
        (JobStatus.QUEUED, 0, "away"),
    ]
    shop.clock.advance(30)
    assert shop.work() == 2


@pytest.mark.parametrize("what", ["try", "journal"])
def test_a_dead_workers_job_that_cannot_be_read_is_left_to_a_person(shop: Shop, what: str) -> None:
    shop.queue.add(shop.explorations(JobKind.EXPLORE))
    shop.die_after("end")
    (attempt,) = shop.attempts()
    files = {"try": shop.ctx.runs.queue_jobs / "j1.try.json", "journal": attempt.journal}
    files[what].write_text("[]\n")
    _sweep(shop)
    assert (shop.job().status, shop.job().exit) == (JobStatus.TERMINAL_OPERATOR, 65)


def test_a_dead_workers_job_of_another_version_is_left_alone(shop: Shop) -> None:
    shop.queue.add(shop.explorations(JobKind.EXPLORE))
    shop.die_after("intend")
    (shop.ctx.runs.queue_jobs / "j1.try.json").write_text('{"format": 2}\n')
    before = shop.ctx.runs.queue.read_bytes()
    assert shop.work() == 0
    assert shop.ctx.runs.queue.read_bytes() == before
