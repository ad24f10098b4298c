"""The shipped solution that an image brings: taken out once, kept, and held to itself."""

import io
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from typing_extensions import override

from orchestrator.adapters.in_memory import FakeClock, InMemoryEngine
from orchestrator.adapters.untar import untar
from orchestrator.errors import TaskPackError, UsageError
from orchestrator.evidence.image_workspace import with_workspace
from orchestrator.storage.assets import AssetStore
from orchestrator.storage.pack import Pack, load_pack
from tests.unit.pack_help import TASK, make_pack

IMAGE = {"/workspace/run.sh": b"true\n", "/workspace/sub/train.py": b"", "/opt/x": b"x"}
FROM_IMAGE = TASK.replace("from: solution/", "from: image") + "defaults: {image: 'ours:1'}\n"


class Shelf:
    """A pack without a solution of its own, and images that bring one."""

    def __init__(self, folder: Path) -> None:
        self.pack = load_pack(make_pack(folder / "pack", FROM_IMAGE))
        self.store = AssetStore(folder / "store")

    def take(self, files: Mapping[str, bytes] = IMAGE) -> Pack:
        engine = InMemoryEngine(images={"ours:1": files}, clock=FakeClock())
        return with_workspace(engine, self.store, self.pack)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def test_it_is_taken_out_of_the_image_without_anything_beside_it(shelf: Shelf) -> None:
    with pytest.raises(ValueError, match="still in its image"):
        _ = shelf.pack.solution
    solution = shelf.take().solution
    assert {p.relative_to(solution).as_posix() for p in solution.rglob("*")} == {
        "run.sh",
        "sub",
        "sub/train.py",
    }
    assert os.access(solution / "run.sh", os.X_OK)


def test_it_is_taken_out_once_and_again_where_it_was_changed(shelf: Shelf) -> None:
    solution = shelf.take().solution
    kept = solution.stat().st_ino
    assert shelf.take().solution.stat().st_ino == kept
    (solution / "run.sh").chmod(0o755)
    (solution / "run.sh").write_bytes(b"echo changed\n")
    again = shelf.take().solution
    assert (again / "run.sh").read_bytes() == b"true\n"


def test_another_image_has_another_workspace(shelf: Shelf) -> None:
    first = shelf.take().solution
    other = shelf.take({**IMAGE, "/workspace/run.sh": b"echo other\n"}).solution
    assert first != other
    assert (first / "run.sh").read_bytes() == b"true\n"


def test_what_a_killed_process_left_half_taken_is_taken_again(shelf: Shelf) -> None:
    place = shelf.take().solution.parent
    (place / ".new").mkdir()
    (place / ".new" / "half").write_bytes(b"")
    assert shelf.take().solution.parent == place
    assert len(list(place.iterdir())) == 1


def test_an_image_without_a_workspace_or_run_script_is_refused(shelf: Shelf) -> None:
    with pytest.raises(UsageError, match="has no /workspace"):
        shelf.take({"/opt/x": b""})
    with pytest.raises(TaskPackError, match=r"executable run\.sh"):
        shelf.take({"/workspace/train.py": b""})


def test_a_folder_of_the_pack_is_laid_over_what_the_image_brings(tmp_path: Path) -> None:
    text = FROM_IMAGE.replace("from: image", "from: image, add: more")
    (tmp_path / "pack/more").mkdir(parents=True)
    (tmp_path / "pack/more/run.sh").write_text("echo ours\n")
    (tmp_path / "pack/more/run.sh").chmod(0o755)
    pack = load_pack(make_pack(tmp_path / "pack", text))
    engine = InMemoryEngine(images={"ours:1": IMAGE}, clock=FakeClock())
    store = AssetStore(tmp_path / "store")
    solution = with_workspace(engine, store, pack).solution
    assert (solution / "run.sh").read_text() == "echo ours\n"
    assert (solution / "sub/train.py").is_file()
    (pack.folder / "more/run.sh").write_text("echo others\n")
    assert with_workspace(engine, store, pack).solution != solution


class Linking(InMemoryEngine):
    """An engine whose image's workspace has links where a pack lays its files."""

    @override
    def copy_out(self, reference: str, folder: str, into: Path) -> None:
        outside = into.parents[2]
        (into / "workspace").mkdir()
        (into / "workspace/run.sh").symlink_to(outside / "file")
        (into / "workspace/sub").symlink_to(outside)
        (into / "workspace/file").mkdir()


def test_nothing_is_laid_through_a_link_of_the_image(tmp_path: Path) -> None:
    text = FROM_IMAGE.replace("from: image", "from: image, add: more")
    for name in ("run.sh", "sub/file", "file"):
        (tmp_path / "pack/more" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pack/more" / name).write_text("ours\n")
    (tmp_path / "pack/more/run.sh").chmod(0o755)
    pack = load_pack(make_pack(tmp_path / "pack", text))
    store = AssetStore(tmp_path / "store")
    (store.root / ".workspaces").mkdir(parents=True)
    outside = store.root / "file"
    outside.write_text("theirs\n")
    engine = Linking(images={"ours:1": IMAGE}, clock=FakeClock())
    solution = with_workspace(engine, store, pack).solution
    assert outside.read_text() == "theirs\n"
    for name in ("run.sh", "sub/file", "file"):
        assert (solution / name).read_text() == "ours\n"
    assert not (solution / "sub").is_symlink()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TASK.replace("solution/", "solution/, add: more"), "goes with from: image"),
        (FROM_IMAGE.replace("from: image", "from: image, add: none"), "no such folder"),
        (
            FROM_IMAGE + "interface: edit-test-submit\nedit: {packages: [a], editable: {}}\n",
            "must be a folder of the pack",
        ),
        (FROM_IMAGE.replace("evaluator/final_eval.py", "solution/run.sh"), ""),
        (
            FROM_IMAGE.replace("from: image", "from: image, add: evaluator"),
            "lies in the workspace, which the exploration sees",
        ),
    ],
)
def test_what_an_images_workspace_asks_of_a_pack(tmp_path: Path, text: str, said: str) -> None:
    task = make_pack(tmp_path / "pack", text)
    if said:
        with pytest.raises(TaskPackError, match=said):
            load_pack(task)
    else:  # no folder of the pack is shown as the workspace
        assert load_pack(task).spec.workspace.in_image


def test_a_store_that_cannot_be_written_is_said(shelf: Shelf) -> None:
    shelf.store.root.write_text("a file")
    with pytest.raises(UsageError, match="folder of assets"):
        shelf.take()


def test_a_pack_with_a_folder_stays_as_it_is(tmp_path: Path) -> None:
    pack = load_pack(make_pack(tmp_path / "pack"))
    engine = InMemoryEngine(images={}, clock=FakeClock())
    assert with_workspace(engine, AssetStore(tmp_path / "store"), pack) is pack


def tar_of(*members: tarfile.TarInfo) -> io.BytesIO:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    made.seek(0)
    return made


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, 0o755
    info.uid, info.gid = os.getuid(), os.getgid()
    info.size = 1 if kind == tarfile.REGTYPE else 0
    return info


def test_links_are_written_as_they_are_and_special_files_not_at_all(tmp_path: Path) -> None:
    untar(
        tar_of(
            member("w/file"),
            member("w/far", tarfile.SYMTYPE, "/etc/passwd"),
            member("w/same", tarfile.LNKTYPE, "w/file"),
            member("w/pipe", tarfile.FIFOTYPE),
            member("w/null", tarfile.CHRTYPE),
        ),
        tmp_path,
    )
    assert sorted(path.name for path in (tmp_path / "w").iterdir()) == ["far", "file", "same"]
    assert (tmp_path / "w/far").readlink() == Path("/etc/passwd")
    assert (tmp_path / "w/same").read_bytes() == b"x"


@pytest.mark.parametrize(
    "members",
    [
        (member("../out"),),
        (member("w/up", tarfile.SYMTYPE, "../.."), member("w/up/out")),
    ],
)
def test_nothing_is_written_outside(tmp_path: Path, members: tuple[tarfile.TarInfo, ...]) -> None:
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    with pytest.raises(tarfile.TarError):
        untar(tar_of(*members), inside)
    assert not list(tmp_path.rglob("out"))


@pytest.mark.parametrize("through", [False, True])
def test_no_file_outside_gets_a_second_name(tmp_path: Path, *, through: bool) -> None:
    (tmp_path / "secret").write_text("x")
    inside = tmp_path / "a"
    inside.mkdir()
    up = member("w/up", tarfile.SYMTYPE, "../..")
    named = member("w/out", tarfile.LNKTYPE, "w/up/secret" if through else "../secret")
    with pytest.raises(tarfile.LinkOutsideDestinationError):
        untar(tar_of(*([up] if through else []), named), inside)
    assert (tmp_path / "secret").stat().st_nlink == 1
