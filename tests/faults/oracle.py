"""What a run may come to when a fault meets it at a point: the table that the campaign is held to.

Each row is (fault, kind of run): the endings allowed up to a boundary, and those from it on. The
boundary is the moment from which on the run must come out as if nothing had happened to it:

* of an exploration, ``captured:before``: its submission is accepted and durable;
* of a replay, ``running:during``: its container runs, and ends by itself whoever watches;
* of a scoring, ``scored:after``: before that nothing counts, and it is done again as a new number.
"""

from collections.abc import Mapping
from types import MappingProxyType

from orchestrator.domain.attempt import RunKind
from tests.faults.points import Case, Fault, Point, When

GOOD: Mapping[RunKind, str] = MappingProxyType(
    {RunKind.ATTEMPT: "submitted", RunKind.REPLAY: "validated", RunKind.SCORING: "scored"}
)
"""The last event of a run to which nothing happened."""

MACHINE = "infrastructure"
PERSON = "operator"

ORDER: Mapping[RunKind, tuple[str, ...]] = MappingProxyType(
    {
        RunKind.ATTEMPT: ("registered", "explore_started", "exploring", "captured", "submitted"),
        RunKind.REPLAY: (
            *("registered", "gate_started", "gate_passed", "run_started", "running"),
            *("exited", "collected", "validating", "validated"),
        ),
        RunKind.SCORING: (
            *("registered", "gate_started", "gate_passed", "score_started"),
            *("evaluating", "checkpoint_scored", "scored"),
        ),
    }
)
"""The points of each kind of run, in order."""
_BOUNDARY: Mapping[RunKind, tuple[str, When]] = MappingProxyType(
    {
        RunKind.ATTEMPT: ("captured", When.BEFORE),
        RunKind.REPLAY: ("running", When.DURING),
        RunKind.SCORING: ("scored", When.AFTER),
    }
)
_SIDES = (When.BEFORE, When.DURING, When.AFTER)


def _place(kind: RunKind, event: str, when: When) -> tuple[int, int]:
    return ORDER[kind].index(event), _SIDES.index(when)


def is_settled(point: Point) -> bool:
    """Tell whether a point lies at or behind its kind's boundary."""
    boundary = _place(point.kind, *_BOUNDARY[point.kind])
    return _place(point.kind, point.event, point.when) >= boundary


def _has_exited(point: Point) -> bool:
    """Tell whether the end of a replay's command is written by then."""
    ended = _place(RunKind.REPLAY, "exited", When.AFTER)
    return point.kind is RunKind.REPLAY and _place(point.kind, point.event, point.when) >= ended


def is_durable(point: Point) -> bool:
    """Tell whether the run's ending is written by then: nothing may change it any more."""
    return point.event == GOOD[point.kind] and point.when is When.AFTER


_WATCHED: Mapping[RunKind, str] = MappingProxyType(
    {
        RunKind.ATTEMPT: "explore_started",
        RunKind.REPLAY: "gate_passed",
        RunKind.SCORING: "gate_passed",
    }
)
"""From which event on a run has a watchdog."""


def is_left_alone(case: Case) -> bool:
    """Tell whether nobody types anything after a case: its run must be taken to its end anyway.

    Of two points beside one event it is the second; after the first a person types at once.
    """
    point = case.point
    order = ORDER[point.kind]
    watched = order.index(point.event) >= order.index(_WATCHED[point.kind])
    return case.fault is Fault.KILL9 and point.when is not When.BEFORE and watched


_WITH_CONTAINER = {
    (RunKind.ATTEMPT, "explore_started"),
    (RunKind.ATTEMPT, "exploring"),
    (RunKind.REPLAY, "run_started"),
    (RunKind.REPLAY, "running"),
    (RunKind.SCORING, "evaluating"),
}
"""Where a container exists whose end nobody has seen yet."""


def allowed(case: Case) -> frozenset[str]:
    """Return the last events with which the run that was hit may end."""
    point = case.point
    good = frozenset({GOOD[point.kind]})
    accepted = point.kind is RunKind.ATTEMPT and is_settled(point)
    # A command that was had is not had again for a disk, or for a container that validates.
    had = _has_exited(point) and case.fault is not Fault.SIGTERM
    if is_durable(point) or accepted or had:
        return good
    match case.fault:
        case Fault.KILL9 | Fault.KILL9_BOTH:
            return good if is_settled(point) else frozenset({MACHINE})
        case Fault.SIGTERM:
            late = is_settled(point) or (point.kind, point.event) in _SOON
            return good | {PERSON} if late else frozenset({PERSON})
        case Fault.ENGINE_CUT if point.kind is RunKind.REPLAY and is_settled(point):
            return good  # the engine comes back, and what was had is not had again
        case Fault.ENGINE_CUT | Fault.ENOSPC | Fault.DISK_FULL | Fault.EIO:
            return good | {MACHINE}
        case Fault.REMOVED:
            lost = (point.kind, point.event) in _WITH_CONTAINER
            return frozenset({MACHINE}) if lost else good


_SOON = {
    (RunKind.ATTEMPT, "explore_started"),
    (RunKind.ATTEMPT, "exploring"),
    *((RunKind.SCORING, event) for event in ("evaluating", "checkpoint_scored", "scored")),
}
"""Where what runs may be done within the time that a stop is given."""


_CODES: Mapping[Fault, frozenset[int]] = MappingProxyType(
    {
        Fault.KILL9: frozenset({-9}),
        Fault.KILL9_BOTH: frozenset({-9}),
        Fault.SIGTERM: frozenset({0, 130}),
        Fault.ENGINE_CUT: frozenset({0, 69, 75}),
        Fault.ENOSPC: frozenset({0, 75}),
        Fault.DISK_FULL: frozenset({0, 75}),
        Fault.EIO: frozenset({0, 75}),
        Fault.REMOVED: frozenset({0, 75}),
    }
)


def codes_after(case: Case) -> frozenset[int]:
    """Return the codes with which a command that is typed afterwards may end.

    It is refused (64) where the run has ended meanwhile or is seen to by somebody; and an engine
    that is away may still be (69).
    """
    return frozenset({0, 64, 69} if case.fault is Fault.ENGINE_CUT else {0, 64})


def exit_codes(case: Case) -> frozenset[int]:
    """Return the codes with which the command that was hit may end."""
    return _CODES[case.fault]
