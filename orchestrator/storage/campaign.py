"""``campaign.jsonl``: everything that was started, written before its outcome is known."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from orchestrator.errors import UsageError
from orchestrator.ports import Clock
from orchestrator.storage import chain

_ID = "campaign"


class CampaignEvent(StrEnum):
    """What is registered. ``head`` pins a journal's length at a moment of its run."""

    ATTEMPT_REGISTERED = "attempt_registered"
    REPLAY_REGISTERED = "replay_registered"
    SCORING_REGISTERED = "scoring_registered"
    SERIES_DECLARED = "series_declared"
    FINAL_MOUNTED = "final_mounted"
    HEAD = "head"
    ENDED = "ended"
    CORRECTED = "corrected"
    CLOSED = "closed"


_EVENTS = frozenset(CampaignEvent)
_CLOSED_WORD = CampaignEvent.CLOSED.value.encode()
_BEGINNINGS = frozenset(
    {
        CampaignEvent.ATTEMPT_REGISTERED,
        CampaignEvent.REPLAY_REGISTERED,
        CampaignEvent.SCORING_REGISTERED,
        CampaignEvent.SERIES_DECLARED,
        CampaignEvent.CLOSED,
    }
)
"""What a closed campaign takes no more; what runs already still ends in it."""


@dataclass(frozen=True, slots=True)
class CampaignRecord:
    """One registration. ``data`` of ``final_mounted`` has the running ``count``."""

    seq: int
    ts: str
    mono_ns: int
    boot_id: str
    event: CampaignEvent
    data: Mapping[str, Any]
    prev: str


@dataclass(frozen=True, slots=True)
class CampaignView:
    """The campaign log as it was read. ``head`` is the hash of its last line."""

    records: tuple[CampaignRecord, ...]
    head: str
    torn: bool


def read_campaign(path: Path) -> CampaignView:
    """Read and check the whole log without writing; a missing file is an empty one.

    Raises:
        TaskPackError: tampered, with the line; or another version wrote of an event that this one
            does not know.
    """
    whole = chain.read_chain(path)
    records: list[CampaignRecord] = []
    mounts = 0
    for number, entry in enumerate(whole.entries, start=1):
        if entry.id != _ID:
            raise chain.tampered(path, number, f"it belongs to {entry.id!r}")
        if entry.event not in _EVENTS:
            raise chain.unknown_event(path, number, entry.event)
        record = _record(entry)
        if record.event is CampaignEvent.FINAL_MOUNTED:
            mounts += 1
            if record.data.get("count") != mounts:
                raise chain.tampered(path, number, f"count is not {mounts}")
        records.append(record)
    return CampaignView(tuple(records), whole.head, whole.torn)


class Campaign:
    """The campaign log open for writing, by any number of processes at once.

    An append reads the end of the file only; ``read_campaign`` checks all of it.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock

    def append(self, event: CampaignEvent, /, **data: Any) -> CampaignRecord:
        """Append one registration and return once it is durable.

        ``final_mounted`` gets its ``count`` here.

        Raises:
            UsageError: the campaign is closed, and this would begin something.
            TaskPackError: the end of the log does not parse.
            ValueError: ``data`` holds NaN or an infinity; nothing was written.
            StorageFullError: no space; the log is as it was.
        """
        with chain.locked(self._path) as file:
            if event in _BEGINNINGS and _is_closed(file):
                raise self._closed()
            if event is CampaignEvent.FINAL_MOUNTED:
                data["count"] = _mounts(file) + 1
            entry, _ = file.append(_ID, event, data, self._clock)
        return _record(entry)

    def require_open(self) -> None:
        """Refuse to begin anything in a closed campaign, before anything is made for it.

        Raises:
            UsageError: it is closed.
        """
        if any(r.event is CampaignEvent.CLOSED for r in read_campaign(self._path).records):
            raise self._closed()

    def _closed(self) -> UsageError:
        return UsageError(
            f"the campaign of {self._path.parent} is closed",
            remedy="start another in a runs folder of its own: --runs, or ORCH_RUNS",
        )

    def close(self) -> CampaignRecord:
        """End the campaign: from here on nothing more is registered.

        Raises:
            UsageError: it is closed already.
        """
        return self.append(CampaignEvent.CLOSED)


def _is_closed(file: chain.LockedChain) -> bool:
    return any(entry.event == CampaignEvent.CLOSED for _, entry in file.backward(_CLOSED_WORD))


def _mounts(file: chain.LockedChain) -> int:
    for _, entry in file.backward():
        if entry.event == CampaignEvent.FINAL_MOUNTED:
            return int(entry.data["count"])
    return 0


def _record(entry: chain.Entry) -> CampaignRecord:
    return CampaignRecord(
        seq=entry.seq,
        ts=entry.ts,
        mono_ns=entry.mono_ns,
        boot_id=entry.boot_id,
        event=CampaignEvent(entry.event),
        data=entry.data,
        prev=entry.prev,
    )
