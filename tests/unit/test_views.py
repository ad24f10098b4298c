import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from typing_extensions import override

from orchestrator.domain.attempt import RunKind
from orchestrator.lifecycle.machine import Event, State
from orchestrator.report import facts
from orchestrator.report.facts import happened, next_command, replay_section, score_text, sections
from orchestrator.report.lookup import path_id
from orchestrator.report.overview import overview
from orchestrator.report.story import tell
from orchestrator.report.views import (
    AttemptView,
    attempts,
    contested_of,
    ending_reason,
    read_attempt,
    read_replay,
    score_of,
    state_word,
)
from orchestrator.storage.journal import Journal
from orchestrator.storage.layout import AttemptFolder, ScoringFolder
from receipts.complete import Completeness
from tests.unit.records_help import START, TickingClock
from tests.unit.sample_runs import SECOND, SampleRuns, commit, exit_facts


@pytest.fixture
def sample(tmp_path: Path) -> SampleRuns:
    return SampleRuns(tmp_path / "runs")


def _score_text(scoring: ScoringFolder) -> str:
    return score_text(score_of(read_replay(scoring.replay)))


def test_a_finished_attempt_shows_its_best_score_and_its_marks(sample: SampleRuns) -> None:
    scoring = sample.finished(contested=("host_oom_count",))
    view = read_attempt(scoring.replay.attempt)
    assert view.journal.state is State.SUBMITTED
    assert view.faults == view.replays[0].faults == view.replays[0].scorings[0].faults == ()
    score = score_of(view.replays[0])
    assert score is not None
    assert score.best is not None
    assert (score.best.checkpoint, score.best.value) == ("checkpoint-9100", 0.7658)
    assert score_text(score) == "0.7658 local contested"
    assert next_command(view) == f"orch report {view.id}"


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("a", lambda path: path.unlink()),
        ("b", lambda path: path.write_bytes(b"")),
        ("c", lambda path: path.write_bytes(path.read_bytes().replace(b"0.7658", b"0.9999"))),
    ],
)
def test_SC_04_a_marker_without_its_result_is_corrupt(
    sample: SampleRuns, name: str, spoil: Callable[[Path], object]
) -> None:
    scoring = sample.finished()
    spoil(scoring.summary)
    view = read_replay(scoring.replay)
    assert view.scorings[0].completion.completeness is Completeness.CORRUPT
    assert view.scorings[0].aggregate is None
    assert _score_text(scoring) == "corrupt"
    assert "summary.json" in view.scorings[0].faults[0]
    row = overview(attempts(sample.runs), now=START)[0]
    assert row.cells()[6].startswith("corrupt (summary.json")
    assert "0.7658" not in json.dumps(row.document())


def test_SC_04_a_checkpoint_without_its_result_is_corrupt(sample: SampleRuns) -> None:
    scoring = sample.finished()
    scoring.checkpoint("checkpoint-9100").summary.write_text("{}")
    found = read_replay(scoring.replay).scorings[0]
    shown = {checkpoint.name: checkpoint.summary is not None for checkpoint in found.checkpoints}
    assert shown == {
        "checkpoint-7800": True,
        "checkpoint-9100": False,
        "checkpoint-9960": True,
    }


def test_a_result_without_its_marker_is_no_number(sample: SampleRuns) -> None:
    scoring = sample.finished()
    scoring.complete.unlink()
    assert _score_text(scoring) == "incomplete"
    scoring.summary.unlink()
    assert _score_text(scoring) == "incomplete"


def test_the_latest_committed_scoring_counts(sample: SampleRuns) -> None:
    first = sample.finished()
    for number, event in enumerate((Event.INFRASTRUCTURE, Event.OPERATOR), start=2):
        spoilt, journal = sample.scoring(first.replay, number)
        journal.append(event, message="the evaluator crashed, or was stopped")
        assert _score_text(first) == "0.7658 local"
        commit(spoilt, spoilt)
        assert _score_text(first) == "0.7658 local"


def test_a_failed_scoring_says_so_and_what_to_do(sample: SampleRuns) -> None:
    replay = sample.replayed(sample.submitted())
    assert next_command(read_attempt(replay.attempt)).startswith("orch score ")
    _, journal = sample.scoring(replay)
    journal.append(Event.INFRASTRUCTURE, message="the evaluator crashed")
    view = read_attempt(replay.attempt)
    score = score_of(view.replays[0])
    assert score is not None
    assert (score_text(score), score.reason) == ("score failed", "the evaluator crashed")
    assert next_command(view) == f"orch score {view.replays[0].id}"


@pytest.mark.parametrize(
    ("event", "suffix"),
    [(Event.INFRASTRUCTURE, ""), (Event.OPERATOR, " --again REASON")],
)
def test_what_to_do_after_a_replay_that_did_not_finish(
    sample: SampleRuns, event: Event, suffix: str
) -> None:
    attempt = sample.submitted()
    assert next_command(read_attempt(attempt)).startswith("orch replay ")
    replay, journal = sample.started_replay(attempt)
    assert next_command(read_attempt(attempt)).startswith("orch logs ")
    journal.append(event, message="over")
    view = read_attempt(replay.attempt)
    assert next_command(view) == f"orch replay {view.id}{suffix}"


def test_every_kind_of_attempt_is_one_row(sample: SampleRuns) -> None:
    sample.finished(1)
    sample.no_candidate(2)
    sample.broken(3)
    sample.explored(4)
    rows = overview(attempts(sample.runs), now=START)
    said = [(row.cells()[3], row.cells()[4]) for row in rows]
    assert said == [
        ("submitted (agent_explicit_submit/agent)", "001 terminal_behavior"),
        ("no_candidate (agent_explicit_no_candidate)", "-"),
        (
            "submitted (agent_explicit_submit/agent)",
            "001 terminal_infrastructure (container_lost)",
        ),
        ("exploring", "-"),
    ]
    assert [len(row.id) for row in rows] == [8] * 4
    assert len({row.id for row in rows}) == 4


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            {
                "fact": "gate_refused",
                "message": "gpu_leased: GPU-a is held by run r1 of " + "x" * 99,
            },
            "gate_refused: gpu_leased",
        ),
        ({"message": "the machine had no more of what it takes: neither this nor that"}, 40),
        ({"message": "interrupted after 3 s"}, "interrupted after 3 s"),
    ],
)
def test_a_cell_of_the_overview_names_a_reason_and_show_has_the_sentence(
    sample: SampleRuns, data: dict[str, str], said: str | int
) -> None:
    attempt = sample.submitted()
    _, journal = sample.started_replay(attempt)
    journal.append(Event.INFRASTRUCTURE, **data)
    view = read_attempt(attempt)
    (row,) = overview((view,), now=START)
    shown = said if isinstance(said, str) else data["message"][:said] + "..."
    assert row.cells()[4] == f"001 terminal_infrastructure ({shown})"
    assert data["message"] in row.document()["replay"]["ending"]
    assert data["message"] in str(sections(view.replays[0]))


def test_ids_in_the_overview_stay_unique(
    sample: SampleRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = iter(["a" * 32, "a" * 20 + "b" * 12])
    monkeypatch.setattr(sample, "run_id", lambda: next(ids))
    sample.attempt(1)
    sample.attempt(2)
    rows = overview(attempts(sample.runs), now=START)
    assert [row.id for row in rows] == ["a" * 21, "a" * 20 + "b"]


def _tamper(attempt: AttemptFolder) -> None:
    first, rest = attempt.journal.read_bytes().split(b"\n", 1)
    attempt.journal.write_bytes(first.replace(b'"seq":1', b'"seq":7') + b"\n" + rest)


def _tear(attempt: AttemptFolder) -> None:
    with attempt.journal.open("ab") as file:
        file.write(b'{"seq": 99, "ev')


def _renumber(attempt: AttemptFolder) -> None:
    plan = json.loads(attempt.plan.read_text())
    attempt.plan.write_text(json.dumps({**plan, "format": 2}))


@pytest.mark.parametrize(
    ("spoil", "state", "fault"),
    [
        (_tamper, "unreadable", "lifecycle.jsonl:1: tampered: seq is 7"),
        (_tear, "no_candidate", "was cut off"),
        (_renumber, "no_candidate", "plan.json has format 2; this orch reads format 1"),
        (lambda a: a.plan.write_text("{"), "no_candidate", "plan.json"),
        (lambda a: a.plan.unlink(), "no_candidate", "plan.json is missing"),
        (lambda a: a.plan.write_text('{"format": 1}'), "no_candidate", "plan.json is not valid"),
        (lambda a: a.journal.write_bytes(b"\xff\n"), "unreadable", "lifecycle.jsonl:1: tampered"),
        (lambda a: a.complete.touch(), "no_candidate", "corrupt: .complete: a bare marker"),
    ],
)
def test_what_cannot_be_read_is_one_clear_row(
    sample: SampleRuns, spoil: Callable[[AttemptFolder], object], state: str, fault: str
) -> None:
    sample.finished(1)
    sample.no_candidate(2)
    spoil(sample.runs.configs()[0].attempt(2))
    good, bad = attempts(sample.runs)
    assert good.faults == ()
    assert (state_word(bad), len(bad.faults)) == (state, 1)
    assert fault in bad.faults[0]
    rows = overview((good, bad), now=START)
    assert rows[1].cells()[3].startswith(state)
    assert tell(bad) or state == "unreadable"
    assert next_command(bad)


def test_a_plan_without_a_journal_is_not_registered_yet(sample: SampleRuns) -> None:
    folder, _ = sample.attempt()
    folder.journal.unlink()
    view = read_attempt(folder)
    assert (state_word(view), view.faults, tell(view)) == ("unregistered", (), ())


def test_reading_leaves_every_byte_as_it_was(sample: SampleRuns) -> None:
    scoring = sample.finished()
    _tear(scoring.replay.attempt)

    def everything() -> dict[Path, tuple[bytes, int]]:
        files = (path for path in sample.root.rglob("*") if path.is_file())
        return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}

    before = everything()
    view = read_attempt(scoring.replay.attempt)
    assert isinstance(view, AttemptView)
    overview((view,), now=START)
    assert everything() == before


def test_the_story_is_told_in_order_with_its_times(sample: SampleRuns) -> None:
    scoring = sample.finished(contested=("clock_step",))
    story = tell(read_attempt(scoring.replay.attempt))
    assert [moment.run for moment in story if moment.event is Event.REGISTERED] == [
        "attempt-001",
        "replay-001",
        "replay-001/score-001",
    ]
    times = [moment.elapsed for moment in story]
    assert times[0] == 0.0
    assert times == sorted(time for time in times if time is not None)
    told = {moment.event: moment.text for moment in story}
    assert told[Event.EXITED] == (
        "exit code 0, stop reason exited, 9 min 29 s, contested: clock_step"
    )
    assert told[Event.SCORED] == "best checkpoint-9100, value 0.7658"


class Rebooted(TickingClock):
    """The monotonic clock has begun anew; the wall clock goes on."""

    @override
    def utc(self) -> datetime:
        return START + timedelta(seconds=self.now_ns / SECOND)

    @override
    def boottime_ns(self) -> int:
        return 5


def test_elapsed_time_survives_a_reboot_by_the_wall_clock(sample: SampleRuns) -> None:
    folder, journal = sample.explored()
    clock = Rebooted(now_ns=sample.clock.now_ns + 100 * SECOND, boot="boot-2")
    again = Journal(folder.journal, RunKind.ATTEMPT, journal.view.records[0].id, clock)
    again.append(Event.DECLINED, reason="agent_early_exit", origin="none")
    story = tell(read_attempt(folder))
    assert story[-1].elapsed == pytest.approx(102, abs=1)


def test_a_noted_sign_makes_the_result_contested(sample: SampleRuns) -> None:
    attempt = sample.submitted()
    _, journal = sample.started_replay(attempt)
    journal.append(Event.NOTED, sign="clock_step")
    journal.append(Event.NOTED, audit="nothing to do with it")
    journal.append(Event.NOTED, sign="clock_step")
    view = read_attempt(attempt).replays[0]
    assert contested_of(view) == ("clock_step",)
    assert ending_reason(view) == ""


def test_missing_and_odd_event_data_are_tolerated(sample: SampleRuns) -> None:
    folder, journal = sample.attempt()
    journal.append(Event.EXPLORE_STARTED, wall_s="soon", container=None)
    journal.append(Event.NOTED, sign="clock_step", contested="not a list")
    journal.append(Event.CAPTURED, exit="gone", checkpoints={"a": 1}, best=[], value={})
    replay, _ = sample.started_replay(folder)
    assert replay.journal.exists()
    view = read_attempt(folder)
    assert [moment.event for moment in tell(view)][:4] == [
        Event.REGISTERED,
        Event.EXPLORE_STARTED,
        Event.NOTED,
        Event.CAPTURED,
    ]
    assert overview((view,), now=START)[0].cells()


def test_every_other_draw_of_the_same_candidate_is_named(sample: SampleRuns) -> None:
    first, second = sample.finished(1).replay, sample.finished(2).replay
    replay = read_replay(first)
    assert ("same candidate", path_id(second)) in replay_section(replay).facts


def test_a_list_of_attempts_looks_for_no_other_draws(
    sample: SampleRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample.finished(1)
    sample.finished(2)
    looked: list[object] = []
    monkeypatch.setattr(facts, "same_candidate", lambda *asked: looked.append(asked))
    overview(attempts(sample.runs), now=START)
    assert not looked


def test_a_seeded_replay_that_stands_for_its_attempt_is_named_so(sample: SampleRuns) -> None:
    sample.scored(sample.replayed(sample.submitted(), number=2))
    (row,) = overview(attempts(sample.runs), now=START)
    assert row.cells()[4] == "002 seed-2 terminal_behavior"
    assert row.document()["replay"]["series"] == "seed-2"


def test_no_ending_of_an_exploration_reads_as_a_submission_that_was_none(
    sample: SampleRuns,
) -> None:
    attempt, journal = sample.explored()
    ended = exit_facts(137, "submitted", killed_by="orchestrator")
    journal.append(Event.DECLINED, reason="agent_early_exit", origin="none", exit=ended)
    (said,) = (text for label, text in happened(read_attempt(attempt)).facts if label == "exit")
    assert said == "exit code 137, killed by orchestrator, stop reason exploration over, 1.0 s"
