"""Assets that are fetched, and scripts that read what was fetched."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from typing_extensions import override

from orchestrator.adapters.fake_clock import FakeClock
from orchestrator.adapters.in_memory import InMemoryEngine, Inside
from orchestrator.domain.container import ContainerSpec
from orchestrator.domain.source import HubKind
from orchestrator.errors import AssetMismatchError, InfrastructureError, TaskPackError
from orchestrator.evidence.tree import tree_digest
from orchestrator.phases import task_check
from orchestrator.phases.prepare import How, PreparePlan, PreparePorts, run
from orchestrator.ports.fetching import Fetcher, HubAddress, Wanted
from orchestrator.sandbox import Users
from orchestrator.storage.assets import AssetStore
from orchestrator.storage.pack import load_pack
from tests.unit.pack_help import TASK, line_of, make_pack

REVISION = "b" * 40


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


START = f"""\
    source:
      hub:
        repo: o/n
        kind: model
        revision: {REVISION}
        files:
          config.json: {sha(b"{}")}
          deep/weights.bin: {{path: model.bin, sha256: {sha(b"weights")}}}
"""
TRAIN = f"source: {{urls: {{rows.gz: {{url: 'https://x.example/r.gz', sha256: {sha(b'rows')}}}}}}}"
FINAL = "source: {prepare: prepare.py, from: [raw]}"
RAW = f"""\
downloads:
  raw: {{urls: {{a/images: {{url: "https://x.example/i", sha256: {sha(b"images")}}}}}}}
"""
MIXED = (
    TASK.replace("    source: {prepare: prepare.py}\n  data/train", f"{START}  data/train")
    .replace("role: train, source: {prepare: prepare.py}", f"role: train, {TRAIN}")
    .replace("source: {prepare: prepare.py}\nscore", f"{FINAL}\nscore")
    + RAW
)


class Shelf(Fetcher):
    """Published files by their digest; what was asked for is noted."""

    def __init__(self, *contents: bytes) -> None:
        self.contents = {sha(content): content for content in contents}
        self.asked: list[Wanted] = []

    @override
    def fetch(self, wanted: Wanted, part: Path, say: Callable[[str], None]) -> None:
        self.asked.append(wanted)
        with part.open("ab") as file:
            file.write(self.contents.get(wanted.sha256, b"")[part.stat().st_size :])
        if wanted.sha256 not in self.contents:
            raise InfrastructureError("the network is down")


class Workshop:
    """A pack with all three kinds of sources, a store, a shelf and an engine."""

    def __init__(self, folder: Path, text: str = MIXED) -> None:
        self.task = make_pack(folder / "pack", text)
        self.store = AssetStore(folder / "store")
        self.shelf = Shelf(b"{}", b"weights", b"rows", b"images")
        self.specs: list[ContainerSpec] = []
        self.seen: dict[str, bytes] = {}
        clock = FakeClock()
        engine = InMemoryEngine(self._script, images={"orch/prepare-sklearn:1": {}}, clock=clock)
        self.ports = PreparePorts(
            engine, self.store, lambda: self.shelf, clock, Users(), lambda _: None
        )

    def _script(self, inside: Inside) -> int:
        self.specs.append(inside.spec)
        mounts = [mount for mount in inside.spec.mounts if mount.target == "/opt/downloads"]
        for mount in mounts:
            for path in sorted(mount.source.rglob("*")):
                if path.is_file():
                    self.seen[str(path.relative_to(mount.source))] = path.read_bytes()
        inside.write_file("/out/data/final/x", b"y")
        return 0

    def prepare(self, *, update: bool = False) -> dict[str, How]:
        done = run(PreparePlan(load_pack(self.task), update=update), self.ports)
        return {asset.asset: asset.how for asset in done}

    def folder(self, asset: str) -> Path:
        return self.store.locate(load_pack(self.task), asset)

    def kept(self) -> list[str]:
        return sorted(path.name for path in self.store.downloads.iterdir())

    def asked(self) -> list[str]:
        names = [wanted.name for wanted in self.shelf.asked]
        self.shelf.asked.clear()
        return names


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


def test_files_of_the_hub_and_of_urls_become_assets_as_they_are(workshop: Workshop) -> None:
    assert set(workshop.prepare().values()) == {How.LOCKED}
    start, train = workshop.folder("models/start"), workshop.folder("data/train")
    assert (start / "config.json").read_bytes() == b"{}"
    assert (start / "deep/weights.bin").read_bytes() == b"weights"
    assert [path.name for path in train.iterdir()] == ["rows.gz"]
    for folder in (start, train):
        assert tree_digest(folder) == f"tree:v1:sha256:{folder.name}"
    origins = {wanted.name: wanted.origin for wanted in workshop.shelf.asked}
    assert origins["deep/weights.bin"] == HubAddress("o/n", HubKind.MODEL, REVISION, "model.bin")
    assert origins["config.json"] == HubAddress("o/n", HubKind.MODEL, REVISION, "config.json")
    assert origins["rows.gz"] == "https://x.example/r.gz"


def test_a_script_reads_what_it_names_read_only_and_runs_without_a_network(
    workshop: Workshop,
) -> None:
    workshop.prepare()
    assert workshop.seen == {"raw/a/images": b"images"}
    (spec,) = workshop.specs
    (mount,) = (mount for mount in spec.mounts if mount.target == "/opt/downloads")
    assert not mount.writable


def test_a_script_that_names_nothing_sees_nothing(tmp_path: Path) -> None:
    text = MIXED.replace(f"    {FINAL}\n", "    source: {prepare: other.py, from: [raw]}\n")
    text = text.replace(
        "score:\n", "  data/more: {role: final, source: {prepare: prepare.py}}\nscore:\n"
    )
    workshop = Workshop(tmp_path, text)
    (workshop.task.parent / "other.py").write_text("\n")
    with pytest.raises(TaskPackError, match="data/more"):
        workshop.prepare()
    mounts = {spec.argv[1]: [mount.target for mount in spec.mounts] for spec in workshop.specs}
    assert "/opt/downloads" in mounts["/opt/pack/other.py"]
    assert "/opt/downloads" not in mounts["/opt/pack/prepare.py"]


def test_what_scripts_read_is_kept_and_the_rest_moves_into_its_asset(workshop: Workshop) -> None:
    workshop.prepare()
    assert workshop.kept() == [sha(b"images")]
    for file in workshop.folder("models/start").rglob("*.*"):
        assert file.stat().st_nlink == 1


def test_what_is_there_is_not_fetched_again_even_for_new_locks(workshop: Workshop) -> None:
    workshop.prepare()
    assert len(workshop.asked()) == 4
    done = workshop.prepare(update=True)
    assert done == {
        "data/final": How.MADE,
        "data/train": How.PRESENT,
        "models/start": How.PRESENT,
    }
    assert workshop.asked() == []


def test_a_damaged_asset_is_fetched_again(workshop: Workshop) -> None:
    workshop.prepare()
    file = workshop.folder("data/train") / "rows.gz"
    file.chmod(0o644)
    file.write_bytes(b"damage")
    workshop.asked()
    assert workshop.prepare()["data/train"] is How.MADE
    assert workshop.asked() == ["rows.gz"]
    assert file.read_bytes() == b"rows"


def test_other_files_in_the_pack_are_not_what_is_locked(workshop: Workshop) -> None:
    workshop.prepare()
    text = workshop.task.read_text()
    changed = text.replace(sha(b"rows"), sha(b"other rows"))
    workshop.task.write_text(changed)
    workshop.shelf.contents[sha(b"other rows")] = b"other rows"
    with pytest.raises(AssetMismatchError) as refused:
        workshop.prepare()
    assert str(refused.value).count("tree:v1:sha256:") == 2
    assert workshop.task.read_text() == changed
    assert workshop.prepare(update=True)["data/train"] is How.RELOCKED
    assert (workshop.folder("data/train") / "rows.gz").read_bytes() == b"other rows"
    assert workshop.asked().count("rows.gz") == 2


def test_a_kept_file_that_was_changed_is_fetched_again(workshop: Workshop) -> None:
    workshop.prepare()
    workshop.asked()
    kept = workshop.store.downloads / sha(b"images")
    kept.chmod(0o644)
    kept.write_bytes(b"damage")
    workshop.seen.clear()
    workshop.prepare(update=True)
    assert workshop.asked() == ["a/images"]
    assert workshop.seen == {"raw/a/images": b"images"}


def test_a_source_that_the_lock_contradicts_is_a_fault_of_the_pack(workshop: Workshop) -> None:
    workshop.prepare()

    def faults() -> list[str]:
        ports = task_check.CheckPorts(workshop.ports.engine, workshop.store)
        found = task_check.run(workshop.task, ports)
        return [str(fault) for fault in found if "otherwise" in str(fault)]

    assert faults() == []
    text = workshop.task.read_text().replace("rows.gz:", "other.gz:")
    workshop.task.write_text(text)
    (fault,) = faults()
    line = line_of(text, "other.gz")
    assert fault.startswith(f"task.yaml:{line}: assets.data/train.source: names other.gz, rows.gz ")
    assert "(orch task prepare --update locks" in fault


def test_an_unreachable_server_leaves_no_asset_and_the_next_try_goes_on(
    workshop: Workshop,
) -> None:
    text = workshop.task.read_bytes()
    weights = workshop.shelf.contents.pop(sha(b"weights"))
    with pytest.raises(InfrastructureError, match="network is down"):
        workshop.prepare()
    assert workshop.task.read_bytes() == text
    assert not (workshop.store.root / "tiny").exists()
    assert not workshop.specs
    (workshop.store.downloads / f"{sha(weights)}.part").write_bytes(weights[:3])
    workshop.shelf.contents[sha(weights)] = weights
    before = workshop.asked()
    workshop.prepare()
    assert not set(before[:-1]) & set(workshop.asked())
    assert (workshop.folder("models/start") / "deep/weights.bin").read_bytes() == weights


def test_a_fault_of_a_file_carries_its_line(workshop: Workshop) -> None:
    class Wrong(Shelf):
        @override
        def fetch(self, wanted: Wanted, part: Path, say: Callable[[str], None]) -> None:
            if wanted.name == self.which:
                raise AssetMismatchError("two digests", remedy="mend it")

            super().fetch(wanted, part, say)

        which = "deep/weights.bin"

    wrong = Wrong(*workshop.shelf.contents.values())
    workshop.shelf = wrong
    with pytest.raises(AssetMismatchError) as refused:
        workshop.prepare()
    where = "assets.models/start.source.hub.files.deep/weights.bin"
    line = line_of(MIXED, "deep/weights.bin")
    assert str(refused.value) == f"task.yaml:{line}: {where}: two digests"
    assert refused.value.remedy == "mend it"
    wrong.which = "a/images"
    with pytest.raises(AssetMismatchError, match=r"task\.yaml:\d+: downloads\.raw\.urls\.a/images"):
        workshop.prepare()


def test_two_assets_never_share_a_file(tmp_path: Path) -> None:
    both = f"{TRAIN}".replace("rows.gz", "again.gz")
    text = MIXED.replace("score:\n", f"  data/proxy: {{role: proxy, {both}}}\nscore:\n")
    text = text.replace(sha(b"images"), sha(b"rows"))
    workshop = Workshop(tmp_path, text)
    workshop.prepare()
    assert workshop.asked().count("rows.gz") + workshop.asked().count("again.gz") <= 1
    files = [
        workshop.folder("data/train") / "rows.gz",
        workshop.folder("data/proxy") / "again.gz",
        workshop.store.downloads / sha(b"rows"),
    ]
    assert len({file.stat().st_ino for file in files}) == 3
    assert {file.read_bytes() for file in files} == {b"rows"}


def test_an_interrupted_run_lays_the_same_files_again(workshop: Workshop) -> None:
    workshop.prepare()
    stale = workshop.store.root / ".preparing/inputs/prepare.py/raw"
    stale.mkdir(parents=True)
    (stale / "images").write_bytes(b"stale")
    workshop.seen.clear()
    workshop.prepare(update=True)
    assert workshop.seen == {"raw/a/images": b"images"}
