"""A result stands beside the reference points that its task had."""

from pathlib import Path

import pytest

from orchestrator.cli import app
from orchestrator.errors import Exit
from orchestrator.report.facts import sections
from orchestrator.report.html import render
from orchestrator.report.references import HERE, reference_points
from orchestrator.report.views import read_attempt
from tests.unit.records_help import START
from tests.unit.sample_runs import HOSTILE, SampleRuns

POINTS = (
    {"name": "start", "value": 0.49, "components": {"forget_acc": 1.0}, "note": "0.9 s"},
    {"name": "paper", "components": {"retain_acc": 0.7485}},
)


@pytest.fixture
def sample(tmp_path: Path) -> SampleRuns:
    return SampleRuns(tmp_path / "runs", reference=POINTS)


def test_points_stand_under_the_attempts_own_best_checkpoint(sample: SampleRuns) -> None:
    view = read_attempt(sample.finished().replay.attempt)
    table = reference_points(view)
    assert table.headings == ("", "forget_acc", "retain_acc", "unlearn_score")
    assert table.numeric == 3
    own, start, paper = table.rows
    assert own[0] == f"{HERE}, checkpoint-9100"
    assert own[-1] == "0.7658"
    assert start == ("start", "1", "-", "0.49")
    assert paper == ("paper", "-", "0.7485", "-")


def test_the_metric_is_no_part_of_itself(tmp_path: Path) -> None:
    points = ({"name": "start", "value": 0.49, "components": {"unlearn_score": 0.49, "a": 1}},)
    sample = SampleRuns(tmp_path / "runs", reference=points)
    table = reference_points(read_attempt(sample.finished().replay.attempt))
    assert table.headings == ("", "a", "unlearn_score")


def test_an_attempt_without_a_score_shows_the_points_alone(sample: SampleRuns) -> None:
    folder = sample.submitted()
    assert [row[0] for row in reference_points(read_attempt(folder)).rows] == ["start", "paper"]


def test_a_task_without_points_has_no_such_table(tmp_path: Path) -> None:
    view = read_attempt(SampleRuns(tmp_path / "runs").finished().replay.attempt)
    assert not reference_points(view).rows
    assert "Reference points" not in {part.title for part in sections(view)}
    assert "Reference points" not in render(view, now=START)


def test_show_and_the_report_have_the_table_once_each(sample: SampleRuns) -> None:
    view = read_attempt(sample.finished().replay.attempt)
    (part,) = (part for part in sections(view) if part.title == "Reference points")
    assert part.tables == (reference_points(view),)
    assert part.facts == (("start", "0.9 s"),)
    page = render(view, now=START)
    assert page.count("<td>paper</td>") == 1
    before, after = page.split("<h3>Reference points</h3>")
    assert "<h2>Scores</h2>" in before
    assert "<h2>Identity</h2>" in after
    assert "0.9 s" in after.partition("<h2>Reference points</h2>")[2]


def test_show_says_the_title_of_a_lone_table_once(
    sample: SampleRuns, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt = sample.finished().replay.attempt
    monkeypatch.setenv("ORCH_RUNS", str(attempt.root.parent.parent))
    assert app.run(["show", str(attempt.root)]) == Exit.OK
    assert capsys.readouterr().out.count("Reference points") == 1


def test_a_note_is_text_like_any_other(tmp_path: Path) -> None:
    hostile = ({"name": HOSTILE, "note": HOSTILE},)
    sample = SampleRuns(tmp_path / "runs", reference=hostile)
    page = render(read_attempt(sample.finished().replay.attempt), now=START)
    assert "<script" not in page
