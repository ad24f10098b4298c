"""States, events and the three transition tables of an attempt, a replay and a scoring.

Every journal begins with ``registered``. A transition that a table does not name is an error that
carries the journal it came from. The tables are pinned by a golden test.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

from orchestrator.domain.attempt import RunKind
from orchestrator.errors import OrchError


class State(StrEnum):
    """Where a run stands. Which of these a kind can be in, its table says."""

    REGISTERED = "registered"
    EXPLORING = "exploring"
    CAPTURED = "captured"
    SUBMITTED = "submitted"
    NO_CANDIDATE = "no_candidate"
    QUEUED = "queued"
    GATING = "gating"
    RUNNING = "running"
    COLLECTED = "collected"
    SCORING = "scoring"
    SCORED = "scored"
    INVALID = "invalid"
    UNSCORABLE = "unscorable"
    SCORE_FAILED = "score_failed"
    TERMINAL_BEHAVIOR = "terminal_behavior"
    TERMINAL_INFRASTRUCTURE = "terminal_infrastructure"
    TERMINAL_OPERATOR = "terminal_operator"


class Event(StrEnum):
    """What happened. ``noted`` records a sign or an audit fact and changes no state."""

    REGISTERED = "registered"
    NOTED = "noted"
    EXPLORE_STARTED = "explore_started"
    SUBMIT_REFUSED = "submit_refused"
    CAPTURED = "captured"
    DECLINED = "declined"
    SUBMITTED = "submitted"
    GATE_STARTED = "gate_started"
    GATE_PASSED = "gate_passed"
    RUN_STARTED = "run_started"
    EXITED = "exited"
    COLLECTED = "collected"
    VALIDATED = "validated"
    NO_CHECKPOINT = "no_checkpoint"
    NONE_VALID = "none_valid"
    INVALID_PATCH = "invalid_patch"
    SCORE_STARTED = "score_started"
    CHECKPOINT_SCORED = "checkpoint_scored"
    SCORED = "scored"
    INVALID = "invalid"
    UNSCORABLE = "unscorable"
    INFRASTRUCTURE = "infrastructure"
    OPERATOR = "operator"


Table = Mapping[tuple[State, Event], State]


def _with_exits(
    edges: dict[tuple[State, Event], State], open_states: Iterable[State], failed: State
) -> Table:
    """Add the edges that every open state has: a note, the machine's failure, a person's stop."""
    table = dict(edges)
    for state in open_states:
        table[state, Event.NOTED] = state
        table[state, Event.INFRASTRUCTURE] = failed
        table[state, Event.OPERATOR] = State.TERMINAL_OPERATOR
    return MappingProxyType(table)


TRANSITIONS: Mapping[RunKind, Table] = MappingProxyType(
    {
        RunKind.ATTEMPT: _with_exits(
            {
                (State.REGISTERED, Event.EXPLORE_STARTED): State.EXPLORING,
                (State.REGISTERED, Event.CAPTURED): State.CAPTURED,
                (State.EXPLORING, Event.SUBMIT_REFUSED): State.EXPLORING,
                (State.EXPLORING, Event.CAPTURED): State.CAPTURED,
                (State.EXPLORING, Event.DECLINED): State.NO_CANDIDATE,
                (State.CAPTURED, Event.SUBMITTED): State.SUBMITTED,
            },
            (State.REGISTERED, State.EXPLORING, State.CAPTURED),
            State.TERMINAL_INFRASTRUCTURE,
        ),
        RunKind.REPLAY: _with_exits(
            {
                (State.QUEUED, Event.GATE_STARTED): State.GATING,
                (State.QUEUED, Event.COLLECTED): State.COLLECTED,
                (State.GATING, Event.GATE_PASSED): State.GATING,
                (State.GATING, Event.INVALID_PATCH): State.TERMINAL_BEHAVIOR,
                (State.GATING, Event.RUN_STARTED): State.RUNNING,
                (State.RUNNING, Event.EXITED): State.RUNNING,
                (State.RUNNING, Event.COLLECTED): State.COLLECTED,
                (State.COLLECTED, Event.VALIDATED): State.TERMINAL_BEHAVIOR,
                (State.COLLECTED, Event.NO_CHECKPOINT): State.TERMINAL_BEHAVIOR,
                (State.COLLECTED, Event.NONE_VALID): State.TERMINAL_BEHAVIOR,
            },
            (State.QUEUED, State.GATING, State.RUNNING, State.COLLECTED),
            State.TERMINAL_INFRASTRUCTURE,
        ),
        RunKind.SCORING: _with_exits(
            {
                (State.QUEUED, Event.GATE_STARTED): State.GATING,
                (State.GATING, Event.GATE_PASSED): State.GATING,
                (State.GATING, Event.SCORE_STARTED): State.SCORING,
                (State.SCORING, Event.CHECKPOINT_SCORED): State.SCORING,
                (State.SCORING, Event.SCORED): State.SCORED,
                (State.SCORING, Event.INVALID): State.INVALID,
                (State.SCORING, Event.UNSCORABLE): State.UNSCORABLE,
            },
            (State.QUEUED, State.GATING, State.SCORING),
            State.SCORE_FAILED,
        ),
    }
)

INITIAL: Mapping[RunKind, State] = MappingProxyType(
    {
        RunKind.ATTEMPT: State.REGISTERED,
        RunKind.REPLAY: State.QUEUED,
        RunKind.SCORING: State.QUEUED,
    }
)


def is_terminal(kind: RunKind, state: State) -> bool:
    """Tell whether no event may follow ``state``."""
    return not any(source is state for source, _ in TRANSITIONS[kind])


class Step(Protocol):
    """The part of a journal line that the machine reads."""

    @property
    def event(self) -> Event:
        """What happened."""
        ...


class UnknownTransitionError(OrchError):
    """A journal holds, or code asked for, a transition no table names. ``story`` is the journal."""

    def __init__(
        self, kind: RunKind, state: State | None, event: Event, story: Sequence[Step]
    ) -> None:
        told = " -> ".join(step.event for step in story) or "(empty journal)"
        super().__init__(f"{kind}: event {event} is unknown in state {state}; journal: {told}")
        self.story = tuple(story)


def advance(kind: RunKind, state: State | None, event: Event, story: Sequence[Step] = ()) -> State:
    """Return the state after ``event``; ``state`` None means an empty journal.

    Raises:
        UnknownTransitionError: the table does not name this transition.
    """
    if state is None:
        if event is Event.REGISTERED:
            return INITIAL[kind]
        raise UnknownTransitionError(kind, state, event, story)
    following = TRANSITIONS[kind].get((state, event))
    if following is None:
        raise UnknownTransitionError(kind, state, event, story)
    return following


def fold(kind: RunKind, journal: Iterable[Step]) -> State | None:
    """Compute the state of a run from its journal; None for an empty one.

    Raises:
        UnknownTransitionError: with the part of the journal read so far.
    """
    state: State | None = None
    story: list[Step] = []
    for step in journal:
        state = advance(kind, state, step.event, story)
        story.append(step)
    return state
