"""Random walks through the transition tables, told to the machine and to real journals."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.attempt import RunKind
from orchestrator.lifecycle.machine import (
    INITIAL,
    TRANSITIONS,
    Event,
    State,
    UnknownTransitionError,
    advance,
    fold,
    is_terminal,
)
from orchestrator.storage.journal import Journal, read_journal
from tests.unit.records_help import TickingClock, Told

KINDS = st.sampled_from(RunKind)
DATA = st.dictionaries(
    st.sampled_from(["reason", "size", "note"]),
    st.text('a\u00e9\u2603\u2028\x1b\n"\\\U0001f600')
    | st.integers(-(2**53), 2**53)
    | st.booleans(),
)


@st.composite
def walks(draw: st.DrawFn) -> tuple[RunKind, list[Event]]:
    """Draw a journal that the table of a kind allows, of any length."""
    kind = draw(KINDS)
    events = [Event.REGISTERED]
    state = INITIAL[kind]
    for _ in range(draw(st.integers(0, 25))):
        choices = sorted(event for source, event in TRANSITIONS[kind] if source is state)
        if not choices:
            break
        event = draw(st.sampled_from(choices))
        events.append(event)
        state = TRANSITIONS[kind][state, event]
    return kind, events


def _steps(events: list[Event]) -> list[Told]:
    return [Told(event) for event in events]


@given(walks())
def test_folding_is_advancing_event_by_event(walk: tuple[RunKind, list[Event]]) -> None:
    kind, events = walk
    state: State | None = None
    for number, event in enumerate(events):
        state = advance(kind, state, event)
        assert fold(kind, _steps(events[: number + 1])) is state


@given(walks(), st.sampled_from(Event))
def test_an_event_is_known_exactly_where_the_table_names_it(
    walk: tuple[RunKind, list[Event]], event: Event
) -> None:
    kind, events = walk
    state = fold(kind, _steps(events))
    assert state is not None
    if (state, event) in TRANSITIONS[kind]:
        assert advance(kind, state, event) is TRANSITIONS[kind][state, event]
        assert not is_terminal(kind, state)
    else:
        with pytest.raises(UnknownTransitionError) as raised:
            fold(kind, _steps([*events, event]))
        assert raised.value.story == tuple(_steps(events))


@given(walks())
def test_every_open_state_can_fail_be_stopped_and_be_noted(
    walk: tuple[RunKind, list[Event]],
) -> None:
    kind, events = walk
    state = fold(kind, _steps(events))
    assert state is not None
    if not is_terminal(kind, state):
        assert advance(kind, state, Event.NOTED) is state
        assert advance(kind, state, Event.OPERATOR) is State.TERMINAL_OPERATOR
        assert is_terminal(kind, advance(kind, state, Event.INFRASTRUCTURE))


@given(walks(), DATA, st.integers(0, 100))
def test_a_journal_keeps_a_walk_and_what_is_left_of_it_when_cut(
    walk: tuple[RunKind, list[Event]], data: dict[str, object], percent: int
) -> None:
    kind, events = walk
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lifecycle.jsonl"
        journal = Journal(path, kind, "run", TickingClock())
        for event in events:
            journal.append(event, **data)
        view = read_journal(path, kind)
        assert view == journal.view
        assert [record.event for record in view.records] == events
        assert all(dict(record.data) == data for record in view.records)
        assert view.state is fold(kind, _steps(events))

        whole = path.read_bytes()
        left = whole[: len(whole) * percent // 100]
        path.write_bytes(left)
        shorter = read_journal(path, kind)
        assert shorter.records == view.records[: left.count(b"\n")]
        assert shorter.torn is (left != b"" and not left.endswith(b"\n"))
