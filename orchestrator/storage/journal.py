"""``lifecycle.jsonl``: what happened to one run. Its state is computed from it, never stored."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.domain.attempt import RunKind
from orchestrator.lifecycle.machine import (
    Event,
    State,
    UnknownTransitionError,
    advance,
)
from orchestrator.ports import Clock
from orchestrator.storage import chain

_EVENTS = frozenset(Event)


@dataclass(frozen=True, slots=True)
class Record:
    """One event. ``mono_ns`` is CLOCK_BOOTTIME and compares only under the same ``boot_id``."""

    seq: int
    ts: str
    mono_ns: int
    boot_id: str
    id: str
    event: Event
    data: Mapping[str, Any]
    prev: str


@dataclass(frozen=True, slots=True)
class JournalView:
    """A journal as it was read. ``head`` is the hash of its last line.

    ``torn``: a line behind the last one was cut off while being written; it counts for nothing.
    """

    records: tuple[Record, ...]
    state: State | None
    head: str
    torn: bool

    def last(self, event: Event) -> Record | None:
        """The latest record of ``event``."""
        return next((r for r in reversed(self.records) if r.event is event), None)

    def all(self, event: Event) -> tuple[Record, ...]:
        """Every record of ``event``, in order."""
        return tuple(r for r in self.records if r.event is event)


def read_journal(path: Path, kind: RunKind) -> JournalView:
    """Read a journal without writing; a missing file is an empty one.

    Raises:
        TaskPackError: tampered, with the line: a gap, a wrong hash, a line that does not parse or
            names another run, or an event that the transition table does not allow there; or
            another version wrote of an event that this one does not know.
    """
    whole = chain.read_chain(path)
    records: list[Record] = []
    state: State | None = None
    for number, entry in enumerate(whole.entries, start=1):
        if entry.id != whole.entries[0].id:
            raise chain.tampered(path, number, f"it belongs to {entry.id!r}")
        if entry.event not in _EVENTS:
            raise chain.unknown_event(path, number, entry.event)
        try:
            record = _record(entry)
            state = advance(kind, state, record.event, records)
        except UnknownTransitionError as error:
            raise chain.tampered(path, number, str(error)) from error
        records.append(record)
    return JournalView(tuple(records), state, whole.head, whole.torn)


class Journal:
    """A journal open for writing; correct with several writing processes.

    Opening cuts a torn last line. What other processes appended shows after the next ``append``.

    Raises:
        TaskPackError: tampered, or it is the journal of another run.
    """

    def __init__(self, path: Path, kind: RunKind, run_id: str, clock: Clock) -> None:
        self._path = path
        self._kind = kind
        self._run_id = run_id
        self._clock = clock
        if path.exists():
            with chain.locked(path):
                self._view = self._read()
        else:
            self._view = self._read()

    @property
    def view(self) -> JournalView:
        """The journal as of the opening or of the latest ``append``."""
        return self._view

    @property
    def state(self) -> State | None:
        """The run's state; None before ``registered``."""
        return self._view.state

    @property
    def head(self) -> str:
        """``sha256:...`` of the last line."""
        return self._view.head

    def append(self, event: Event, /, **data: Any) -> Record:
        """Append one event and return once it is durable.

        Raises:
            UnknownTransitionError: the table does not allow ``event`` now; nothing was written.
            ValueError: ``data`` holds NaN or an infinity; nothing was written.
            StorageFullError: no space; the journal is as it was.
        """
        with chain.locked(self._path) as file:
            if file.head != self._view.head:  # somebody else has appended since
                self._view = self._read()
            view = self._view
            state = advance(self._kind, view.state, event, view.records)
            entry, head = file.append(self._run_id, event, data, self._clock)
        record = _record(entry)
        self._view = JournalView((*view.records, record), state, head, torn=False)
        return record

    def _read(self) -> JournalView:
        view = read_journal(self._path, self._kind)
        if view.records and view.records[0].id != self._run_id:
            raise chain.tampered(self._path, 1, f"it belongs to {view.records[0].id!r}")
        return view


def _record(entry: chain.Entry) -> Record:
    return Record(
        seq=entry.seq,
        ts=entry.ts,
        mono_ns=entry.mono_ns,
        boot_id=entry.boot_id,
        id=entry.id,
        event=Event(entry.event),
        data=entry.data,
        prev=entry.prev,
    )
