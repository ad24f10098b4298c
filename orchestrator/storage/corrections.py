"""``corrections/NNN.json`` of an attempt: what persons say of its answers, only ever appended.

Each record is written first and then registered in the campaign log by its sha256. A writer that
was killed in between has left a record that the next one registers.
"""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from orchestrator.domain.review import Judgement, JudgementRecord
from orchestrator.errors import TaskPackError
from orchestrator.ports import Clock
from orchestrator.storage import durable
from orchestrator.storage.campaign import Campaign, CampaignEvent, read_campaign
from orchestrator.storage.layout import AttemptFolder
from orchestrator.storage.records import require_format
from orchestrator.storage.supervisor import alone

_NAME = re.compile(r"(?:(?!000)[0-9]{3}|[1-9][0-9]{3,5})\.json")
"""One way to write each number, so that no second file answers to it; as ``receipts`` has it."""


def files(folder: Path) -> tuple[Path, ...]:
    """List the records of a corrections folder, in order; one that is not there has none."""
    try:
        found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    except FileNotFoundError:
        return ()
    return tuple(sorted(found, key=lambda path: int(path.stem)))


def read(path: Path) -> Judgement:
    """Read one record.

    Raises:
        TaskPackError: it is damaged, of another version, or has another number than its file.
    """
    require_format(path)
    try:
        found = JudgementRecord.model_validate(durable.read_json(path)).root
    except ValidationError as fault:
        first = fault.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise TaskPackError(f"{path}: {where}: {first['msg']}") from fault
    if found.number != int(path.stem):
        raise TaskPackError(f"{path}: it has number {found.number}")
    return found


class Corrections:
    """An attempt's corrections, open for writing by any number of processes at once."""

    def __init__(self, attempt: AttemptFolder, run_id: str, log: Path, clock: Clock) -> None:
        self._attempt = attempt
        self._run_id = run_id
        self._log = log
        self._campaign = Campaign(log, clock)
        self._registered: set[int] = set()

    def append(self, make: Callable[[int, tuple[Judgement, ...]], Judgement]) -> Judgement:
        """Write one record and register it.

        Args:
            make: is told its number and what there is already, while nobody else may write.

        Raises:
            TaskPackError: what is there cannot be read, or one of them is not there any more.
            StorageFullError: no space; nothing was written.
        """
        folder = self._attempt.corrections
        with alone(self._attempt.root):
            durable.make_folder(folder, exist_ok=True)
            there = files(folder)
            known = tuple(map(read, there))
            self._require_all(folder, {one.number for one in known})
            if there and not self._is_registered(known[-1].number):
                self._register(there[-1], known[-1])
            record = make(len(known) + 1, known)
            path = folder / f"{record.number:03d}.json"
            durable.write_json(path, record.model_dump(mode="json"))
            self._register(path, record)
        return record

    def _require_all(self, folder: Path, here: set[int]) -> None:
        """Refuse to go on where a record is lost: the next would take its number, or its place.

        Raises:
            TaskPackError: one is.
        """
        if not self._registered:
            self._read_registered()
        lost = (self._registered | set(range(1, max(here, default=0)))) - here
        if lost:
            raise TaskPackError(
                f"{folder / f'{min(lost):03d}.json'} is not here any more",
                remedy="bring it back: nothing is written over what was lost",
            )

    def _is_registered(self, number: int) -> bool:
        if number not in self._registered:
            self._read_registered()
        return number in self._registered

    def _read_registered(self) -> None:
        self._registered = {
            int(line.data["number"])
            for line in read_campaign(self._log).records
            if line.event is CampaignEvent.CORRECTED and line.data["run_id"] == self._run_id
        }

    def _register(self, path: Path, record: Judgement) -> None:
        self._campaign.append(
            CampaignEvent.CORRECTED,
            run_id=self._run_id,
            number=record.number,
            kind=record.kind,
            sha256="sha256:" + hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        self._registered.add(record.number)
