"""Identity of trees, rules of exclusion, manifests as records."""

import hashlib
import json
import os
import socket
from pathlib import Path

import pytest
import rfc8785

from orchestrator.errors import AssetMismatchError, TaskPackError
from orchestrator.evidence.tree import (
    Entry,
    Kind,
    LeftOut,
    Manifest,
    Reason,
    Rules,
    TreeTooLargeError,
    decode_path,
    encode_path,
    manifest_of,
    stat_identity,
    tree_digest,
)
from orchestrator.evidence.walk import PATH_LIMIT, TreeChangedError, Visit, remove_tree, walk


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_the_identity_is_the_published_recipe(tmp_path: Path) -> None:
    (tmp_path / "b%20 ü").mkdir()
    (tmp_path / "b%20 ü" / "run").write_bytes(b"x")
    (tmp_path / "b%20 ü" / "run").chmod(0o755)
    (tmp_path / "a").symlink_to("../elsewhere")
    rows = [
        {
            "path": "a",
            "type": "symlink",
            "mode": "120000",
            "size": 12,
            "sha256": sha(b"../elsewhere"),
        },
        {
            "path": "b%2520%20%C3%BC/run",
            "type": "file",
            "mode": "100755",
            "size": 1,
            "sha256": sha(b"x"),
        },
    ]
    expected = f"tree:v1:sha256:{sha(rfc8785.dumps(rows))}"
    assert manifest_of(tmp_path).digest == tree_digest(tmp_path) == expected


def test_entries_are_sorted_by_bytes_not_by_folder(tmp_path: Path) -> None:
    for name in ("a/x", "a.b", "a-b"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert [e.path for e in manifest_of(tmp_path).entries] == [b"a-b", b"a.b", b"a/x"]


@pytest.mark.parametrize(
    ("change", "matters"),
    [
        (lambda f: f.write_bytes(b"other"), True),
        (lambda f: f.chmod(0o755), True),
        (lambda f: f.chmod(0o600), False),
        (lambda f: f.rename(f.with_name("g")), True),
        (lambda f: os.utime(f, (0, 0)), False),
        (lambda f: (f.parent / "empty").mkdir(), False),
        (lambda f: (f.parent / ".git").write_text("x"), True),
    ],
    ids=["content", "executable", "other-bits", "name", "mtime", "empty-folder", "dotgit"],
)
def test_what_the_identity_of_an_asset_covers(tmp_path: Path, change, matters: bool) -> None:  # noqa: ANN001
    file = tmp_path / "f"
    file.write_bytes(b"bytes")
    before = tree_digest(tmp_path)
    change(file)
    assert (tree_digest(tmp_path) != before) == matters


def test_an_asset_with_a_special_file_has_no_identity(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(AssetMismatchError, match="pipe: special_file"):
        tree_digest(tmp_path)
    with pytest.raises(AssetMismatchError, match="no folder"):
        tree_digest(tmp_path / "missing")


def test_a_stat_identity_sees_an_edit_with_its_mtime_restored(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"one")
    before = stat_identity(tmp_path)
    assert stat_identity(tmp_path) == before
    status = file.stat()
    while file.stat().st_ctime_ns == status.st_ctime_ns:  # a kernel may tell time in ticks
        file.write_bytes(b"two")
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert stat_identity(tmp_path) != before


def test_what_git_cannot_carry_is_listed(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    (tmp_path / "f").chmod(0o4755)
    (tmp_path / "empty" / "below").mkdir(parents=True)
    (tmp_path / "private").mkdir(mode=0o700)
    (tmp_path / "private" / "g").write_text("x")
    (tmp_path / "vendor" / ".git").mkdir(parents=True)
    (tmp_path / ".GIT").mkdir()
    (tmp_path / "cache.pyc").write_text("")
    (tmp_path / "__pycache__").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as sock:
        here = os.open(tmp_path, os.O_RDONLY)
        sock.bind(f"/proc/self/fd/{here}/sock")
        os.close(here)
    manifest = manifest_of(tmp_path, exclude=("__pycache__/", "*.pyc", ".git/"))
    assert [entry.path for entry in manifest.entries] == [b"f", b"private/g"]
    assert set(manifest.left_out) == {
        LeftOut(b".GIT", Reason.NESTED_REPOSITORY),
        LeftOut(b"__pycache__", Reason.EXCLUDED),
        LeftOut(b"cache.pyc", Reason.EXCLUDED),
        LeftOut(b"empty/below", Reason.EMPTY_FOLDER),
        LeftOut(b"f", Reason.MODE_BITS, "4755"),
        LeftOut(b"pipe", Reason.SPECIAL_FILE),
        LeftOut(b"private", Reason.MODE_BITS, "0700"),
        LeftOut(b"sock", Reason.SPECIAL_FILE),
        LeftOut(b"vendor/.git", Reason.NESTED_REPOSITORY),
    }


def test_what_lies_too_deep_is_listed_once(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(PATH_LIMIT // 2 + 10):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    (left,) = manifest_of(tmp_path).left_out
    remove_tree(tmp_path)  # pytest's own removal is recursive
    assert left.reason is Reason.TOO_DEEP


def test_sizes_are_bounded_before_anything_is_read(tmp_path: Path) -> None:
    with (tmp_path / "holes").open("wb") as file:
        file.truncate(1 << 43)
    with pytest.raises(TreeTooLargeError):
        manifest_of(tmp_path, max_bytes=1 << 20)


def test_a_folder_moved_away_under_the_walk_is_noticed(tmp_path: Path) -> None:
    for name in ("tree/a/b", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    with pytest.raises(TreeChangedError):  # noqa: PT012 - the walk must be under way
        for found in walk(tmp_path / "tree", lambda _: True):
            if found.path == b"a/b" and found.visit is Visit.SEEN:
                (tmp_path / "tree" / "a").rename(tmp_path / "elsewhere" / "a")


@pytest.mark.parametrize(
    ("pattern", "name", "is_folder", "matches"),
    [
        (".git/", b".git", True, True),
        (".git/", b".git", False, False),
        (".git/", b".GIT", True, False),
        ("*.pyc", b"a.pyc", False, True),
        ("*.pyc", b"a.PYC", False, False),
        ("*.pyc", b"a.pyc.txt", False, False),
        ("*.\udcff", b"a.\xff", False, True),
    ],
)
def test_rules(pattern: str, name: bytes, is_folder: bool, matches: bool) -> None:
    assert Rules((pattern,)).match(name, is_folder=is_folder) == matches


def test_a_rule_holds_for_everything_below_a_folder() -> None:
    rules = Rules((".cache/", "*.pyc"))
    assert rules.match_path(b"a/.cache/b/c")
    assert rules.match_path(b"a/b.pyc")
    assert not rules.match_path(b"a/.cache")


@pytest.mark.parametrize("text", ["a b", "%2f", "a%", "%zz", "ü"])
def test_a_path_has_one_spelling(text: str) -> None:
    with pytest.raises(TaskPackError):
        decode_path(text)


def example() -> Manifest:
    return Manifest(
        (Entry(b"a", Kind.FILE, "100644", 1, sha(b"x")),),
        (LeftOut(b"p\xff", Reason.MODE_BITS, "0600"),),
    )


def test_a_manifest_reads_back() -> None:
    assert Manifest.from_json(example().to_json()) == example()


@pytest.mark.parametrize(
    "damage",
    [
        lambda r: r.update(extra=1),
        lambda r: r.pop("digest"),
        lambda r: r.update(schema="orch.manifest/2"),
        lambda r: r["entries"][0].update(size="1"),
        lambda r: r["entries"][0].update(size=2),
        lambda r: r["entries"][0].update(mode="100600"),
        lambda r: r["entries"][0].update(path="a b"),
        lambda r: r["entries"].append(r["entries"][0]),
        lambda r: r["left_out"][0].update(reason="whim"),
    ],
    ids=range(9),
)
def test_a_damaged_manifest_is_refused(damage) -> None:  # noqa: ANN001
    record = json.loads(example().to_json())
    damage(record)
    with pytest.raises(TaskPackError):
        Manifest.from_json(json.dumps(record).encode())


def test_paths_of_any_bytes_have_a_spelling() -> None:
    path = bytes(range(1, 256))
    assert decode_path(encode_path(path)) == path
    assert encode_path(b"%41/%") == "%2541/%25"
