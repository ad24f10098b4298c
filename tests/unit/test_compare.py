"""The runs of a task side by side: seeds, means, deviations, marks."""

import csv
import io
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import app
from orchestrator.domain.records import OTHER_TASK
from orchestrator.domain.task import Direction
from orchestrator.errors import Exit
from orchestrator.report.compare import Comparison, compare
from orchestrator.report.views import attempts
from orchestrator.storage.pack import Pack, load_pack
from tests.unit.sample_runs import SampleRuns, commit

SEEDS = {42: 0.71, 123: 0.76, 456: 0.83}


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SampleRuns:
    monkeypatch.setenv("ORCH_RUNS", str(tmp_path / "runs"))
    return SampleRuns(tmp_path / "runs")


@pytest.fixture
def pack() -> Pack:
    return load_pack(Path("digits_class0"))


def of_seeds(sample: SampleRuns) -> None:
    """Have the evaluator measure three seeds."""
    sample.figures = {f"unlearn_score@{seed}": value for seed, value in SEEDS.items()}
    sample.figures["unlearn_score@sd"] = statistics.stdev(SEEDS.values())


def compared(sample: SampleRuns, pack: Pack) -> Comparison:
    return compare(attempts(sample.runs), pack)


def changed(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def recommit(score: Any) -> None:
    commit(score, score)


def test_each_seed_has_a_row_and_the_mean_comes_last_with_its_deviation(
    sample: SampleRuns, pack: Pack
) -> None:
    of_seeds(sample)
    sample.finished()
    *seeds, mean = compared(sample, pack).lines
    assert {int(line.seed): line.figures["unlearn_score"] for line in seeds} == SEEDS
    assert (mean.seed, mean.figures["unlearn_score"]) == ("mean", 0.7658)
    assert mean.deviations == {"unlearn_score": statistics.stdev(SEEDS.values())}
    assert mean.figures["retain_acc"] == 0.7047
    assert [line.marks for line in seeds] == [()] * 3
    assert "local" in mean.marks


def test_a_task_of_one_seed_has_one_row_a_run(sample: SampleRuns, pack: Pack) -> None:
    sample.finished()
    (line,) = compared(sample, pack).lines
    assert (line.seed, line.series, line.figures["unlearn_score"]) == ("", "official", 0.7658)


def test_seeded_replays_are_summed_up_by_their_sample_standard_deviation(
    sample: SampleRuns, pack: Pack
) -> None:
    attempt = sample.submitted()
    for number in (2, 3, 4):
        scoring = sample.scored(sample.replayed(attempt, number=number))
        best = scoring.checkpoint("checkpoint-9100")
        summary = json.loads(best.summary.read_text())
        summary["metrics"]["retain_acc"]["value"] = number / 10
        best.summary.write_text(json.dumps(summary))
        recommit(best)
    lines = compared(sample, pack).lines
    assert [line.series for line in lines if not line.seed] == ["seed-2", "seed-3", "seed-4"]
    (mean,) = (line for line in lines if line.seed == "mean")
    assert mean.series == "3 seeds"
    assert mean.figures["retain_acc"] == pytest.approx(0.3)
    assert mean.deviations["retain_acc"] == pytest.approx(0.1)
    assert "local" in mean.marks


def test_a_mean_over_replays_is_none_where_one_of_them_has_no_number(
    sample: SampleRuns, pack: Pack
) -> None:
    attempt = sample.submitted()
    for number, extra in ((2, {"speed": 3.0}), (3, {})):
        sample.figures = extra
        sample.scored(sample.replayed(attempt, number=number))
    (mean,) = (line for line in compared(sample, pack).lines if line.seed == "mean")
    assert (mean.figures["speed"], mean.deviations["speed"]) == (None, None)
    assert mean.figures["unlearn_score"] == 0.7658


def test_a_replay_that_the_machine_spoiled_is_no_row(sample: SampleRuns, pack: Pack) -> None:
    sample.broken()
    assert compared(sample, pack).lines == ()


@pytest.mark.parametrize(("direction", "first"), [(Direction.MAX, 2), (Direction.MIN, 1)])
def test_the_best_run_comes_first_and_one_without_a_figure_last(
    sample: SampleRuns, pack: Pack, direction: Direction, first: int
) -> None:
    sample.replayed(sample.submitted(3))
    for number, value in ((1, 0.2), (2, 0.9)):
        scoring = sample.finished(number)
        best = scoring.checkpoint("checkpoint-9100")
        summary = json.loads(best.summary.read_text())
        summary["metrics"]["unlearn_score"]["value"] = value
        best.summary.write_text(json.dumps(summary))
        recommit(best)
    spec = pack.spec.model_copy(
        update={"score": pack.spec.score.model_copy(update={"direction": direction})}
    )
    lines = compare(attempts(sample.runs), Pack(spec, *list(vars(pack).values())[1:])).lines
    assert f"attempt-00{first}" in lines[0].run
    assert "attempt-003" in lines[-1].run
    assert lines[-1].marks[-1] == "not scored"


def test_a_run_without_an_edit_is_marked_and_so_is_one_of_another_version(
    sample: SampleRuns, pack: Pack
) -> None:
    scoring = sample.finished()
    attempt = scoring.replay.attempt
    assert "no edit" not in compared(sample, pack).lines[-1].marks
    changed(attempt.submission, empty=True)
    changed(attempt.plan, task_digest=pack.digest)
    assert compared(sample, pack).lines[-1].marks == ("no edit", "local")
    changed(attempt.plan, task_digest="pack:v1:sha256:" + "0" * 64)
    assert "another version of the task" in compared(sample, pack).lines[-1].marks
    changed(attempt.plan, task_digest=pack.digest)
    changed(scoring.plan, relaxations=["not run with --official", f"{OTHER_TASK}: pack:v1:x"])
    assert compared(sample, pack).lines[-1].marks == ("no edit", OTHER_TASK, "local")


def test_a_further_draw_of_one_candidate_is_marked_and_one_by_a_seed_is_not(
    sample: SampleRuns, pack: Pack
) -> None:
    sample.scored(sample.replayed(sample.finished(1).replay.attempt, number=2))
    assert {line.marks for line in compared(sample, pack).lines} == {
        ("another version of the task", "local")
    }
    sample.finished(2)
    third = sample.replayed(sample.submitted(3)).plan
    marks = [line.marks for line in compared(sample, pack).lines]
    assert all("candidate of 3 attempts" in mark for mark in marks)
    changed(third, candidate="another")
    marks = [line.marks for line in compared(sample, pack).lines]
    assert sum("candidate of 2 attempts" in mark for mark in marks) == len(marks) - 1


def test_a_patch_is_named_and_runs_of_other_tasks_are_left_out(
    sample: SampleRuns, pack: Pack
) -> None:
    sample.agent = "patch"
    changed(sample.finished().replay.attempt.plan, patch_name="scrub.patch")
    sample.name = "another"
    sample.finished(2)
    assert [line.agent for line in compared(sample, pack).lines] == ["patch scrub.patch"]


def test_the_command_prints_a_table_and_json_and_csv(
    sample: SampleRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(["compare", "digits_class0"]) == Exit.OK
    assert "no finished runs of digits_class0" in capsys.readouterr().out
    of_seeds(sample)
    sample.finished()
    assert app.run(["compare", "digits_class0"]) == Exit.OK
    told = capsys.readouterr().out
    assert "0.7658 ± 0.0603" in told
    assert app.run(["show", told.splitlines()[-1].split()[0]]) == Exit.OK
    assert "replay-001" in capsys.readouterr().out
    assert app.run(["compare", "digits_class0", "--json"]) == Exit.OK
    rows = json.loads(capsys.readouterr().out)
    assert [row["seed"] for row in rows] == ["42", "123", "456", "mean"]
    assert app.run(["compare", "digits_class0", "--csv"]) == Exit.OK
    *seeds, mean = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert [float(row["unlearn_score"]) for row in seeds] == list(SEEDS.values())
    assert float(mean["unlearn_score_sd"]) == pytest.approx(0.0602771)
    assert seeds[0]["unlearn_score_sd"] == ""
    assert app.run(["compare", "digits_class0", "--csv", "--json"]) == Exit.USAGE


def test_what_a_task_says_of_its_score_stands_in_every_report(
    sample: SampleRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    sample.name = "mls_unlearning"
    note = load_pack(Path(sample.name)).spec.score.note
    plan = sample.finished().replay.attempt.plan
    task = json.loads(plan.read_text())["task"]
    task["score"]["note"] = note
    changed(plan, task=task)
    for command in (["compare", "mls_unlearning"], ["show", "attempt-001"]):
        assert app.run(command) == Exit.OK
        assert note in capsys.readouterr().out
    assert app.run(["report", "attempt-001"]) == Exit.OK
    assert note in Path(capsys.readouterr().out.strip()).read_text()
