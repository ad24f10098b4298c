import errno
import os
import shutil
from collections.abc import Callable
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


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _deep(path: Path) -> None:
    path.write_bytes(b"[" * 200_000)


@pytest.mark.parametrize("damage", [_fifo, _deep])
def test_a_damaged_plan_or_journal_of_one_run_hides_no_other(
    sample: SampleRuns, damage: Callable[[Path], None]
) -> None:
    broken = lookup.resolve(sample.runs, "attempt-001/replay-001")
    for path in (broken.plan, broken.journal):
        damage(path)
    whole = lookup.resolve(sample.runs, "attempt-002")
    assert lookup.resolve(sample.runs, lookup.run_id(whole)) == whole
    assert lookup.run_id(broken) == ""
    assert lookup.same_candidate(ReplayFolder(whole.root / "replay-009"), "candidate") == ()


@pytest.mark.parametrize("name", ["attempt-0001", "attempt-000", "attempt-0000000001"])
def test_a_number_is_written_one_way(sample: SampleRuns, name: str) -> None:
    first = lookup.resolve(sample.runs, "attempt-001")
    shutil.copytree(first.root, first.root.with_name(name))
    assert [f.root.name for f in sample.runs.runs() if isinstance(f, AttemptFolder)] == [
        "attempt-001",
        "attempt-002",
    ]


def test_a_config_that_may_not_be_read_is_named(
    sample: SampleRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = lookup.resolve(sample.runs, "attempt-001").root.parent

    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(UsageError, match=f"{config} cannot be used: Permission denied"):
        sample.runs.configs()


def test_no_link_and_nothing_named_like_a_run_is_a_config(sample: SampleRuns) -> None:
    config = lookup.resolve(sample.runs, "attempt-001").root.parent
    (sample.runs.root / "linked").symlink_to(config)
    shutil.copytree(config, sample.runs.root / "attempt-001")
    assert [found.root for found in sample.runs.configs()] == [config]


def test_going_up(sample: SampleRuns) -> None:
    attempt = lookup.resolve(sample.runs, "attempt-001")
    scoring = lookup.resolve(sample.runs, "attempt-001/replay-001/score-001")
    replay = lookup.resolve(sample.runs, "attempt-001/replay-001")
    assert {lookup.attempt_of(folder) for folder in (attempt, replay, scoring)} == {attempt}
