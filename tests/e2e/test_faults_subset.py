"""A dozen cases of the fault campaign, where it hurts most; `make faults` runs all of it."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.__main__ import prepared
from tests.faults.bench import Bench, Place, Result
from tests.faults.eye import Eye
from tests.faults.invariants import problems
from tests.faults.points import read_case
from tests.faults.trial import judge, story_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="disks are filled and mounted: as root only"),
]

Prepared = tuple[Bench, Eye, Result]


@pytest.fixture(scope="module")
def ready() -> Iterator[Prepared]:
    with prepared() as made:
        yield made


@pytest.mark.parametrize(
    "name",
    [
        "kill9@attempt:captured:before",
        "kill9@replay:running:during",
        "kill9@scoring:checkpoint_scored:after",
        "kill9_both@replay:running:during",
        "kill9_both@replay:collected:before",
        "sigterm@replay:running:during",
        "engine_cut@replay:running:during",
        "enospc@attempt:submitted:before",
        "disk_full@replay:exited:before",
        "eio@scoring:scored:before",
        "removed@replay:running:during",
        "removed@scoring:evaluating:during",
    ],
)
def test_it_holds(ready: Prepared, name: str) -> None:
    bench, eye, result = ready
    verdict = judge(bench, eye, result, read_case(name))
    assert not verdict.problems, story_of(verdict)


@pytest.fixture(scope="module")
def finished(ready: Prepared) -> Place:
    """A place in which everything was done and nothing happened."""
    bench, _, _ = ready
    place = bench.place()
    done = place.orch(*bench.start(place, read_case(SCORED).point))
    assert done.code == 0, done
    return place


SCORED = "kill9@scoring:scored:after"
"""A case after which a scoring must have ended as it would have anyway."""


def _scoring(place: Place) -> Path:
    return next(place.runs.glob("*/attempt-001/replay-001/score-001"))


def _forge_value(place: Place) -> None:
    summary = _scoring(place) / "summary.json"
    summary.write_text(summary.read_text().replace('"value": 0.', '"value": 1.'))


def _lose_submission(place: Place) -> None:
    journal = next(place.runs.glob("*/attempt-001")) / "lifecycle.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-1]))


def _finish_twice(place: Place) -> None:
    replay = _scoring(place).parent
    shutil.copytree(replay, replay.with_name("replay-002"))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda place: None, ""),
        (lambda place: (_scoring(place) / ".complete").unlink(), "is not committed"),
        (_forge_value, "not 0."),
        (_forge_value, "verify: files"),
        (_lose_submission, "a submission was accepted and lost"),
        (_finish_twice, "2 finished replays"),
        (lambda place: (_scoring(place) / ".x.tmp").touch(), "file left"),
        (lambda place: (place.host / "x.reservation").touch(), "reservation left"),
        (lambda place: (place.root / "tmp/x").touch(), "temporary file left"),
    ],
)
def test_what_does_not_hold_is_seen(
    ready: Prepared, finished: Place, spoil: Callable[[Place], None], says: str
) -> None:
    bench, eye, result = ready
    place = bench.place()
    shutil.copytree(finished.root, place.root, dirs_exist_ok=True, ignore=_not_the_door)
    place.given = finished.given
    spoil(place)
    found = problems(place, read_case(SCORED), _scoring(place), result, eye)
    assert found if says else not found, found
    assert any(says in line for line in found) or not says, found


def _not_the_door(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name == "door"]


def test_an_ending_that_the_table_does_not_allow_is_seen(ready: Prepared, finished: Place) -> None:
    _, eye, result = ready
    early = read_case("kill9@scoring:registered:after")
    found = problems(finished, early, _scoring(finished), result, eye)
    assert len(found) == 1, found
    assert "ended as 'scored', allowed: ['infrastructure']" in found[0]


def test_a_process_that_stayed_is_seen(ready: Prepared, finished: Place) -> None:
    _, eye, result = ready
    with subprocess.Popen(["sleep", "600"], env=finished.environment()) as stayed:
        found = problems(finished, read_case(SCORED), _scoring(finished), result, eye)
        stayed.kill()
    assert found == ["process left: sleep 600"]
