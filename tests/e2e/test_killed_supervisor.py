"""``kill -9`` of a supervisor right after each event of its journal, with its watchdog or not."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from receipts.complete import Completeness, check
from receipts.verify import verify
from receipts.verify_model import Wanted
from tests.e2e.old_images import Images
from tests.e2e.rig import PUBLISH, SUBMIT, Rig, events, final, has, kill_group, until

pytestmark = pytest.mark.slow

RUN = PUBLISH + "publish 10 0.1\npublish 20 0.3\nsleep 0.3\n"
SMALL = {"disk": "8m"}


@pytest.fixture(scope="module")
def explored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rig, Path]]:
    """A bench with a pack, to kill explorations in."""
    rig = Rig(tmp_path_factory.mktemp("killed"))
    yield rig, rig.pack(RUN, steps=SUBMIT, defaults=SMALL)
    rig.nothing_left()


def _kill_after(
    rig: Rig, words: tuple[str | Path, ...], run: str, event: str, *, watched: bool
) -> Path:
    """Start ``orch``, kill it once a new run has ``event``; return that run's folder.

    Where ``watched`` is true the watchdog lives on, and what it does is awaited; where it had not
    been started yet, the next command does it.
    """
    before = set(rig.runs.glob(run))
    process = rig.start(*words)
    try:
        found = until(
            lambda: (
                [f for f in set(rig.runs.glob(run)) - before if has(f, event)]
                or process.poll() is not None
            )
        )
    finally:
        if process.poll() is None:
            kill_group(process)
        process.communicate()
    fresh = [f for f in set(rig.runs.glob(run)) - before if has(f, event)]
    assert found
    (folder,) = fresh
    if watched:
        until(lambda: not rig.keepers(folder))
    else:
        rig.kill_for_good(process, folder)
    return folder


def _committed(folder: Path) -> bool:
    return check(folder / ".complete").completeness is Completeness.COMPLETE


def _verified(folder: Path) -> None:
    faults = verify(folder, Wanted()).faults
    assert not faults, faults


ALONE, WATCHED = False, True


@pytest.mark.parametrize(
    ("event", "watched"),
    [
        *(("registered", ALONE), ("explore_started", ALONE), ("captured", ALONE)),
        *(("submitted", ALONE), ("captured", WATCHED), ("submitted", WATCHED)),
    ],
)
def test_a_killed_exploration_is_ended_and_no_submission_is_lost(
    explored: tuple[Rig, Path], event: str, *, watched: bool
) -> None:
    rig, pack = explored
    attempt = _kill_after(rig, ("explore", pack), "*/attempt-*", event, watched=watched)
    kept = (attempt / "candidate/submission.json").exists()  # accepted, so it is completed
    done = rig.orch("replay", attempt, "--through", "validate")
    assert done.code == (0 if kept else 64), done.err
    assert final(attempt) == ("submitted" if kept else "infrastructure")
    assert _committed(attempt)
    assert _committed(attempt / "replay-001") == kept
    _verified(attempt)
    rig.nothing_left()


@pytest.mark.parametrize(
    ("event", "watched"),
    [
        *(("registered", ALONE), ("gate_started", ALONE), ("gate_passed", ALONE)),
        *(("run_started", ALONE), ("exited", ALONE), ("collected", ALONE), ("validated", ALONE)),
        *(("gate_passed", WATCHED), ("run_started", WATCHED), ("exited", WATCHED)),
        *(("collected", WATCHED), ("validated", WATCHED)),
    ],
)
def test_a_killed_replay_is_gone_on_with_or_done_again_and_counts_once(
    explored: tuple[Rig, Path], event: str, *, watched: bool
) -> None:
    rig, pack = explored
    attempt = rig.enter(pack)
    name = f"{attempt.parent.name}/{attempt.name}/replay-*"
    replay = _kill_after(rig, ("replay", attempt), name, event, watched=watched)
    done = rig.orch("replay", attempt)
    finished = [r for r in sorted(attempt.glob("replay-*")) if final(r) == "validated"]
    assert len(finished) == 1, done.err
    if event in {"exited", "collected", "validated"}:
        assert finished == [replay], done.err
    if done.code == 64:  # cleaning up has finished it; only the score is missing
        assert "finished" in done.err
        scored = rig.orch("score", finished[0])
        assert scored.code == 0 or "finished" in scored.err
    _is_scored_once(finished[0])
    assert all(_committed(r) for r in attempt.glob("replay-*") if len(events(r)) > 2)
    _verified(attempt)
    rig.nothing_left()


@pytest.mark.parametrize(
    ("event", "watched"),
    [
        *(("registered", ALONE), ("gate_passed", ALONE), ("score_started", ALONE)),
        *(("checkpoint_scored", ALONE), ("scored", ALONE), ("scored", WATCHED)),
    ],
)
def test_a_killed_scoring_leaves_no_half_result(
    explored: tuple[Rig, Path], monkeypatch: pytest.MonkeyPatch, event: str, *, watched: bool
) -> None:
    rig, pack = explored
    attempt = rig.enter(pack)
    replay = rig.replay(attempt, "--through", "validate")
    name = f"{attempt.parent.name}/{attempt.name}/replay-001/score-*"
    _kill_after(rig, ("score", replay), name, event, watched=watched)
    shown = rig.orch("status", "--json")
    assert shown.code == 0, shown.err
    done = rig.orch("score", replay)
    assert done.code == 0 or "finished" in done.err, done.err
    _is_scored_once(replay)
    _verified(attempt)
    monkeypatch.setattr("orchestrator.wiring.old_images", lambda _: Images())  # this host's stay
    rig.call("gc")  # the engine may finish a container that was asked for before the kill
    rig.nothing_left()


def _is_scored_once(replay: Path) -> None:
    scorings = sorted(replay.glob("score-*"))
    scored = [s for s in scorings if final(s) == "scored"]
    assert len(scored) == 1
    for scoring in scorings:
        assert (scoring / "summary.json").exists() == (scoring in scored)
        assert _committed(scoring) or len(events(scoring)) == 2
    best = json.loads((scored[0] / "summary.json").read_text())["best"]
    assert (best["checkpoint"], best["value"]) == ("checkpoint-20", 0.3)
