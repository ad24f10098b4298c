"""Assets that the operator has already: copied, held to what they are published as, and locked."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from orchestrator.adapters.in_memory import FakeClock, InMemoryEngine
from orchestrator.errors import AssetMismatchError, UsageError
from orchestrator.phases.prepare import How, Prepared, PreparePlan, PreparePorts, run
from orchestrator.ports.fetching import Fetcher
from orchestrator.sandbox import Users
from orchestrator.storage.assets import AssetStore
from orchestrator.storage.pack import load_pack
from tests.unit.pack_help import make_pack

TASK = """\
schema: orch.task/1
name: brought
workspace: {from: solution/}
assets:
  models/start: {role: anchor, source: {local: models/dense}, at: models/opt}
  data/rows.jsonl: {role: train, file: true, source: {local: data/rows.jsonl}}
score:
  command: evaluator/final_eval.py
  metric: score
"""
FILES = {"models/dense/a-b": b"1", "models/dense/a/b": b"22", "data/rows.jsonl": b"{}\n"}


def _no_fetcher() -> Fetcher:
    raise AssertionError("nothing is fetched here")


class Shop:
    """A pack, a folder of what the operator has, and a store."""

    def __init__(self, folder: Path, text: str = TASK) -> None:
        self.task = make_pack(folder / "pack", text)
        self.given = folder / "given"
        self.store = AssetStore(folder / "store")
        for name, content in FILES.items():
            (self.given / name).parent.mkdir(parents=True, exist_ok=True)
            (self.given / name).write_bytes(content)

    def prepare(self, given: Path | None, *, update: bool = False) -> tuple[Prepared, ...]:
        clock = FakeClock()
        engine = InMemoryEngine(images={}, clock=clock)
        ports = PreparePorts(engine, self.store, _no_fetcher, clock, Users(), lambda _: None)
        return run(PreparePlan(load_pack(self.task), update=update, given=given), ports)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_what_is_brought_is_copied_and_locked_and_nothing_of_a_cache(shop: Shop) -> None:
    (shop.given / "models/dense/.cache").mkdir()
    (shop.given / "models/dense/.cache/x").write_bytes(b"of the hub")
    (shop.given / "models/dense/linked").symlink_to(shop.given / "data/rows.jsonl")
    done = {asset.asset: asset for asset in shop.prepare(shop.given)}
    assert {asset.how for asset in done.values()} == {How.LOCKED}
    model = done["models/start"].folder
    assert sorted(path.name for path in model.rglob("*")) == ["a", "a-b", "b", "linked"]
    assert (model / "linked").read_bytes() == b"{}\n"
    assert not (model / "linked").is_symlink()
    assert [path.name for path in done["data/rows.jsonl"].folder.iterdir()] == ["rows.jsonl"]
    material = shop.store.materials(load_pack(shop.task))
    assert (material["models/start"].at, material["models/start"].file) == ("models/opt", "")
    assert material["data/rows.jsonl"].file == "rows.jsonl"


def test_what_is_there_need_not_be_brought_again(shop: Shop) -> None:
    shop.prepare(shop.given)
    assert {asset.how for asset in shop.prepare(None)} == {How.PRESENT}
    assert {asset.how for asset in shop.prepare(None, update=True)} == {How.PRESENT}
    (shop.given / "data/rows.jsonl").write_bytes(b"[]\n")
    done = {asset.asset: asset.how for asset in shop.prepare(shop.given, update=True)}
    assert done == {"data/rows.jsonl": How.RELOCKED, "models/start": How.MADE}


def test_all_that_is_missing_is_named_at_once_with_what_to_do(shop: Shop) -> None:
    with pytest.raises(UsageError) as none:
        shop.prepare(None)
    assert "models/start is yours to bring: folder models/dense" in str(none.value)
    assert "data/rows.jsonl is yours to bring: file data/rows.jsonl" in str(none.value)
    assert "--from DIR" in none.value.remedy
    (shop.given / "data/rows.jsonl").unlink()
    (shop.given / "data/rows.jsonl").mkdir()
    with pytest.raises(UsageError, match=r"rows\.jsonl is no file"):
        shop.prepare(shop.given)


def test_an_asset_of_one_file_is_just_that_file(tmp_path: Path) -> None:
    shop = Shop(tmp_path, TASK.replace("data/rows.jsonl:", "data/rows.json:"))
    shop.prepare(shop.given)
    store, pack = shop.store, load_pack(shop.task)
    assert [p.name for p in store.locate(pack, "data/rows.json").iterdir()] == ["rows.json"]


def test_what_is_no_file_is_named(shop: Shop) -> None:
    model = shop.given / "models/dense"
    (model / "gone").symlink_to("nowhere")
    with pytest.raises(UsageError, match="dense/gone is neither a file"):
        shop.prepare(shop.given)
    (model / "gone").unlink()
    os.mkfifo(model / "pipe")
    with pytest.raises(UsageError, match="dense/pipe is neither a file"):
        shop.prepare(shop.given)
    (model / "pipe").unlink()
    (model / "circle").symlink_to(model)
    with pytest.raises(UsageError, match="in a circle"):
        shop.prepare(shop.given)
    assert "digest" not in shop.task.read_text()


def published(rows: list[tuple[str, bytes]]) -> str:
    """What a folder is published as, written down by hand."""
    found = [
        {"path": path, "sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)}
        for path, data in rows
    ]
    text = json.dumps(found, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def test_what_is_brought_is_held_to_what_was_published(tmp_path: Path) -> None:
    folder = published([("a/b", b"22"), ("a-b", b"1")])
    file = hashlib.sha256(b"{}\n").hexdigest()
    text = TASK.replace("local: models/dense", f"local: models/dense, sha256: {folder}")
    text = text.replace("local: data/rows.jsonl", f"local: data/rows.jsonl, sha256: {file}")
    shop = Shop(tmp_path, text)
    assert {asset.how for asset in shop.prepare(shop.given)} == {How.LOCKED}


def test_what_is_another_than_published_is_refused_with_both_digests(tmp_path: Path) -> None:
    text = TASK.replace("local: models/dense", f"local: models/dense, sha256: {'f' * 64}")
    shop = Shop(tmp_path, text)
    with pytest.raises(AssetMismatchError) as refused:
        shop.prepare(shop.given)
    assert published([("a/b", b"22"), ("a-b", b"1")]) in str(refused.value)
    assert "f" * 64 in str(refused.value)
    assert "digest" not in shop.task.read_text()
