"""The soak's own measure has to see what it is there to see."""

import os

import pytest

from tests.soak.gauge import DESCRIPTORS, MEMORY, THREADS, Check, Series, checks_of, process, table


def _series(values: list[int], figure: str, *, idles: bool = True) -> Series:
    zero = {MEMORY: 0, DESCRIPTORS: 0, THREADS: 0}
    return Series("x", idles=idles, rows=[{**zero, figure: value} for value in values])


@pytest.mark.parametrize("figure", [MEMORY, DESCRIPTORS, THREADS])
def test_what_comes_and_goes_is_no_growth_and_a_leak_is(figure: str) -> None:
    jobs = [5, 30, 30, 12, 30] * 60
    assert abs(_series(jobs, figure).growth(figure)) < 1
    leaking = [value + turn // 10 for turn, value in enumerate(jobs)]
    assert _series(leaking, figure).growth(figure) >= 10
    warming = [0] * 40 + [30] * 260
    assert _series(warming, figure).growth(figure) == 0


def test_of_one_that_never_idles_the_middle_counts() -> None:
    steady = [20] * 290 + [3] * 10
    assert _series(steady, DESCRIPTORS, idles=False).growth(DESCRIPTORS) == 0


def test_a_process_is_seen_with_what_it_holds() -> None:
    before = process(os.getpid())
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(7)]
    try:
        after = process(os.getpid())
    finally:
        for descriptor in opened:
            os.close(descriptor)
    assert before is not None
    assert after is not None
    assert after[DESCRIPTORS] - before[DESCRIPTORS] == 7
    assert after[MEMORY] > 1000
    assert process(2**22 + 1) is None


def test_a_broken_bound_shows() -> None:
    checks = checks_of(_series(list(range(300)), THREADS), {THREADS: 2.0})
    assert [check.held for check in checks] == [False]
    assert "FAIL" in table(checks)
    assert "FAIL" not in table([Check("x", 2, 2)])
