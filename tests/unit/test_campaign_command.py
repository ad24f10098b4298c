import json
import shutil
from pathlib import Path

import pytest

from orchestrator.cli.app import run
from orchestrator.report.lookup import path_id
from orchestrator.storage.campaign import Campaign, CampaignEvent, read_campaign
from orchestrator.storage.supervisor import supervising
from tests.unit.records_help import TickingClock
from tests.unit.sample_runs import SampleRuns


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    campaign = Campaign(tmp_path / "campaign.jsonl", TickingClock())
    campaign.append(CampaignEvent.ATTEMPT_REGISTERED, run_id="ab" * 16, number=1, again=None)
    campaign.append(CampaignEvent.ENDED, run_id="ab" * 16, state="submitted")
    return tmp_path


def _orch(runs: Path, *words: str) -> int:
    return run(["--runs", str(runs), *words])


def test_the_bare_noun_shows_the_log(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _orch(runs, "campaign") == 0
    shown = capsys.readouterr().out
    assert _orch(runs, "campaign", "show") == 0
    assert capsys.readouterr().out == shown
    assert "attempt_registered  number=1 run_id=abababababab\n" in shown
    assert "again" not in shown
    assert read_campaign(runs / "campaign.jsonl").head in shown


def test_it_is_one_json_document(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _orch(runs, "campaign", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["event"] for row in rows] == ["attempt_registered", "ended"]
    assert rows[0]["data"] == {"run_id": "ab" * 16, "number": 1, "again": None}


def test_head_prints_what_is_to_be_published(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = read_campaign(runs / "campaign.jsonl").head
    assert _orch(runs, "campaign", "head") == 0
    assert capsys.readouterr().out == head + "\n"
    assert _orch(runs, "campaign", "head", "--json") == 0
    assert json.loads(capsys.readouterr().out)["seq"] == 2


def test_close_ends_it_once(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _orch(runs, "campaign", "close") == 0
    view = read_campaign(runs / "campaign.jsonl")
    assert view.records[-1].event is CampaignEvent.CLOSED
    assert capsys.readouterr().out == view.head + "\n"
    assert _orch(runs, "campaign", "close") == 64


def test_close_waits_for_what_goes_on(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A replay that ended in a closed campaign could never be scored."""
    sample = SampleRuns(runs)
    scoring = sample.finished()
    attempt, _ = sample.explored(2)
    before = (runs / "campaign.jsonl").read_bytes()
    assert _orch(runs, "campaign", "close") == 64
    assert f"{path_id(attempt)} goes on" in capsys.readouterr().err
    assert (runs / "campaign.jsonl").read_bytes() == before
    shutil.rmtree(attempt.root)
    with supervising(scoring.replay.root):
        assert _orch(runs, "campaign", "close") == 64
        assert f"{path_id(scoring.replay)} goes on" in capsys.readouterr().err
    assert _orch(runs, "campaign", "close") == 0


def test_nothing_registered_has_no_head(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _orch(tmp_path, "campaign", "head") == 64
    assert _orch(tmp_path, "campaign", "close") == 64
    assert not (tmp_path / "campaign.jsonl").exists()
    assert "nothing was registered" in capsys.readouterr().err
