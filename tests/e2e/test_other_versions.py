"""Records of another version: each writing command leaves their run alone and says why."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.old_images import Images
from tests.e2e.rig import NOTE, Rig, snapshot
from tests.unit.versions_help import RUN_TROUBLES, WHOLE_TROUBLES, Scene

SMALL = {"disk": "8m"}


@dataclass(frozen=True)
class Bench:
    """A runs folder with a scored attempt, to copy and spoil, and the pack of another task."""

    rig: Rig
    scene: Scene
    other: Path

    def copy(self, root: Path) -> tuple[Rig, Scene]:
        runs = root / "runs"
        shutil.copytree(self.rig.runs, runs)
        attempt = runs / self.scene.attempt.relative_to(self.rig.runs)
        return Rig(root, {**self.rig.variables, "ORCH_RUNS": str(runs)}), Scene(runs, attempt)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    rig = Rig(tmp_path_factory.mktemp("versions"))
    attempt = rig.explore(rig.pack(defaults=SMALL))
    rig.replay(attempt)
    (rig.root / "note.patch").write_text(NOTE)
    yield Bench(
        rig, Scene(rig.runs, attempt), rig.pack(name="other", folder="other", defaults=SMALL)
    )
    rig.nothing_left()


@pytest.fixture(autouse=True)
def no_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.wiring.old_images", lambda _: Images())


def _records(folder: Path) -> dict[str, bytes]:
    return {k: v for k, v in snapshot(folder).items() if not k.endswith((".lock", "orch.log"))}


@pytest.mark.parametrize("trouble", RUN_TROUBLES)
def test_a_run_of_another_version_is_left_alone(bench: Bench, tmp_path: Path, trouble: str) -> None:
    rig, scene = bench.copy(tmp_path)
    spoil, says = RUN_TROUBLES[trouble]
    run = {"replay": scene.replay, "scoring": scene.score}.get(trouble.partition("'")[0])
    if trouble not in {"marker", "artifacts"}:
        (run or scene.attempt).joinpath(".complete").unlink()  # so that it has to be looked at
    spoil(scene)
    before = _records(scene.attempt)
    swept = rig.call("gc")
    assert swept.code == 0, swept.err
    assert says in swept.out + swept.err
    entered = rig.call("submit-patch", bench.other, bench.rig.root / "note.patch")
    assert entered.code == 0, entered.err
    refusals = [rig.call("replay", scene.attempt), rig.call("score", scene.replay)]
    for refused in refusals:
        assert refused.code in {64, 65}, refused.err
        assert "Traceback" not in refused.err
    # Behind a marker of another version, a finished scoring is refused for being finished.
    assert trouble == "marker" or any(says in refused.err for refused in refusals)
    assert _records(scene.attempt) == before


@pytest.mark.parametrize("trouble", WHOLE_TROUBLES)
def test_a_runs_folder_of_another_version_is_left_alone(
    bench: Bench, tmp_path: Path, trouble: str
) -> None:
    rig, scene = bench.copy(tmp_path)
    spoil, says, ends = WHOLE_TROUBLES[trouble]
    spoil(scene)
    before = _records(scene.runs)
    for words in (
        ("gc",),
        ("gc", "--dry-run"),
        ("replay", scene.attempt),
        ("score", scene.replay),
        ("submit-patch", bench.other, bench.rig.root / "note.patch"),
        ("explore", bench.other),
    ):
        done = rig.call(*words)
        assert done.code == ends, (words, done.err)
        assert says in done.err
        assert "Traceback" not in done.err
    assert _records(scene.runs) == before


def test_a_host_folder_that_cannot_be_made_is_named(bench: Bench, tmp_path: Path) -> None:
    rig, scene = bench.copy(tmp_path)
    rig.variables["ORCH_HOST"] = "/proc/none"
    for words in (("gc",), ("replay", scene.attempt), ("explore", bench.other)):
        done = rig.call(*words)
        assert done.code == 64, done.err
        assert "the host folder /proc/none cannot be used" in done.err
        assert "ORCH_HOST" in done.err
