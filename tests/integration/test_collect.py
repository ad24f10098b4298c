"""Checkpoints as a hostile candidate leaves them."""

import hashlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.domain.checkpoint import EntryKind, Published, select
from orchestrator.evidence.collect import (
    MAX_FILES,
    Collected,
    Refused,
    Unfit,
    collect_one,
    forged,
    published,
)
from orchestrator.evidence.tree import tree_digest
from orchestrator.evidence.walk import PATH_LIMIT, remove_tree

MIB = 1024**2


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "out" / "checkpoints").mkdir(parents=True)
    (tmp_path / "kept").mkdir()
    yield tmp_path / "out"
    remove_tree(tmp_path)  # pytest's own removal is recursive


def make(out: Path, name: str, **files: bytes) -> Path:
    folder = out / "checkpoints" / name
    folder.mkdir()
    for file, content in files.items():
        (folder / file).write_bytes(content)
    return folder


def collect(out: Path, name: str, max_bytes: int = 64 * MIB) -> Collected | Refused:
    return collect_one(out / "checkpoints" / name, out.parent / "kept" / name, max_bytes=max_bytes)


def nest(folder: Path, depth: int, content: bytes) -> None:
    here = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    file = os.open("f", os.O_WRONLY | os.O_CREAT, dir_fd=here)
    os.write(file, content)
    os.close(file)
    os.close(here)


def test_CK_15_links_and_doubles_are_never_checkpoints(out: Path) -> None:
    make(out, "checkpoint-20", w=b"x")
    (out / "checkpoints" / "latest").symlink_to("/workspace/out/checkpoint-20")
    (out / "checkpoints" / "checkpoint-50").symlink_to("checkpoint-20")
    (out / "checkpoints" / "checkpoint-60").symlink_to("missing")
    (out / "checkpoints" / "checkpoint-70").write_text("a file")
    chosen, passed = select(published(out / "checkpoints"))
    assert [(c.progress, c.name) for c in chosen] == [(20, b"checkpoint-20")]
    assert {(p.name, p.reason) for p in passed} == {
        (b"latest", "not_a_checkpoint_name"),
        (b"checkpoint-50", "symlink"),
        (b"checkpoint-60", "symlink"),
        (b"checkpoint-70", "not_a_folder"),
    }


def test_CK_22_three_thousand_levels_are_refused_with_a_reason_and_removed(out: Path) -> None:
    folder = make(out, "checkpoint-1", **{"n" * 255: b"long"})
    nest(folder, 3000, b"bottom")
    result = collect(out, "checkpoint-1")
    assert isinstance(result, Refused)
    assert result.reason is Unfit.TOO_DEEP
    assert list((out.parent / "kept").iterdir()) == []
    remove_tree(out)
    assert not out.exists()


def test_CK_22_the_digest_covers_the_bottom_of_what_is_deep_but_reachable(out: Path) -> None:
    depth = (PATH_LIMIT - 1) // 2
    digests = []
    for number, content in enumerate((b"bottom", b"BOTTOM")):
        folder = make(out, f"checkpoint-{number}", **{"n" * 255: b"long"})
        nest(folder, depth, content)
        result = collect(out, folder.name)
        assert isinstance(result, Collected)
        assert result.files == 2
        assert (
            result.digest == tree_digest(folder) == tree_digest(out.parent / "kept" / folder.name)
        )
        digests.append(result.digest)
    assert digests[0] != digests[1]
    remove_tree(out.parent / "kept")
    remove_tree(out)


def test_shut_folders_are_removed(tmp_path: Path) -> None:
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    (tmp_path / "a" / "b" / "f").write_text("")
    (tmp_path / "a" / "b").chmod(0)
    (tmp_path / "a").chmod(0)
    remove_tree(tmp_path / "a")
    remove_tree(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_removal_never_follows_a_link(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "f").write_text("")
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "l").symlink_to(tmp_path / "kept")
    remove_tree(tmp_path / "gone")
    (tmp_path / "gone").symlink_to(tmp_path / "kept")
    remove_tree(tmp_path / "gone")
    assert (tmp_path / "kept" / "f").exists()
    assert not os.path.lexists(tmp_path / "gone")


def test_a_checkpoint_is_copied_whole_read_only_and_ours(out: Path) -> None:
    folder = make(out, "checkpoint-7800", w=b"weights" * MIB, empty=b"")
    (folder / "sub").mkdir()
    (folder / "sub" / "run").write_text("#!")
    (folder / "sub" / "run").chmod(0o777)
    (folder / "sub" / "up").symlink_to("../w")
    result = collect(out, "checkpoint-7800")
    kept = out.parent / "kept" / "checkpoint-7800"
    assert result == Collected("checkpoint-7800", 7800, tree_digest(folder), 7 * MIB + 2 + 4, 4)
    assert tree_digest(kept) == tree_digest(folder)
    modes = {p.name: p.lstat().st_mode & 0o7777 for p in (kept, *kept.rglob("*"))}
    assert modes == {
        "checkpoint-7800": 0o555,
        "sub": 0o555,
        "w": 0o444,
        "empty": 0o444,
        "run": 0o555,
        "up": 0o777,
    }
    assert (kept / "sub" / "up").readlink() == Path("../w")
    assert (
        hashlib.sha256((kept / "w").read_bytes()).digest()
        == hashlib.sha256(b"weights" * MIB).digest()
    )


def test_an_interrupted_copy_is_made_again_and_a_finished_one_never_written_over(
    out: Path,
) -> None:
    make(out, "checkpoint-1", w=b"x")
    part = out.parent / "kept" / ".checkpoint-1.part"
    part.mkdir()
    (part / "w").write_text("half")
    assert isinstance(collect(out, "checkpoint-1"), Collected)
    with pytest.raises(FileExistsError):
        collect(out, "checkpoint-1")
    assert [path.name for path in (out.parent / "kept").iterdir()] == ["checkpoint-1"]


@pytest.mark.parametrize(
    ("target", "fits"),
    [
        ("w", True),
        ("./w", True),
        ("sub/../w", False),
        ("../checkpoint-1/w", False),
        ("/assets/models/training_start/w", False),
        ("..", False),
        ("missing", True),
    ],
)
def test_a_link_may_not_lead_out_of_a_checkpoint(out: Path, target: str, fits: bool) -> None:
    folder = make(out, "checkpoint-1", w=b"x")
    (folder / "sub").mkdir()
    (folder / "l").symlink_to(target)
    result = collect(out, "checkpoint-1")
    assert (
        isinstance(result, Collected)
        if fits
        else result == Refused("checkpoint-1", Unfit.LINK_LEAVES, "l")
    )


def test_special_files_are_refused_unopened(out: Path) -> None:
    os.mkfifo(make(out, "checkpoint-1", w=b"x") / "pipe")
    make(out, "checkpoint-2", w=b"x")
    with socket.socket(socket.AF_UNIX) as sock:
        here = os.open(out / "checkpoints" / "checkpoint-2", os.O_RDONLY)
        sock.bind(f"/proc/self/fd/{here}/s")
        os.close(here)
    assert collect(out, "checkpoint-1") == Refused("checkpoint-1", Unfit.SPECIAL_FILE, "pipe")
    assert collect(out, "checkpoint-2") == Refused("checkpoint-2", Unfit.SPECIAL_FILE, "s")


def test_holes_count_as_large(out: Path) -> None:
    folder = make(out, "checkpoint-1")
    with (folder / "holes").open("wb") as file:
        file.truncate(1 << 43)
    assert collect(out, "checkpoint-1") == Refused("checkpoint-1", Unfit.TOO_LARGE, "holes")


def test_too_many_files_and_none_at_all(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_FILES == 100_000
    monkeypatch.setattr("orchestrator.evidence.collect.MAX_FILES", 5)
    folder = make(out, "checkpoint-1", **{f"f{n}": b"" for n in range(6)})
    (folder / "g").mkdir()
    result = collect(out, "checkpoint-1")
    assert isinstance(result, Refused)
    assert result.reason is Unfit.TOO_MANY_FILES
    (make(out, "checkpoint-2") / "sub").mkdir()
    assert collect(out, "checkpoint-2") == Refused("checkpoint-2", Unfit.EMPTY, "")


def test_the_newest_change_inside_counts(out: Path) -> None:
    folder = make(out, "checkpoint-1", w=b"x")
    (folder / "sub").mkdir()
    (folder / "sub" / "late").write_text("x")
    newest = (folder / "sub" / "late").stat().st_ctime_ns
    os.utime(folder / "sub" / "late", (0, 0))
    (found,) = published(out / "checkpoints")
    assert found.kind is EntryKind.FOLDER
    assert found.changed_ns == (folder / "sub" / "late").stat().st_ctime_ns >= newest


def test_looking_for_changes_is_bounded(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.evidence.collect._MAX_LOOKED_AT", 3)
    make(out, "checkpoint-1", a=b"", b=b"", c=b"", d=b"")
    (found,) = published(out / "checkpoints")
    assert select([found], deadline_ns=2**62)[0] == ()


def test_nothing_published_and_a_link_instead_of_the_folder(out: Path, tmp_path: Path) -> None:
    (out / "checkpoints").rmdir()
    assert published(out / "checkpoints") == ()
    (out / "checkpoints").symlink_to("/etc")
    (found,) = published(out / "checkpoints")
    assert isinstance(found, Published)
    assert select([found])[0] == ()


def test_SC_03_forged_results_are_noted_and_nothing_else(out: Path) -> None:
    assert forged(out) == ()
    (out / "summary.json").write_text('{"score": 1}')
    (out / ".complete").symlink_to("nowhere")
    (out / "receipts").mkdir()
    (out / "reward.json").write_text("1")
    (out / "notes.txt").write_text("mine")
    assert forged(out) == (".complete", "receipts", "reward.json", "summary.json")
