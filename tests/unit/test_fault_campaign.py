"""The parts of the fault campaign that need no engine."""

import pytest

from orchestrator.domain.attempt import RunKind
from orchestrator.lifecycle.machine import TRANSITIONS, Event, State
from tests.faults import oracle
from tests.faults.__main__ import every_case, table
from tests.faults.points import SAYS, Case, Fault, Point, When, read_case
from tests.faults.trial import Verdict

POINTS = [
    Point(kind, event, 1, when)
    for kind, order in oracle.ORDER.items()
    for event in order
    for when in When
]
CASES = every_case(POINTS)


def test_a_case_is_read_as_it_is_written() -> None:
    second = Case(Fault.EIO, Point(RunKind.SCORING, "checkpoint_scored", 2, When.BEFORE))
    assert str(second) == "eio@scoring:checkpoint_scored#2:before"
    for case in (second, *CASES):
        assert read_case(str(case)) == case


@pytest.mark.parametrize(
    "text", ["kill9", "kill9@replay", "shot@replay:exited:after", "kill9@replay:exited:soon"]
)
def test_what_is_no_case_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        read_case(text)


def test_every_case_has_its_endings_and_its_exit_codes() -> None:
    known = {oracle.MACHINE, oracle.PERSON, *oracle.GOOD.values()}
    for case in CASES:
        assert oracle.allowed(case), case
        assert oracle.allowed(case) <= known, case
        assert oracle.exit_codes(case), case
        assert 70 not in oracle.exit_codes(case), case


def test_nothing_that_is_written_or_accepted_may_be_changed() -> None:
    for case in CASES:
        point = case.point
        accepted = point.kind is RunKind.ATTEMPT and point.event in {"captured", "submitted"}
        ended = point.event == oracle.GOOD[point.kind] and point.when is When.AFTER
        if accepted or ended:
            assert oracle.allowed(case) == {oracle.GOOD[point.kind]}, case


def test_no_machine_is_booked_as_a_person_nor_the_reverse() -> None:
    for case in CASES:
        wrong = oracle.MACHINE if case.fault is Fault.SIGTERM else oracle.PERSON
        assert wrong not in oracle.allowed(case), case


@pytest.mark.parametrize("kind", RunKind)
def test_the_order_is_one_that_a_run_can_take(kind: RunKind) -> None:
    names = [name for name in oracle.ORDER[kind] if name in list(Event)]
    state = {RunKind.ATTEMPT: State.REGISTERED}.get(kind, State.QUEUED)
    for name in names[1:]:
        state = TRANSITIONS[kind][state, Event(name)]
    assert names[-1] == oracle.GOOD[kind]


def test_the_table_counts_what_held() -> None:
    (first, second) = (Case(Fault.KILL9, POINTS[0]), Case(Fault.KILL9, POINTS[1]))
    said = table([Verdict(first, 1.0, []), Verdict(second, 1.0, ["it did not"])])
    assert f"| {SAYS[Fault.KILL9]} | 1/2 | - | - |" in said.splitlines()
