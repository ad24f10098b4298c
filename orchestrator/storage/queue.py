"""``queue.tsv`` and what lies beside it: adding jobs, claiming them, booking how they ended.

The table is rewritten whole and atomically by whoever holds ``queue.lock``, for moments only. A
claim is a lease: an flock that the worker holds on ``queue/JOB.lease`` until it has booked the
job's end, so that it is free the moment the worker is gone. What a job is asked to do
(``queue/JOB.json``) is durable before its row appears; what its latest try is about to do
(``queue/JOB.try.json``) before it does it.
"""

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import attrgetter

from orchestrator.domain.outcome import Verdict
from orchestrator.domain.queue import (
    OPEN,
    REFUSED,
    RETRIED,
    TAKEN,
    Job,
    JobEnding,
    JobStatus,
    settled,
    stamp,
)
from orchestrator.errors import InfrastructureError, TaskPackError, UsageError
from orchestrator.ports import Clock
from orchestrator.storage import durable
from orchestrator.storage.layout import RunsFolder
from orchestrator.storage.lock import locked
from orchestrator.storage.queue_claim import Claim, New
from orchestrator.storage.queue_files import JobFiles, set_aside
from orchestrator.storage.queue_table import (
    Fault,
    Reader,
    Table,
    escape,
    has_other_columns,
    job_of,
    render,
    row_of,
)

_PATIENCE = 30.0
_rank = attrgetter("rank")


@dataclass(frozen=True, slots=True)
class QueueView:
    """The queue as it was read.

    Attributes:
        jobs: every job, as the file has them.
        faults: lines that are no rows; the next command that writes sets them aside.
        orphans: names of the jobs of this host whose worker is gone.
    """

    jobs: tuple[Job, ...]
    faults: tuple[Fault, ...]
    orphans: frozenset[str]


class _Edit:
    """The table while it is being changed."""

    def __init__(self, table: Table) -> None:
        self.rows = {row.job: row for row in table.rows}
        self.changed = bool(table.faults)

    def put(self, job: Job) -> None:
        self.rows[job.job] = row_of(job)
        self.changed = True


class Queue:
    """The queue of a runs folder, for any number of processes at once.

    Args:
        say: told in one line of each line of the file that had to be set aside, and of each job
            that another version asked for.
        patience: seconds to wait for another holder of ``queue.lock``.
    """

    def __init__(
        self,
        runs: RunsFolder,
        clock: Clock,
        say: Callable[[str], None],
        *,
        patience: float = _PATIENCE,
    ) -> None:
        self._runs = runs
        self._clock = clock
        self._say = say
        self._patience = patience
        self._reader = Reader()
        self._seen: tuple[tuple[int, ...], Table] | None = None
        self.files = JobFiles(runs.queue_jobs)
        self.unknown: set[str] = set()
        """Jobs of another version that were met while a job was looked for; nobody's here."""
        self.host = os.uname().nodename

    def read(self) -> QueueView:
        """Read the queue. Changes nothing, waits for nobody and judges nothing."""
        table = self._table()
        jobs = tuple(job_of(row.line) for row in table.rows)
        return QueueView(jobs, table.faults, frozenset(self._orphans(table)))

    def open_jobs(self) -> tuple[Job, ...]:
        """Return the jobs that something is still to become of. Changes nothing."""
        return tuple(job_of(row.line) for row in self._table().rows if row.status in OPEN)

    def job(self, name: str) -> Job:
        """Return one job.

        Raises:
            UsageError: there is none of that name.
        """
        row = next((row for row in self._table().rows if row.job == name), None)
        if row is None:
            raise self._unknown(name)
        return job_of(row.line)

    def add(self, new: Sequence[New]) -> tuple[Job, ...]:
        """Add jobs, all or none.

        Raises:
            StorageFullError: no space; no row was added.
        """
        with self._changing() as edit:
            return tuple(self._added(edit, new))

    def claim(self) -> Claim | None:
        """Take the next job that is due: larger priority first, then the older one."""
        with self._changing() as edit:
            now = stamp(self._clock.utc())
            due = [
                row
                for row in edit.rows.values()
                if row.status is JobStatus.QUEUED and row.not_before <= now
            ]
            while due:
                row = min(due, key=_rank)
                if self.is_known(row.job):
                    descriptor = self.files.lease(row.job)
                    if descriptor is not None:
                        try:
                            return self._claimed(edit, job_of(row.line), descriptor)
                        except TaskPackError as damaged:
                            self._refuse(edit, job_of(row.line), damaged)
                due.remove(row)
        return None

    def is_known(self, name: str) -> bool:
        """Tell whether this version may work on a job; one that it may not is named once."""
        try:
            self.files.require_known(name)
        except TaskPackError as fault:
            if name not in self.unknown:
                self.unknown.add(name)
                self._say(f"{name}: left alone, {fault}")
            return False
        return True

    def orphans(self) -> tuple[str, ...]:
        """Name the jobs of this host that are taken and whose worker is gone. Changes nothing."""
        return tuple(self._orphans(self._table()))

    def take_over(self, name: str) -> Claim | None:
        """Take the claim that a dead worker of this host held; None when somebody else has it."""
        with self._changing() as edit:
            row = edit.rows.get(name)
            if row is None or row.status not in TAKEN or row.host != escape(self.host):
                return None
            descriptor = self.files.lease(name)
            return None if descriptor is None else Claim(self, job_of(row.line), descriptor)

    def retry(self, name: str, again: str) -> Job:
        """Put a job back that the machine or a person has ended, with all of its tries.

        Args:
            again: why one that a person stopped is run again; recorded.

        Raises:
            UsageError: there is no such job, it is not such a one, or no reason is given.
        """
        with self._changing() as edit:
            job = self._named(edit, name)
            waiting = job.status is JobStatus.QUEUED
            if job.status not in RETRIED and not waiting:
                raise UsageError(
                    f"{name} is {job.status}; only what the machine or a person ended is run again",
                    remedy=f"orch queue list shows where {name} stands",
                )
            if job.status is JobStatus.TERMINAL_OPERATOR and not again:
                raise UsageError(
                    f"{name} was stopped by a person",
                    remedy='give --again "REASON"; it is recorded and shown beside the result',
                )
            if again or not waiting:
                self.files.put_try(name, again=again, waits=0)
            self.files.forget_to_cancel(name)
            job = replace(
                job,
                status=JobStatus.QUEUED,
                tries=0,
                not_before="",
                updated=stamp(self._clock.utc()),
            )
            edit.put(job)
            return job

    def cancel(self, name: str) -> Job:
        """Cancel a queued job; ask the worker of a running one to stop it.

        Raises:
            UsageError: there is no such job, or it has ended.
        """
        with self._changing() as edit:
            job = self._named(edit, name)
            if job.status not in OPEN:
                raise UsageError(
                    f"{name} has ended: it is {job.status}",
                    remedy=f"orch queue list shows what became of {name}",
                )
            if job.status in TAKEN:
                self.files.ask_to_cancel(name)
                return job
            job = replace(
                job,
                status=JobStatus.CANCELLED,
                not_before="",
                updated=stamp(self._clock.utc()),
            )
            edit.put(job)
            return job

    def update(self, job: Job) -> Job:
        """Write a job's row anew; its claim is the caller's."""
        with self._changing() as edit:
            job = replace(job, updated=stamp(self._clock.utc()))
            edit.put(job)
            return job

    def settle(self, job: Job, ending: JobEnding, follow: New | None) -> tuple[Job, ...]:
        """Book how a try of a job ended; its claim is the caller's.

        One that was cancelled meanwhile, and would be tried again, is not.
        """
        with self._changing() as edit:
            waits = self.files.latest_try(job.job).waits + 1 if ending.busy else 0
            done = settled(job, ending, self._clock.utc(), waits=waits)
            if done.status is JobStatus.QUEUED:
                if self.files.is_cancelled(job.job):
                    done = replace(done, status=JobStatus.CANCELLED, not_before="")
                self.files.put_try(job.job, run_id="", waits=waits)
            edit.put(done)
            added = self._added(edit, () if follow is None else (follow,))
        self.files.forget_to_cancel(job.job)
        return (done, *added)

    def tidy(self) -> None:
        """Remove what killed writers have left half written."""
        with self._changing():
            durable.remove_unfinished(self._runs.root)
            self.files.remove_unfinished()

    def _claimed(self, edit: _Edit, job: Job, descriptor: int) -> Claim:
        """Mark a job whose lease is ours; nothing of an earlier try is this one's."""
        try:
            self.files.put_try(job.job, run_id="")
            self.files.forget_to_cancel(job.job)
            job = replace(
                job,
                status=JobStatus.CLAIMED,
                host=self.host,
                pid=os.getpid(),
                updated=stamp(self._clock.utc()),
            )
            edit.put(job)
        except BaseException:
            os.close(descriptor)
            raise
        return Claim(self, job, descriptor)

    def _refuse(self, edit: _Edit, job: Job, damaged: TaskPackError) -> None:
        """Leave to a person what cannot be read of one job; the others go on."""
        ending = JobEnding(Verdict.OPERATOR, REFUSED, damaged.exit_code, str(damaged))
        edit.put(settled(job, ending, self._clock.utc()))
        self._say(f"{job.job}: {damaged}")

    def _added(self, edit: _Edit, new: Sequence[New]) -> list[Job]:
        """Give new jobs their names and write what they are asked; the rows are yet to come."""
        if not new:
            return []
        self.files.make_folder()
        now = stamp(self._clock.utc())
        jobs = []
        for number, item in enumerate(new, start=self.files.next_number(edit.rows)):
            name = f"j{number}"
            self.files.put_request(item.request.model_copy(update={"job": name}))
            job = replace(item.job, job=name, created=now, updated=now)
            edit.put(job)
            jobs.append(job)
        return jobs

    def _named(self, edit: _Edit, name: str) -> Job:
        if name not in edit.rows:
            raise self._unknown(name)
        return job_of(edit.rows[name].line)

    def _unknown(self, name: str) -> UsageError:
        return UsageError(
            f"no job {name!r} in {self._runs.queue}", remedy="orch queue list names them"
        )

    def _table(self) -> Table:
        """Read the file as it is; one that has not changed is not read again.

        Raises:
            TaskPackError: it is no file, or one of another version.
        """
        path = self._runs.queue
        try:
            if not stat.S_ISREG(path.stat().st_mode):  # to open a FIFO would be to wait
                raise TaskPackError(f"{path} is no file, and not the table of the queue")
            with path.open("rb") as file:
                mark = _mark(os.fstat(file.fileno()))
                if self._seen is not None and self._seen[0] == mark:
                    return self._seen[1]
                data = file.read()
        except FileNotFoundError:
            return Table((), ())
        if has_other_columns(data):
            raise TaskPackError(
                f"{path} has other columns than this orch writes",
                remedy="nothing was touched: save it with tabs and its columns as they were, or "
                "work on it with the orch that wrote it",
            )
        table = self._reader.read(data)
        self._seen = (mark, table)
        return table

    def _orphans(self, table: Table) -> Iterator[str]:
        here = escape(self.host)
        for row in table.rows:
            if row.status in TAKEN and row.host == here and not self.files.is_leased(row.job):
                yield row.job

    @contextmanager
    def _changing(self) -> Iterator[_Edit]:
        """Be the only one who changes the table; it is written when the caller has done so.

        Raises:
            InfrastructureError: somebody keeps the lock.
            StorageFullError: no space; the table is as it was.
        """
        path = self._runs.queue_lock
        try:
            with locked(path, patience=self._patience):
                with durable.storage_faults(path):
                    path.write_text(f"{os.getpid()} on {self.host}\n", encoding="utf-8")
                table = self._table()
                self._set_aside(table.faults)
                edit = _Edit(table)
                yield edit
                if edit.changed:
                    self._write(edit)
        except TimeoutError as kept:
            holder = path.read_text(encoding="utf-8", errors="replace").strip()
            raise InfrastructureError(
                f"{path} has been held for {self._patience:.0f} s, by process {holder}",
                remedy=f"see what it does, and end it if it hangs: fuser -v {path}",
            ) from kept

    def _write(self, edit: _Edit) -> None:
        rows = tuple(edit.rows.values())
        data = render(rows)
        durable.write_file(self._runs.queue, data, replace=True)
        found = self._runs.queue.stat()
        # What was written need not be read again.
        self._seen = (_mark(found), Table(rows, ())) if found.st_size == len(data) else None

    def _set_aside(self, faults: Sequence[Fault]) -> None:
        """Keep what is no row where it can be read, before the table is written without it."""
        if faults:
            path = self._runs.queue_quarantine
            set_aside(path, faults, stamp(self._clock.utc()))
            for fault in faults:
                self._say(f"{self._runs.queue}:{fault.number}: {fault.reason}; set aside in {path}")


def _mark(found: os.stat_result) -> tuple[int, ...]:
    """Tell one version of the file from another."""
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
