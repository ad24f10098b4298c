import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

import pytest

from orchestrator.domain.roles import Phase
from orchestrator.errors import AssetMismatchError, UsageError
from orchestrator.evidence.tree import tree_digest
from orchestrator.storage.assets import AssetStore, discard, seal
from orchestrator.storage.located_yaml import parse, set_in_mapping
from orchestrator.storage.pack import Pack, load_pack
from tests.unit.pack_help import TASK, make_pack

NAMES = ("models/start", "data/train", "data/final")


def _prepared(tmp_path: Path, task: str = TASK) -> tuple[Pack, AssetStore]:
    """A pack whose assets lie locked in a store."""
    contents = {name: tmp_path / "made" / name for name in NAMES}
    for name, folder in contents.items():
        folder.mkdir(parents=True)
        (folder / "x").write_text(name)
        seal(folder)
        document, _ = parse(task)
        assert document is not None
        task = set_in_mapping(document, ("assets", name), "digest", tree_digest(folder))
    pack = load_pack(make_pack(tmp_path / "pack", task))
    store = AssetStore(tmp_path / "store")
    for name, folder in contents.items():
        store.adopt(pack, name, folder, tree_digest(folder))
    return pack, store


def test_an_adopted_asset_is_located_and_verified(tmp_path: Path) -> None:
    pack, store = _prepared(tmp_path)
    assert (store.locate(pack, "data/train") / "x").read_text() == "data/train"
    store.verify(pack, Phase, tree_digest)
    materials = store.materials(pack)
    assert set(materials) == set(NAMES)
    assert materials["data/final"].source == str(store.locate(pack, "data/final"))


def test_what_is_stored_is_read_only_and_keeps_no_other_mode(tmp_path: Path) -> None:
    pack, store = _prepared(tmp_path)
    folder = store.locate(pack, "data/train")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o555
    assert stat.S_IMODE((folder / "x").stat().st_mode) == 0o444


def test_a_missing_asset_names_itself_and_the_remedy(tmp_path: Path) -> None:
    pack, store = _prepared(tmp_path)
    discard(store.locate(pack, "data/train"))
    with pytest.raises(AssetMismatchError, match="asset data/train of task tiny is missing") as no:
        store.materials(pack)
    assert no.value.remedy.startswith("orch task prepare ")
    assert no.value.exit_code == 75


def test_an_asset_without_a_lock_is_not_located(tmp_path: Path) -> None:
    pack = load_pack(make_pack(tmp_path / "pack"))
    with pytest.raises(AssetMismatchError, match="no locked digest"):
        AssetStore(tmp_path / "store").locate(pack, "data/train")


def test_a_changed_asset_is_refused_with_both_digests(tmp_path: Path) -> None:
    pack, store = _prepared(tmp_path)
    file = store.locate(pack, "data/train") / "x"
    file.chmod(0o644)
    file.write_text("changed")
    file.chmod(0o444)
    with pytest.raises(AssetMismatchError) as refused:
        store.verify(pack, (Phase.REPLAY,), tree_digest)
    assert pack.spec.assets["data/train"].digest in str(refused.value)
    assert tree_digest(file.parent) in str(refused.value)


def test_only_what_the_phase_sees_is_verified(tmp_path: Path) -> None:
    pack, store = _prepared(tmp_path)
    discard(store.locate(pack, "data/final"))
    store.verify(pack, (Phase.EXPLORE, Phase.REPLAY, Phase.VALIDATE), tree_digest)
    with pytest.raises(AssetMismatchError, match="data/final"):
        store.verify(pack, (Phase.SCORE,), tree_digest)


def test_a_damaged_asset_is_replaced(tmp_path: Path) -> None:
    pack, store = _prepared(tmp_path)
    digest = pack.spec.assets["data/train"].digest
    folder = store.locate(pack, "data/train")
    (folder / "x").unlink()
    again = tmp_path / "again"
    again.mkdir()
    (again / "x").write_text("data/train")
    seal(again)
    assert digest is not None
    store.adopt(pack, "data/train", again, digest)
    store.verify(pack, (Phase.REPLAY,), tree_digest)


def test_FS_03_a_hostile_task_name_stays_inside_the_store(tmp_path: Path) -> None:
    task = TASK.replace("name: tiny", 'name: "../../Täsk 1/β: final"')
    pack, store = _prepared(tmp_path / "my runs:v1", task)
    assert store.locate(pack, "data/train").is_relative_to(store.root)


def test_who_has_to_wait_for_the_store_says_so_and_waits(tmp_path: Path) -> None:
    store, said = AssetStore(tmp_path / "store"), Queue[str]()

    def second() -> None:
        with store.exclusive(said.put):
            said.put("in")

    with ThreadPoolExecutor() as pool:
        with store.exclusive(said.put):
            entered = pool.submit(second)
            assert said.get(timeout=30) == (
                f"waiting for another orch task prepare, which is at work in {store.root}"
            )
            assert said.empty()
        entered.result(timeout=30)
    assert said.get_nowait() == "in"


def test_a_store_that_cannot_be_is_the_operators_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "store"):
        with pytest.raises(UsageError, match="the assets folder") as refused:  # noqa: SIM117
            with AssetStore(place).exclusive(print):
                pass
        assert refused.value.remedy == "name another: ORCH_ASSETS"
