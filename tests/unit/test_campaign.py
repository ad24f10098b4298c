from pathlib import Path

import pytest

from orchestrator.errors import TaskPackError, UsageError
from orchestrator.storage import chain
from orchestrator.storage.campaign import Campaign, CampaignEvent, read_campaign
from tests.unit.records_help import TickingClock, in_processes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "campaign.jsonl"


def test_registrations_are_read_back(path: Path) -> None:
    campaign = Campaign(path, TickingClock())
    written = (
        campaign.append(CampaignEvent.ATTEMPT_REGISTERED, attempt="a"),
        campaign.append(CampaignEvent.HEAD, attempt="a", head="sha256:1"),
    )
    view = read_campaign(path)
    assert view.records == written
    assert view.head == chain.digest(path.read_bytes().splitlines()[-1])
    assert not view.torn


def test_a_missing_log_is_empty(path: Path) -> None:
    assert read_campaign(path).records == ()
    assert not path.exists()


def test_final_mounts_carry_a_running_count(path: Path) -> None:
    campaign = Campaign(path, TickingClock())
    counts = []
    for number in range(3):
        for _ in range(number * 200):
            campaign.append(CampaignEvent.HEAD, text="x" * 300)
        counts.append(campaign.append(CampaignEvent.FINAL_MOUNTED, run="r").data["count"])
    assert counts == [1, 2, 3]
    assert len(read_campaign(path).records) == 603


def test_a_count_that_was_edited_shows(path: Path) -> None:
    campaign = Campaign(path, TickingClock())
    campaign.append(CampaignEvent.FINAL_MOUNTED, run="r")
    path.write_bytes(path.read_bytes().replace(b'"count":1', b'"count":0'))
    with pytest.raises(TaskPackError, match=":1: tampered: count"):
        read_campaign(path)


def test_an_edited_line_shows(path: Path) -> None:
    campaign = Campaign(path, TickingClock())
    for name in "abc":
        campaign.append(CampaignEvent.ATTEMPT_REGISTERED, attempt=name)
    path.write_bytes(path.read_bytes().replace(b'"attempt":"b"', b'"attempt":"x"'))
    with pytest.raises(TaskPackError, match=":3: tampered: prev"):
        read_campaign(path)


def test_a_journal_is_no_campaign_log(path: Path) -> None:
    with chain.locked(path) as file:
        file.append("run-1", "head", {}, TickingClock())
    with pytest.raises(TaskPackError, match="it belongs to 'run-1'"):
        read_campaign(path)


def test_QU_01_a_torn_line_is_cut_before_the_next_append(path: Path) -> None:
    campaign = Campaign(path, TickingClock())
    campaign.append(CampaignEvent.ATTEMPT_REGISTERED, attempt="a")
    with path.open("ab") as file:
        file.write(b'{"seq":2,"ev' + b"x" * 200_000)
    assert read_campaign(path).torn
    assert campaign.append(CampaignEvent.ENDED, attempt="a").seq == 2
    view = read_campaign(path)
    assert [r.event for r in view.records] == ["attempt_registered", "ended"]
    assert not view.torn


@pytest.mark.parametrize("length", [1, 65_000, 65_536, 200_000])
def test_walking_backward_crosses_blocks(path: Path, length: int) -> None:
    with chain.locked(path) as file:
        for number in range(5):
            file.append("x", "head", {"n": number, "text": "t" * length}, TickingClock())
        walked = list(file.backward())
    assert [entry.data["n"] for _, entry in walked] == [4, 3, 2, 1, 0]
    assert [line for line, _ in walked] == path.read_bytes().splitlines()[::-1]


def _register(index: int, path: Path) -> None:
    campaign = Campaign(path, TickingClock())
    for number in range(50):
        event = CampaignEvent.FINAL_MOUNTED if number % 5 == 0 else CampaignEvent.HEAD
        campaign.append(event, writer=index, number=number, text="x" * 6000)


def test_QU_03_eight_processes_lose_and_mix_nothing(path: Path) -> None:
    assert in_processes(8, _register, path) == [0] * 8
    records = read_campaign(path).records
    assert len(records) == 400
    for writer in range(8):
        assert [r.data["number"] for r in records if r.data["writer"] == writer] == [*range(50)]
    assert [r.data["count"] for r in records if r.event is CampaignEvent.FINAL_MOUNTED] == [
        *range(1, 81)
    ]


def test_a_closed_campaign_takes_endings_and_begins_nothing(path: Path) -> None:
    campaign = Campaign(path, TickingClock())
    campaign.append(CampaignEvent.ATTEMPT_REGISTERED, run_id="r")
    campaign.require_open()
    campaign.close()
    before = path.read_bytes()
    for begin in (
        campaign.require_open,
        campaign.close,
        lambda: campaign.append(CampaignEvent.REPLAY_REGISTERED, run_id="s"),
        lambda: campaign.append(CampaignEvent.SERIES_DECLARED, count=2),
    ):
        with pytest.raises(UsageError, match="closed"):
            begin()
    assert path.read_bytes() == before
    campaign.append(CampaignEvent.ENDED, run_id="r")
    assert [r.event for r in read_campaign(path).records][-2:] == ["closed", "ended"]
