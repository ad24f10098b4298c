from dataclasses import replace

import pytest

from orchestrator.domain.outcome import (
    ExitFacts,
    HostFact,
    KilledBy,
    StopReason,
    Verdict,
    host_facts_of,
    verdict,
)

EXITED = ExitFacts(
    exit_code=0, oom_killed=False, killed_by=KilledBy.NOBODY, stop_reason=StopReason.EXITED
)


def _facts(facts: ExitFacts, **seen: bool) -> frozenset[HostFact]:
    known = {"container_known": True, "witnessed": True, "engine_restarted": False, **seen}
    return host_facts_of(facts, **known)


@pytest.mark.parametrize("code", [0, 1, 75, 124, 137, 139, 143, None])
def test_EX_07_no_exit_code_makes_a_verdict(code: int | None) -> None:
    facts = replace(EXITED, exit_code=code)
    assert _facts(facts) == frozenset()
    assert verdict(facts, frozenset()) is Verdict.BEHAVIOR


@pytest.mark.parametrize("limit_reached", [True, None])
def test_EX_02_its_own_memory_limit_is_behaviour(limit_reached: bool | None) -> None:
    facts = replace(EXITED, exit_code=137, oom_killed=True, memory_limit_reached=limit_reached)
    assert verdict(facts, _facts(facts)) is Verdict.BEHAVIOR


def test_an_oom_kill_below_its_own_limit_is_the_hosts() -> None:
    facts = replace(EXITED, exit_code=137, oom_killed=True, memory_limit_reached=False)
    assert _facts(facts) == {HostFact.HOST_OUT_OF_MEMORY}
    assert verdict(facts, _facts(facts)) is Verdict.INFRASTRUCTURE


def test_EX_04_our_own_kill_at_the_deadline_is_behaviour() -> None:
    facts = replace(
        EXITED,
        exit_code=137,
        killed_by=KilledBy.ORCHESTRATOR,
        stop_reason=StopReason.DEADLINE,
    )
    assert _facts(facts) == frozenset()
    assert verdict(facts, frozenset()) is Verdict.BEHAVIOR


@pytest.mark.parametrize(
    ("facts", "seen", "says"),
    [
        (EXITED, {"container_known": False}, {HostFact.CONTAINER_LOST}),
        (EXITED, {"witnessed": False}, {HostFact.CONTAINER_LOST}),
        (
            EXITED,
            {"witnessed": False, "engine_restarted": True},
            {HostFact.ENGINE_RESTARTED},
        ),
        (EXITED, {"engine_restarted": True}, set()),
        (
            replace(EXITED, exit_code=137, killed_by=KilledBy.THIRD_PARTY),
            {},
            {HostFact.KILLED_BY_THIRD_PARTY},
        ),
    ],
    ids=["lost", "unseen", "restarted", "restarted after it was seen", "third party"],
)
def test_host_facts_follow_from_what_was_seen(
    facts: ExitFacts, seen: dict[str, bool], says: set[HostFact]
) -> None:
    assert _facts(facts, **seen) == says
    expected = Verdict.INFRASTRUCTURE if says else Verdict.BEHAVIOR
    assert verdict(facts, _facts(facts, **seen)) is expected


@pytest.mark.parametrize("fact", HostFact)
@pytest.mark.parametrize("stop", StopReason)
def test_a_host_fact_comes_before_everything(fact: HostFact, stop: StopReason) -> None:
    facts = replace(EXITED, stop_reason=stop)
    assert verdict(facts, frozenset({fact})) is Verdict.INFRASTRUCTURE


def test_who_stopped_it_decides_without_a_host_fact() -> None:
    assert {
        stop: verdict(replace(EXITED, stop_reason=stop), frozenset()) for stop in StopReason
    } == {
        StopReason.EXITED: Verdict.BEHAVIOR,
        StopReason.DEADLINE: Verdict.BEHAVIOR,
        StopReason.SUBMITTED: Verdict.BEHAVIOR,
        StopReason.DISK_LIMIT: Verdict.BEHAVIOR,
        StopReason.OPERATOR: Verdict.OPERATOR,
        StopReason.HOST_FACT: Verdict.INFRASTRUCTURE,
    }
