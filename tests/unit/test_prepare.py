from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator.adapters.fake_clock import FakeClock
from orchestrator.adapters.in_memory import InMemoryEngine, Inside
from orchestrator.domain.container import ContainerSpec
from orchestrator.errors import AssetMismatchError, TaskPackError, UsageError
from orchestrator.evidence.tree import tree_digest
from orchestrator.phases.prepare import How, PreparePlan, PreparePorts, run
from orchestrator.ports.fetching import Fetcher
from orchestrator.sandbox import Users
from orchestrator.storage.assets import AssetStore, discard
from orchestrator.storage.pack import load_pack
from tests.unit.pack_help import make_pack

FILES = {"models/start/w": b"w", "data/train/x": b"x", "data/final/x": b"y"}


def _no_fetcher() -> Fetcher:
    raise AssertionError("nothing is fetched for assets that scripts make")


class Workshop:
    """A pack, a store and an engine whose containers write ``files`` to /out."""

    def __init__(self, folder: Path, *, image: str = "orch/prepare-sklearn:1") -> None:
        self.task = make_pack(folder / "a pack:1")
        self.store = AssetStore(folder / "store")
        self.files: Mapping[str, bytes] = FILES
        self.code = 0
        self.specs: list[ContainerSpec] = []
        clock = FakeClock()
        self.engine = InMemoryEngine(self._script, images={image: {}}, clock=clock)
        self.ports = PreparePorts(
            self.engine, self.store, _no_fetcher, clock, Users(), lambda _: None
        )

    def _script(self, inside: Inside) -> int:
        self.specs.append(inside.spec)
        for name, content in self.files.items():
            inside.write_file(f"/out/{name}", content)
        inside.stderr(b"ValueError: no digits\n" if self.code else b"")
        return self.code

    def prepare(self, *, update: bool = False) -> dict[str, How]:
        done = run(PreparePlan(load_pack(self.task), update=update), self.ports)
        return {asset.asset: asset.how for asset in done}

    def stored(self) -> list[str]:
        return [path.name for path in self.store.root.iterdir() if path.name != ".lock"]

    def locks(self) -> dict[str, str | None]:
        assets = load_pack(self.task).spec.assets
        return {name: asset.digest for name, asset in assets.items()}


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


def test_assets_are_made_stored_and_locked(workshop: Workshop) -> None:
    before = workshop.task.read_text()
    assert set(workshop.prepare().values()) == {How.LOCKED}
    pack = load_pack(workshop.task)
    for name, digest in workshop.locks().items():
        assert tree_digest(workshop.store.locate(pack, name)) == digest
    after = workshop.task.read_text().splitlines(keepends=True)
    assert "# held out" in workshop.task.read_text()
    for line in before.splitlines(keepends=True):
        assert line in after or "data/train" in line
    assert workshop.stored() == ["tiny"]


def test_what_is_there_and_intact_runs_nothing_again(workshop: Workshop) -> None:
    workshop.prepare()
    text = workshop.task.read_bytes()
    assert set(workshop.prepare().values()) == {How.PRESENT}
    assert len(workshop.specs) == 1
    assert workshop.task.read_bytes() == text


def test_a_damaged_asset_is_made_again(workshop: Workshop) -> None:
    workshop.prepare()
    file = workshop.store.locate(load_pack(workshop.task), "data/train") / "x"
    file.chmod(0o644)
    file.write_bytes(b"damage")
    done = workshop.prepare()
    assert done == {
        "data/final": How.PRESENT,
        "data/train": How.MADE,
        "models/start": How.PRESENT,
    }
    assert file.read_bytes() == b"x"


def test_a_result_that_differs_from_its_lock_is_refused_and_nothing_changes(
    workshop: Workshop,
) -> None:
    workshop.prepare()
    locks, text = workshop.locks(), workshop.task.read_bytes()
    workshop.files = {**FILES, "data/train/x": b"other"}
    discard(workshop.store.root / "tiny")
    with pytest.raises(AssetMismatchError) as refused:
        workshop.prepare()
    assert f"task.yaml locks {locks['data/train']}" in str(refused.value)
    assert str(refused.value).count("tree:v1:sha256:") == 2
    assert "--update" in refused.value.remedy
    assert workshop.task.read_bytes() == text
    assert not workshop.stored()


def test_update_locks_anew_what_differs(workshop: Workshop) -> None:
    workshop.prepare()
    locks = workshop.locks()
    workshop.files = {**FILES, "data/train/x": b"other"}
    done = workshop.prepare(update=True)
    assert done["data/train"] is How.RELOCKED
    assert done["data/final"] is How.MADE
    changed = {name for name, digest in workshop.locks().items() if digest != locks[name]}
    assert changed == {"data/train"}


def test_the_container_sees_the_pack_read_only_and_nothing_else(workshop: Workshop) -> None:
    workshop.prepare()
    (spec,) = workshop.specs
    mounts = {mount.target: (mount.source, mount.writable) for mount in spec.mounts}
    assert mounts.pop("/out")[1]
    assert mounts == {"/opt/pack": (workshop.task.parent, False)}
    assert spec.argv == ("python3", "/opt/pack/prepare.py", "/out")
    assert spec.labels["orch.phase"] == "prepare"
    assert not workshop.engine.find({})


def test_a_script_that_fails_is_the_packs_fault_and_its_words_are_shown(
    workshop: Workshop,
) -> None:
    workshop.code = 3
    with pytest.raises(TaskPackError, match=r"(?s)failed with exit 3.*no digits"):
        workshop.prepare()
    assert not workshop.stored()
    assert not workshop.engine.find({})


def test_an_asset_that_the_script_did_not_make_is_named(workshop: Workshop) -> None:
    workshop.files = {"models/start/w": b"w", "data/train/x": b"x"}
    with pytest.raises(TaskPackError, match="did not make the asset data/final"):
        workshop.prepare()


def test_without_its_image_nothing_is_made(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, image="another:1")
    with pytest.raises(UsageError):
        workshop.prepare()
    assert not workshop.stored()


def test_what_a_killed_run_left_behind_does_no_harm(workshop: Workshop) -> None:
    left = workshop.store.root / ".preparing/out/data/train"
    left.mkdir(parents=True)
    (left / "stale").write_bytes(b"x")
    workshop.prepare()
    assert workshop.stored() == ["tiny"]
    found = workshop.store.locate(load_pack(workshop.task), "data/train")
    assert [path.name for path in found.iterdir()] == ["x"]


def test_an_intact_asset_stays_in_its_place_for_whoever_has_it_mounted(workshop: Workshop) -> None:
    workshop.prepare()
    folder = workshop.store.locate(load_pack(workshop.task), "data/train")
    before = folder.stat().st_ino
    workshop.prepare(update=True)
    assert folder.stat().st_ino == before
