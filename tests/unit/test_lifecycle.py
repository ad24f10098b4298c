import pytest

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
from tests.unit.records_help import Told

GOLDEN = {
    RunKind.ATTEMPT: """
        captured infrastructure -> terminal_infrastructure
        captured noted -> captured
        captured operator -> terminal_operator
        captured submitted -> submitted
        exploring captured -> captured
        exploring declined -> no_candidate
        exploring infrastructure -> terminal_infrastructure
        exploring noted -> exploring
        exploring operator -> terminal_operator
        exploring submit_refused -> exploring
        registered captured -> captured
        registered explore_started -> exploring
        registered infrastructure -> terminal_infrastructure
        registered noted -> registered
        registered operator -> terminal_operator
    """,
    RunKind.REPLAY: """
        collected infrastructure -> terminal_infrastructure
        collected no_checkpoint -> terminal_behavior
        collected none_valid -> terminal_behavior
        collected noted -> collected
        collected operator -> terminal_operator
        collected validated -> terminal_behavior
        gating gate_passed -> gating
        gating infrastructure -> terminal_infrastructure
        gating invalid_patch -> terminal_behavior
        gating noted -> gating
        gating operator -> terminal_operator
        gating run_started -> running
        queued collected -> collected
        queued gate_started -> gating
        queued infrastructure -> terminal_infrastructure
        queued noted -> queued
        queued operator -> terminal_operator
        running collected -> collected
        running exited -> running
        running infrastructure -> terminal_infrastructure
        running noted -> running
        running operator -> terminal_operator
    """,
    RunKind.SCORING: """
        gating gate_passed -> gating
        gating infrastructure -> score_failed
        gating noted -> gating
        gating operator -> terminal_operator
        gating score_started -> scoring
        queued gate_started -> gating
        queued infrastructure -> score_failed
        queued noted -> queued
        queued operator -> terminal_operator
        scoring checkpoint_scored -> scoring
        scoring infrastructure -> score_failed
        scoring invalid -> invalid
        scoring noted -> scoring
        scoring operator -> terminal_operator
        scoring scored -> scored
        scoring unscorable -> unscorable
    """,
}
TERMINAL = {
    RunKind.ATTEMPT: "submitted no_candidate terminal_infrastructure terminal_operator",
    RunKind.REPLAY: "terminal_behavior terminal_infrastructure terminal_operator",
    RunKind.SCORING: "scored invalid unscorable score_failed terminal_operator",
}
STORIES = {
    (RunKind.ATTEMPT, "registered explore_started submit_refused captured submitted"): "submitted",
    (RunKind.ATTEMPT, "registered captured submitted"): "submitted",
    (RunKind.ATTEMPT, "registered explore_started declined"): "no_candidate",
    (RunKind.REPLAY, "registered gate_started infrastructure"): "terminal_infrastructure",
    (
        RunKind.REPLAY,
        "registered gate_started gate_passed run_started exited collected validated",
    ): "terminal_behavior",
    (RunKind.REPLAY, "registered collected none_valid"): "terminal_behavior",
    (
        RunKind.SCORING,
        "registered gate_started gate_passed score_started checkpoint_scored noted scored",
    ): "scored",
}


@pytest.mark.parametrize("kind", RunKind)
def test_the_tables_are_these(kind: RunKind) -> None:
    told = sorted(f"{s} {event} -> {target}" for (s, event), target in TRANSITIONS[kind].items())
    assert told == [line.strip() for line in GOLDEN[kind].strip().splitlines()]


@pytest.mark.parametrize("kind", RunKind)
def test_the_ends_are_these(kind: RunKind) -> None:
    table = TRANSITIONS[kind]
    states = {INITIAL[kind], *table.values()}
    assert {s for s in states if is_terminal(kind, s)} == set(TERMINAL[kind].split())


def test_every_journal_begins_with_registered() -> None:
    assert fold(RunKind.REPLAY, []) is None
    for kind in RunKind:
        assert advance(kind, None, Event.REGISTERED) is INITIAL[kind]
        for event in set(Event) - {Event.REGISTERED}:
            with pytest.raises(UnknownTransitionError, match="empty journal"):
                advance(kind, None, event)


@pytest.mark.parametrize(("kind", "events"), STORIES, ids=str)
def test_stories_end_as_told(kind: RunKind, events: str) -> None:
    steps = [Told(Event(e)) for e in events.split()]
    assert fold(kind, steps) is State(STORIES[kind, events])


def test_an_unknown_transition_carries_its_story() -> None:
    steps = [Told(Event.REGISTERED), Told(Event.GATE_STARTED), Told(Event.SCORED)]
    with pytest.raises(UnknownTransitionError) as raised:
        fold(RunKind.REPLAY, steps)
    assert raised.value.story == tuple(steps[:2])
    assert str(raised.value) == (
        "replay: event scored is unknown in state gating; journal: registered -> gate_started"
    )
