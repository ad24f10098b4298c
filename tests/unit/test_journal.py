import json
import os
from pathlib import Path

import pytest

from orchestrator.domain.attempt import RunKind
from orchestrator.errors import StorageFullError, TaskPackError
from orchestrator.lifecycle.machine import Event, State, UnknownTransitionError
from orchestrator.storage import chain
from orchestrator.storage.journal import Journal, read_journal
from tests.unit.records_help import TickingClock, in_processes

KIND = RunKind.REPLAY


def _open(path: Path, run_id: str = "run-1") -> Journal:
    return Journal(path, KIND, run_id, TickingClock())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal of three lines."""
    path = tmp_path / "lifecycle.jsonl"
    journal = _open(path)
    journal.append(Event.REGISTERED, plan="v1")
    journal.append(Event.GATE_STARTED)
    journal.append(Event.NOTED, what="caf\u00e9")
    return path


def test_what_was_appended_is_read_back(path: Path) -> None:
    view = read_journal(path, KIND)
    assert [r.event for r in view.records] == [Event.REGISTERED, Event.GATE_STARTED, Event.NOTED]
    assert [r.seq for r in view.records] == [1, 2, 3]
    assert view.state is State.GATING
    assert not view.torn
    lines = path.read_bytes().splitlines()
    assert view.head == chain.digest(lines[2])
    assert view.records[2].prev == chain.digest(lines[1])
    assert view.records[0].prev == "sha256:" + "0" * 64
    assert view.records[0].data == {"plan": "v1"}
    assert view.records[0].ts.endswith("Z")
    assert set(json.loads(lines[0])) == {
        "seq", "ts", "mono_ns", "boot_id", "id", "event", "data", "prev",
    }  # fmt: skip
    assert view.last(Event.NOTED) == view.records[2]
    assert view.last(Event.EXITED) is None
    assert view.all(Event.REGISTERED) == view.records[:1]


def test_the_writers_view_is_what_a_reader_sees(path: Path) -> None:
    journal = _open(path)
    assert journal.view == read_journal(path, KIND)
    record = journal.append(Event.GATE_PASSED)
    assert journal.view == read_journal(path, KIND)
    assert journal.view.records[-1] == record
    assert (journal.state, journal.head) == (State.GATING, journal.view.head)


def test_a_missing_journal_is_empty_and_reading_makes_none(tmp_path: Path) -> None:
    path = tmp_path / "lifecycle.jsonl"
    assert read_journal(path, KIND).records == ()
    assert _open(path).state is None
    assert not path.exists()


def test_a_torn_last_line_is_cut_by_a_writer_only(path: Path) -> None:
    good = path.read_bytes()
    path.write_bytes(good + b'{"seq": 4, "ts')
    view = read_journal(path, KIND)
    assert view.torn
    assert len(view.records) == 3
    assert path.read_bytes() != good
    journal = _open(path)
    assert path.read_bytes() == good
    assert not journal.view.torn


def test_a_line_torn_while_open_is_cut_by_the_next_append(path: Path) -> None:
    journal = _open(path)
    with path.open("ab") as file:
        file.write(b"\0" * 100_000)
    assert journal.append(Event.GATE_PASSED).seq == 4
    assert len(read_journal(path, KIND).records) == 4


def test_a_journal_that_is_nothing_but_a_torn_line_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "lifecycle.jsonl"
    path.write_bytes(b'{"seq"')
    assert _open(path).append(Event.REGISTERED).seq == 1


def _edit(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[1].replace(b"gate_started", b"infrastructure"), lines[2]]


@pytest.mark.parametrize(
    ("change", "line", "says"),
    [
        (_edit, 3, "prev"),
        (lambda lines: [lines[0].replace(b"v1", b"sha256:1"), *lines[1:]], 2, "prev"),
        (lambda lines: [lines[0], lines[2]], 2, "seq"),
        (lambda lines: [lines[0], lines[2], lines[1]], 2, "seq"),
        (lambda lines: lines[1:], 1, "seq"),
        (lambda lines: [lines[0], b"", *lines[1:]], 2, "JSON"),
        (lambda lines: [lines[0][:-1] + b',"x":1}', *lines[1:]], 1, "x"),
        (lambda lines: [lines[0].replace(b"registered", b"invented"), *lines[1:]], 2, "prev"),
    ],
    ids=["event", "data", "hole", "order", "beginning", "empty", "field", "unknown"],
)
def test_any_other_break_is_tampering_with_its_line(
    path: Path, change: object, line: int, says: str
) -> None:
    assert callable(change)
    path.write_bytes(b"\n".join(change(path.read_bytes().splitlines())) + b"\n")
    for read in (lambda: read_journal(path, KIND), lambda: _open(path)):
        with pytest.raises(TaskPackError, match=f":{line}: tampered: .*{says}"):
            read()


@pytest.mark.parametrize(
    ("event", "says"),
    [("gate_passed", ": tampered: .*gate_passed"), ("invented", " has event 'invented', which")],
)
def test_a_rehashed_line_still_has_to_be_a_known_transition(
    path: Path, event: str, says: str
) -> None:
    first = path.read_bytes().splitlines()[0]
    fields = json.loads(path.read_bytes().splitlines()[1])
    second = json.dumps(fields | {"event": event}).encode()
    path.write_bytes(first + b"\n" + second + b"\n")
    with pytest.raises(TaskPackError, match=f":2{says}"):
        read_journal(path, KIND)


def test_lines_of_another_run_do_not_fit(path: Path) -> None:
    with pytest.raises(TaskPackError, match=":1: tampered: it belongs to 'run-1'"):
        _open(path, "run-2")


def test_a_line_of_another_run_in_between_is_tampering(path: Path) -> None:
    with chain.locked(path) as file:
        file.append("run-2", Event.NOTED, {}, TickingClock())
    with pytest.raises(TaskPackError, match=":4: tampered: it belongs to 'run-2'"):
        read_journal(path, KIND)


def test_an_unknown_transition_writes_nothing(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(UnknownTransitionError, match="registered -> gate_started -> noted"):
        _open(path).append(Event.SCORED)
    assert path.read_bytes() == before


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"x": [float("-inf")]}])
def test_SC_01_nan_in_data_is_refused_and_writes_nothing(path: Path, value: object) -> None:
    before = path.read_bytes()
    with pytest.raises(ValueError, match="JSON compliant"):
        _open(path).append(Event.NOTED, value=value)
    assert path.read_bytes() == before


def test_a_full_disk_leaves_the_journal_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()
    journal = _open(path)
    whole = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: whole(fd, data[:20]))
    with pytest.raises(StorageFullError):
        journal.append(Event.GATE_PASSED)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert journal.append(Event.GATE_PASSED).seq == 4


def test_nanoseconds_above_two_to_the_53_are_strings(tmp_path: Path) -> None:
    path = tmp_path / "lifecycle.jsonl"
    record = Journal(path, KIND, "r", TickingClock(now_ns=2**60)).append(Event.REGISTERED)
    assert isinstance(json.loads(path.read_bytes())["mono_ns"], str)
    assert read_journal(path, KIND).records == (record,)
    assert record.mono_ns > 2**60


def test_a_writer_sees_what_another_appended(path: Path) -> None:
    one, two = _open(path), _open(path)
    one.append(Event.OPERATOR)
    with pytest.raises(UnknownTransitionError):
        two.append(Event.RUN_STARTED)
    assert two.state is State.TERMINAL_OPERATOR


def _note(index: int, path: Path) -> None:
    journal = _open(path)
    for number in range(20):
        journal.append(Event.NOTED, writer=index, number=number)


def test_processes_write_one_unbroken_chain(path: Path) -> None:
    assert in_processes(4, _note, path) == [0] * 4
    notes = read_journal(path, KIND).all(Event.NOTED)[1:]
    for writer in range(4):
        assert [r.data["number"] for r in notes if r.data["writer"] == writer] == list(range(20))
