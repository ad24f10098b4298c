from pathlib import Path

import pytest

from orchestrator.errors import UsageError
from orchestrator.report import lookup
from orchestrator.storage.layout import AttemptFolder, ReplayFolder, ScoringFolder
from tests.unit.sample_runs import SampleRuns


@pytest.fixture
def sample(tmp_path: Path) -> SampleRuns:
    sample = SampleRuns(tmp_path / "runs")
    sample.finished(1)
    sample.no_candidate(2)
    return sample


def test_every_name_of_a_run_leads_to_it(
    sample: SampleRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = list(sample.runs.runs())
    assert [type(folder) for folder in folders] == [
        AttemptFolder,
        ReplayFolder,
        ScoringFolder,
        AttemptFolder,
    ]
    monkeypatch.chdir(sample.root)
    for folder in folders:
        name, run_id = lookup.path_id(folder), lookup.run_id(folder)
        assert len(run_id) == 32
        for text in (name, run_id, run_id[:8], str(folder.root), name + "/"):
            assert lookup.resolve(sample.runs, text) == folder


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("scripted__digits/attempt-002", "attempt-002"),
        ("s/attempt-001/replay", "attempt-001/replay-001"),
        ("s/attempt-001/r/s", "attempt-001/replay-001/score-001"),
        ("attempt-001/replay-001", "attempt-001/replay-001"),
        ("attempt-002", "attempt-002"),
    ],
)
def test_a_path_id_may_be_shortened_part_by_part(sample: SampleRuns, text: str, found: str) -> None:
    assert lookup.path_id(lookup.resolve(sample.runs, text)).partition("/")[2] == found


def test_an_ambiguous_name_lists_what_it_may_mean(sample: SampleRuns) -> None:
    with pytest.raises(UsageError, match="may mean 2 runs") as error:
        lookup.resolve(sample.runs, "scripted")
    assert "attempt-001, " in error.value.remedy
    assert error.value.remedy.endswith("attempt-002")


def test_a_long_listing_is_cut(sample: SampleRuns) -> None:
    for number in range(3, 13):
        sample.attempt(number)
    with pytest.raises(UsageError) as error:
        lookup.resolve(sample.runs, "scripted")
    assert error.value.remedy.endswith("attempt-008, and 4 more")


def test_an_unknown_name_is_answered_with_near_ones(sample: SampleRuns) -> None:
    name = lookup.path_id(next(sample.runs.runs()))
    with pytest.raises(UsageError) as error:
        lookup.resolve(sample.runs, name.replace("scripted", "scirpted"))
    assert name in error.value.remedy


@pytest.mark.parametrize("text", ["", "/", "..", "abc", "no/such", "../runs", "\0", "a" * 5000])
def test_what_names_nothing_is_a_usage_error(sample: SampleRuns, text: str) -> None:
    with pytest.raises(UsageError):
        lookup.resolve(sample.runs, text)


def test_an_empty_runs_folder_says_how_to_begin(tmp_path: Path) -> None:
    sample = SampleRuns(tmp_path / "none")
    with pytest.raises(UsageError) as error:
        lookup.resolve(sample.runs, "abcd")
    assert "orch explore" in error.value.remedy


def test_a_run_without_a_readable_plan_is_found_by_its_journal(sample: SampleRuns) -> None:
    folder = lookup.resolve(sample.runs, "attempt-002")
    known = lookup.run_id(folder)
    folder.plan.write_text("{")
    assert lookup.run_id(folder) == known
    assert lookup.resolve(sample.runs, known[:6]) == folder


def test_going_up(sample: SampleRuns) -> None:
    attempt = lookup.resolve(sample.runs, "attempt-001")
    scoring = lookup.resolve(sample.runs, "attempt-001/replay-001/score-001")
    replay = lookup.resolve(sample.runs, "attempt-001/replay-001")
    assert {lookup.attempt_of(folder) for folder in (attempt, replay, scoring)} == {attempt}
