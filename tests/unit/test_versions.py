"""Records of another version: each reading command says so in a line, and touches nothing."""

from pathlib import Path

import pytest

from orchestrator.cli import app
from orchestrator.storage.campaign import Campaign, CampaignEvent
from tests.unit.records_help import TickingClock
from tests.unit.sample_runs import SampleRuns
from tests.unit.versions_help import QUEUE_TROUBLES, RUN_TROUBLES, WHOLE_TROUBLES, Scene

REPORTED = frozenset({"attempt's plan", "plan cut", "plan a folder", "journal", "journal a folder"})
"""Troubles of what a report is about."""


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    runs = tmp_path / "runs"
    monkeypatch.setenv("ORCH_RUNS", str(runs))
    scoring = SampleRuns(runs).finished(1)
    SampleRuns(runs, name="other").no_candidate(1, "nothing found")
    log = Campaign(runs / "campaign.jsonl", TickingClock())
    log.append(CampaignEvent.SERIES_DECLARED, attempt_id="a", series="seed", count=1)
    return Scene(runs, scoring.replay.attempt.root)


def _tree(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _said(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str]:
    code = int(app.run([str(word) for word in words]))
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    assert code != 70
    return code, told.out + told.err


@pytest.mark.parametrize("trouble", RUN_TROUBLES)
def test_reading_names_the_record_and_goes_on_with_the_others(
    scene: Scene, capsys: pytest.CaptureFixture[str], trouble: str
) -> None:
    spoil, says = RUN_TROUBLES[trouble]
    spoil(scene)
    before = _tree(scene.runs)
    attempt = "/".join(scene.attempt.parts[-2:])
    code, said = _said(capsys, "status")
    assert code == 0
    assert says in said
    assert "no_candidate" in said, "the other attempt is listed as ever"
    for words in (("status", "--json"), ("lifecycle", attempt)):
        code, said = _said(capsys, *words)
        assert code == 0, said
        assert says in said, words
    for words in (("show", attempt), ("logs", attempt), ("campaign",)):
        code, said = _said(capsys, *words)
        assert code == 0, said
    _said(capsys, "verify", scene.attempt)
    if trouble in REPORTED:
        code, said = _said(capsys, "report", attempt)
        assert code == 65
        assert says in said
    assert _tree(scene.runs) == before


@pytest.mark.parametrize("trouble", WHOLE_TROUBLES)
@pytest.mark.parametrize(
    "words", [("campaign",), ("campaign", "head"), ("campaign", "close")], ids=" ".join
)
def test_the_campaign_says_what_it_cannot_read(
    scene: Scene, capsys: pytest.CaptureFixture[str], trouble: str, words: tuple[str, ...]
) -> None:
    spoil, says, ends = WHOLE_TROUBLES[trouble]
    spoil(scene)
    before = _tree(scene.runs)
    code, said = _said(capsys, *words)
    assert code == ends, said
    assert says in said
    assert _tree(scene.runs) == before


@pytest.mark.parametrize("words", ["status", "show x", "logs x", "verify x", "queue list"])
def test_a_runs_folder_that_is_a_file_is_refused(
    scene: Scene, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    WHOLE_TROUBLES["runs a file"][0](scene)
    code, said = _said(capsys, *words.split())
    assert code == 64
    assert "the runs folder" in said
    assert "ORCH_RUNS" in said


def test_verification_says_which_event_it_does_not_know(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    WHOLE_TROUBLES["campaign"][0](scene)
    _, said = _said(capsys, "verify", scene.runs)
    assert "has event 'teleported', which this verifier does not know" in said


@pytest.mark.parametrize("trouble", QUEUE_TROUBLES)
@pytest.mark.parametrize("words", ["queue list", "queue list --json", "queue cancel j1"])
def test_a_queue_of_another_version_is_left_alone(
    scene: Scene, capsys: pytest.CaptureFixture[str], trouble: str, words: str
) -> None:
    spoil, says = QUEUE_TROUBLES[trouble]
    spoil(scene.runs / "queue.tsv")
    before = _tree(scene.runs)
    code, said = _said(capsys, *words.split())
    assert code == 65
    assert says in said
    after = {path: data for path, data in _tree(scene.runs).items() if path.suffix != ".lock"}
    assert after == before
