"""The files of single jobs, beside the table: what was asked, the latest try, the lease.

``JOB.json`` is frozen. ``JOB.try.json`` is written by whoever holds the lease, or the queue's lock
while nobody does. ``JOB.lease`` is an empty file to hold a lock on. ``JOB.cancel`` is there while
somebody wants the worker to stop.
"""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from orchestrator.domain.queue import JobRequest, JobTry
from orchestrator.storage import durable
from orchestrator.storage.lock import try_lock
from orchestrator.storage.queue_table import Fault, escape
from orchestrator.storage.records import load, require_format

_NAME = re.compile(r"j([1-9][0-9]{0,8})(?:\..*)?")
_QUARANTINE_HEADER = "time\tline\treason\trow\n"


class JobFiles:
    """The folder ``queue/`` of a runs folder; it is made by the first that needs it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def make_folder(self) -> None:
        """Make the folder, durably, unless it is there."""
        durable.make_folder(self._folder, exist_ok=True)

    def request(self, name: str) -> JobRequest:
        """Return what a job was asked to do.

        Raises:
            TaskPackError: the record is missing or damaged.
        """
        return load(self._path(name, "json"), JobRequest)

    def require_known(self, name: str) -> None:
        """Refuse a job whose records another version wrote.

        Raises:
            TaskPackError: one of them has another format.
        """
        for suffix in ("json", "try.json"):
            require_format(self._path(name, suffix))

    def put_request(self, request: JobRequest) -> None:
        """Freeze what a job is asked to do."""
        durable.write_json(self._path(request.job, "json"), request.model_dump(mode="json"))

    def latest_try(self, name: str) -> JobTry:
        """Return what a job's latest try was about to do; nothing, when there was none.

        Raises:
            TaskPackError: the record is damaged.
        """
        path = self._path(name, "try.json")
        return load(path, JobTry) if path.exists() else JobTry()

    def put_try(self, name: str, **changes: str | int) -> None:
        """Change what is put down of a job's latest try, durably."""
        record = self.latest_try(name).model_copy(update=changes)
        path = self._path(name, "try.json")
        durable.write_json(path, record.model_dump(mode="json"), replace=True)

    def is_cancelled(self, name: str) -> bool:
        """Tell whether somebody wants a job's worker to stop."""
        return self._path(name, "cancel").exists()

    def ask_to_cancel(self, name: str) -> None:
        """Ask a job's worker to stop."""
        durable.write_file(self._path(name, "cancel"), b"", replace=True)

    def forget_to_cancel(self, name: str) -> None:
        """Take that back, or note that it was done."""
        durable.remove_file(self._path(name, "cancel"))

    def lease(self, name: str) -> int | None:
        """Take a job's lease, for as long as the descriptor is open; None when somebody has it."""
        self.make_folder()
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._path(name, "lease"), flags, 0o644)
        if try_lock(descriptor):
            return descriptor
        os.close(descriptor)
        return None

    def is_leased(self, name: str) -> bool:
        """Tell whether a living process holds a job's lease. Changes nothing."""
        try:
            descriptor = os.open(self._path(name, "lease"), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return not try_lock(descriptor, shared=True)
        finally:
            os.close(descriptor)

    def next_number(self, taken: Iterable[str]) -> int:
        """Return the first number behind all that ``taken`` and the files here have."""
        names = (*taken, *(path.name for path in self._folder.iterdir()))
        return 1 + max((int(m.group(1)) for n in names if (m := _NAME.fullmatch(n))), default=0)

    def remove_unfinished(self) -> None:
        """Remove what a killed writer left half written."""
        durable.remove_unfinished(self._folder)

    def _path(self, name: str, what: str) -> Path:
        return self._folder / f"{name}.{what}"


def set_aside(path: Path, faults: Sequence[Fault], now: str) -> None:
    """Append lines that are no rows to the quarantine at ``path``, durably.

    Raises:
        StorageFullError: no space; nothing was appended.
    """
    lines = [f"{now}\t{f.number}\t{escape(f.reason)}\t{escape(f.line)}\n" for f in faults]
    descriptor = durable.open_lines(path)
    try:
        head = "" if os.fstat(descriptor).st_size else _QUARANTINE_HEADER
        durable.append(descriptor, path, (head + "".join(lines)).encode())
    finally:
        os.close(descriptor)
