"""The queue as files: claims, endings, what a person asks for, and a table that was spoiled."""

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from orchestrator.domain.queue import TRIES, JobKind, JobStatus, backoff
from orchestrator.errors import InfrastructureError, TaskPackError, UsageError
from orchestrator.storage.lock import locked
from orchestrator.storage.queue_table import HEADER
from tests.unit.queue_help import BEHAVED, BROKE, BUSY, STOPPED, Scene, is_free, new


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_the_header_is_what_the_format_says() -> None:
    columns = (
        "job kind config attempt replay series status outcome exit tries not_before priority host "
        "gpu pid created updated note"
    )
    assert columns.replace(" ", "\t") == HEADER


def test_reading_what_is_not_there_makes_nothing(scene: Scene) -> None:
    assert scene.queue.read().jobs == ()
    assert scene.queue.orphans() == ()
    assert list(scene.root.iterdir()) == []


def test_jobs_are_named_in_order_and_their_requests_are_there(scene: Scene) -> None:
    jobs = scene.queue.add([new(), new(JobKind.EXPLORE)])
    assert [job.job for job in jobs] == ["j1", "j2"]
    assert [scene.queue.files.request(job.job).kind for job in jobs] == [
        JobKind.REPLAY,
        JobKind.EXPLORE,
    ]
    assert scene.add(0) == ["j3"]


def test_a_name_is_given_once_also_when_its_row_is_gone(scene: Scene) -> None:
    scene.add(0, 0)
    scene.runs.queue.write_text(HEADER + "\n")
    assert scene.add(0) == ["j3"]


def test_a_claim_goes_by_priority_then_age(scene: Scene) -> None:
    scene.add(0, 5)
    scene.clock.advance(1)
    scene.add(5, 9, *([0] * 8))
    taken = [scene.take().job.job for _ in range(12)]
    assert taken == ["j4", "j2", "j3", "j1", *(f"j{n}" for n in range(5, 13))]
    assert scene.queue.claim() is None


def test_a_claim_says_who_has_it_and_holds_its_lease(scene: Scene) -> None:
    (name,) = scene.add(0)
    claim = scene.take()
    job = scene.queue.job(name)
    assert (job.status, job.host, job.pid) == (
        JobStatus.CLAIMED,
        os.uname().nodename,
        os.getpid(),
    )
    lease = scene.runs.queue_jobs / f"{name}.lease"
    assert not is_free(lease)
    assert scene.another().orphans() == ()
    claim.release()
    assert is_free(lease)
    assert scene.another().orphans() == (name,)


def test_a_lease_that_is_held_keeps_a_queued_job_from_being_taken(scene: Scene) -> None:
    first, second = scene.add(1, 0)
    held = scene.queue.files.lease(first)
    assert held is not None
    assert scene.take().job.job == second
    os.close(held)
    assert scene.take().job.job == first


def test_an_orphan_may_be_taken_over_once(scene: Scene) -> None:
    (name,) = scene.add(0)
    scene.take().release()
    claim = scene.another().take_over(name)
    assert claim is not None
    assert scene.another().take_over(name) is None
    claim.settle(BEHAVED)
    assert scene.another().take_over(name) is None


def test_a_claim_of_another_host_is_judged_by_nobody_here(scene: Scene) -> None:
    (name,) = scene.add(0)
    scene.take().release()
    elsewhere = scene.text().replace(f"\t{os.uname().nodename}\t", "\tanother\\x20host\t")
    scene.runs.queue.write_text(elsewhere)
    assert scene.queue.orphans() == ()
    assert scene.queue.take_over(name) is None
    assert scene.queue.claim() is None


def test_behaviour_and_operator_endings_are_final(scene: Scene) -> None:
    scene.add(0, 0)
    for ending, status in (
        (BEHAVED, JobStatus.TERMINAL_BEHAVIOR),
        (STOPPED, JobStatus.TERMINAL_OPERATOR),
    ):
        (job,) = scene.take().settle(ending)
        assert (job.status, job.outcome, job.exit) == (status, ending.outcome, ending.exit)
    scene.clock.advance(10**6)
    assert scene.queue.claim() is None


def test_an_infrastructure_ending_waits_longer_each_time_and_gives_up(scene: Scene) -> None:
    scene.add(0)
    for count in range(1, TRIES):
        (job,) = scene.take().settle(BROKE)
        assert (job.status, job.tries, job.outcome) == (JobStatus.QUEUED, count, "gpu_lost")
        assert scene.queue.claim() is None
        wait = backoff(count).total_seconds()
        scene.clock.advance(wait - 0.001)
        assert scene.queue.claim() is None
        scene.clock.advance(0.001)
    (job,) = scene.take().settle(BROKE)
    assert (job.status, job.tries) == (JobStatus.TERMINAL_INFRASTRUCTURE, TRIES)
    assert job.not_before == ""


def test_the_wait_doubles_up_to_half_an_hour() -> None:
    minutes = [backoff(count) / timedelta(minutes=1) for count in range(1, 10)]
    assert minutes == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert backoff(10**9) == timedelta(minutes=30)


def test_a_busy_host_costs_no_try_and_is_asked_less_and_less_often(scene: Scene) -> None:
    scene.add(0)
    waits = []
    for _ in range(8):
        before = scene.clock.utc()
        (job,) = scene.take().settle(BUSY)
        assert (job.status, job.tries, job.note) == (JobStatus.QUEUED, 0, "gpu busy")
        waits.append(job.not_before)
        scene.clock.advance(30 * 60)
        assert before < scene.clock.utc()
    assert waits[-1] > waits[0]
    assert scene.queue.files.latest_try("j1").waits == 8
    scene.take().settle(BROKE)
    assert scene.queue.files.latest_try("j1").waits == 0


def test_what_follows_appears_in_the_same_write(scene: Scene) -> None:
    scene.add(0)
    done, follow = scene.take().settle(BEHAVED, new(JobKind.SCORE, priority=3))
    assert (follow.job, follow.kind, follow.status) == ("j2", JobKind.SCORE, JobStatus.QUEUED)
    assert len(scene.lines()) == 2
    assert scene.queue.job(done.job).status is JobStatus.TERMINAL_BEHAVIOR
    assert scene.queue.files.request("j2").job == "j2"


def test_a_running_job_says_where_its_run_lies(scene: Scene) -> None:
    scene.add(0)
    claim = scene.take()
    claim.intend("0123abcd")
    claim.started("attempt-007", "replay-002", "score-001")
    job = scene.another().job("j1")
    assert (job.status, job.attempt, job.replay, job.note) == (
        JobStatus.RUNNING,
        "attempt-007",
        "replay-002",
        "score-001",
    )
    assert scene.queue.files.latest_try("j1").run_id == "0123abcd"


def test_a_new_try_knows_nothing_of_the_run_of_the_last(scene: Scene) -> None:
    scene.add(0)
    claim = scene.take()
    claim.intend("0123abcd")
    claim.settle(BROKE)
    scene.clock.advance(60)
    assert scene.take().attempted.run_id == ""


def test_retry_puts_back_what_the_machine_ended(scene: Scene) -> None:
    scene.add(0)
    for _ in range(TRIES):
        scene.take().settle(BROKE)
        scene.clock.advance(3600)
    job = scene.queue.retry("j1", "")
    assert (job.status, job.tries, job.not_before) == (JobStatus.QUEUED, 0, "")
    assert scene.take().job.job == "j1"


def test_retry_of_a_waiting_job_ends_its_wait(scene: Scene) -> None:
    scene.add(0)
    scene.take().settle(BROKE)
    assert scene.queue.claim() is None
    scene.queue.retry("j1", "")
    assert scene.take().job.job == "j1"


def test_retry_of_what_a_person_stopped_needs_a_reason_which_is_kept(scene: Scene) -> None:
    scene.add(0)
    scene.take().settle(STOPPED)
    with pytest.raises(UsageError, match="stopped by a person") as refused:
        scene.queue.retry("j1", "")
    assert "--again" in refused.value.remedy
    scene.queue.retry("j1", "the power was cut")
    claim = scene.take()
    assert claim.attempted.again == "the power was cut"
    claim.settle(BROKE)
    scene.clock.advance(60)
    assert scene.take().attempted.again == "the power was cut"


@pytest.mark.parametrize("verb", ["retry", "cancel"])
def test_behaviour_is_neither_run_again_nor_cancelled(scene: Scene, verb: str) -> None:
    scene.add(0)
    scene.take().settle(BEHAVED)
    before = scene.text()
    with pytest.raises(UsageError, match="terminal_behavior"):
        _ask(scene, verb, "j1")
    assert scene.text() == before


@pytest.mark.parametrize("verb", ["retry", "cancel", "job"])
def test_an_unknown_job_is_refused(scene: Scene, verb: str) -> None:
    scene.add(0)
    with pytest.raises(UsageError, match="no job 'j9'") as refused:
        _ask(scene, verb, "j9")
    assert refused.value.exit_code == 64
    assert "orch queue list" in refused.value.remedy


def _ask(scene: Scene, verb: str, name: str) -> None:
    match verb:
        case "retry":
            scene.queue.retry(name, "")
        case "cancel":
            scene.queue.cancel(name)
        case _:
            scene.queue.job(name)


def test_a_taken_job_is_not_put_back_by_hand(scene: Scene) -> None:
    scene.add(0)
    scene.take()
    with pytest.raises(UsageError, match="is claimed"):
        scene.queue.retry("j1", "please")


def test_cancelling_a_queued_job_ends_it_and_a_retry_brings_it_back(scene: Scene) -> None:
    scene.add(0)
    assert scene.queue.cancel("j1").status is JobStatus.CANCELLED
    assert scene.queue.claim() is None
    scene.queue.retry("j1", "")
    assert not scene.take().cancelled


def test_cancelling_a_running_job_asks_its_worker(scene: Scene) -> None:
    scene.add(0)
    claim = scene.take()
    assert not claim.cancelled
    assert scene.another().cancel("j1").status is JobStatus.CLAIMED
    assert claim.cancelled
    (job,) = claim.settle(STOPPED)
    assert job.status is JobStatus.TERMINAL_OPERATOR
    assert not scene.queue.files.is_cancelled("j1")


def test_a_cancelled_job_that_the_machine_ends_first_is_not_tried_again(scene: Scene) -> None:
    scene.add(0)
    claim = scene.take()
    scene.another().cancel("j1")
    (job,) = claim.settle(BROKE)
    assert (job.status, job.not_before) == (JobStatus.CANCELLED, "")


def test_a_request_that_is_gone_is_the_jobs_own_fault(scene: Scene) -> None:
    scene.add(0)
    (scene.runs.queue_jobs / "j1.json").unlink()
    claim = scene.take()
    with pytest.raises(TaskPackError, match="missing"):
        _ = claim.request


def test_QU_01_a_cut_off_last_line_spoils_nothing(scene: Scene) -> None:
    scene.add(1, 2, 3)
    good = scene.lines()
    scene.runs.queue.write_text("\n".join((HEADER, *good)) + "\nid4\tpend")
    assert [job.job for job in scene.queue.read().jobs] == ["j1", "j2", "j3"]
    (fault,) = scene.queue.read().faults
    assert (fault.number, fault.line) == (5, "id4\tpend")
    (added,) = scene.add(0)
    assert scene.lines()[:3] == good
    assert scene.lines()[3].startswith(f"{added}\t")
    assert {line.count("\t") for line in scene.text().splitlines()} == {HEADER.count("\t")}
    assert scene.text().endswith("\n")
    head, kept = scene.runs.queue_quarantine.read_text().splitlines()
    assert head == "time\tline\treason\trow"
    assert kept.split("\t")[1:] == ["5", "it has 2 columns, not 18", "id4\\tpend"]
    assert len(scene.said) == 1
    assert f"{scene.runs.queue}:5: it has 2 columns" in scene.said[0]
    scene.add(0)
    assert len(scene.said) == 1


_SPOILT: dict[str, tuple[Callable[[str], str], str]] = {
    "twice": (lambda row: row, "there is another row of j1"),
    "status": (lambda row: row.replace("\tqueued\t", "\tsleeping\t"), "cannot be 'sleeping'"),
    "kind": (lambda row: row.replace("\treplay\t", "\tretrain\t"), "kind cannot be 'retrain'"),
    "job": (lambda row: row.replace("j1", "../j1"), "job cannot be '../j1'"),
    "nobody": (lambda row: row.replace("\tqueued\t", "\trunning\t"), "by which host"),
    "series": (lambda row: row.replace("official", "seed-0"), "series cannot be 'seed-0'"),
    "long": (lambda row: row + "\tmore", "it has 19 columns, not 18"),
    "control": (lambda row: row + "\x1b[2J", "it holds control characters"),
    "bytes": (lambda row: row + "\udcff", "it holds control characters"),
    "empty": (lambda _: "", "it has 1 columns, not 18"),
    "zeros": (lambda _: "\x00" * 64, "it holds control characters"),
    "header": (lambda _: HEADER, "kind cannot be 'kind'"),
}


@pytest.mark.parametrize("how", _SPOILT)
def test_a_row_that_makes_no_sense_is_set_aside(scene: Scene, how: str) -> None:
    spoil, reason = _SPOILT[how]
    scene.add(0, 0)
    rows = scene.lines()
    text = "\n".join((HEADER, rows[0], spoil(rows[0]), rows[1])) + "\n"
    scene.runs.queue.write_bytes(text.encode(errors="surrogateescape"))
    assert [scene.take().job.job for _ in range(2)] == ["j1", "j2"]
    assert scene.queue.claim() is None
    (said,) = scene.said
    assert reason in said
    kept = scene.runs.queue_quarantine.read_text(encoding="utf-8")
    assert kept.count("\n") == 2
    assert kept.isascii()


def test_of_two_rows_of_a_job_the_one_changed_last_counts(scene: Scene) -> None:
    scene.add(0)
    older = scene.lines()[0]
    scene.clock.advance(5)
    scene.take().settle(BEHAVED)
    newer = scene.lines()[0]
    for rows in ((older, newer), (newer, older)):
        scene.runs.queue.write_text("\n".join((HEADER, *rows)) + "\n")
        (job,) = scene.another().read().jobs
        assert job.status is JobStatus.TERMINAL_BEHAVIOR
    scene.add(0)
    assert len(scene.lines()) == 2


def test_an_unknown_header_is_set_aside_and_sound_rows_stay(scene: Scene) -> None:
    scene.add(0)
    scene.runs.queue.write_text("id\tstate\n" + scene.lines()[0] + "\nid7\tdone\n")
    scene.add(0)
    assert scene.text().startswith(HEADER + "\n")
    assert [line.split("\t")[0] for line in scene.lines()] == ["j1", "j2"]
    assert len(scene.said) == 2


def test_what_a_spreadsheet_saved_is_read(scene: Scene) -> None:
    scene.add(0, 0)
    scene.runs.queue.write_bytes(scene.text().replace("\n", "\r\n").encode())
    scene.add(0)
    assert scene.said == []
    assert "\r" not in scene.text()
    assert len(scene.lines()) == 3


def test_an_edit_by_hand_is_seen(scene: Scene) -> None:
    scene.add(0, 0)
    scene.runs.queue.write_text(scene.text().replace("\t0\t-\t0\t", "\t0\t-\t7\t", 1))
    later = scene.runs.queue.stat().st_mtime_ns + 10**9  # a kernel may tell time in ticks
    os.utime(scene.runs.queue, ns=(later, later))
    assert scene.take().job.priority == 7


def test_a_lock_that_is_kept_is_told_with_its_holder(scene: Scene) -> None:
    scene.add(0)
    with locked(scene.runs.queue_lock):
        scene.runs.queue_lock.write_text("4711 on this-host\n")
        with pytest.raises(InfrastructureError, match=r"held .* by process 4711 on this-host"):
            scene.another(patience=0.1).claim()
    assert scene.take().job.job == "j1"


def test_what_a_killed_writer_left_is_removed(scene: Scene) -> None:
    scene.add(0)
    for folder in (scene.root, scene.runs.queue_jobs):
        (folder / ".abcdefgh.tmp").write_text("half")
    before = scene.text()
    scene.queue.tidy()
    assert not list(scene.root.rglob("*.tmp"))
    assert scene.text() == before


def test_a_record_that_cannot_be_read_costs_its_own_job_alone(scene: Scene) -> None:
    scene.add(5, 0)
    (scene.runs.queue_jobs / "j1.try.json").write_text("{")
    assert scene.take().job.job == "j2"
    job = scene.queue.job("j1")
    assert (job.status, job.outcome, job.exit) == (JobStatus.TERMINAL_OPERATOR, "refused", 65)
    assert "j1.try.json" in job.note
    assert len(scene.said) == 1
    with pytest.raises(TaskPackError, match=r"j1\.try\.json"):
        scene.queue.retry("j1", "mended")
    (scene.runs.queue_jobs / "j1.try.json").unlink()
    scene.queue.retry("j1", "mended")
    assert scene.take().job.job == "j1"


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("/dev/null")])
def test_what_is_no_file_is_no_table_and_is_not_waited_for(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    scene = Scene(tmp_path)
    make(scene.runs.queue)
    for ask in (scene.queue.read, scene.queue.claim):
        with pytest.raises(TaskPackError, match="is no file"):
            ask()
