"""Every state an agent can leave a workspace in, and every damaged patch, to its right end.

The recipes are in ``tests/data/patch``; each says in its header what is expected.
"""

import hashlib
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from orchestrator.adapters.git_store import GitTreeStore
from orchestrator.evidence.apply import Applied, InvalidPatch, PatchDiffers, apply, copy_pristine
from orchestrator.evidence.capture import Capture, PolicyRefused, ProofFailed, capture
from orchestrator.evidence.tree import Manifest, manifest_of
from orchestrator.evidence.walk import remove_tree

DATA = Path(__file__).parents[1] / "data" / "patch"
RECIPES = sorted((DATA / "workspaces").glob("*.sh"))
HOSTILE = sorted((DATA / "hostile").glob("*.sh"))
EXCLUDE = ("__pycache__/", "*.pyc", ".cache/", ".git/")
STORE = GitTreeStore()

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def expectation(script: Path) -> str:
    match = re.search(r"^# expect: (\S+)$", script.read_text(), re.MULTILINE)
    assert match
    return match.group(1)


def sh(script: Path, *arguments: Path, **env: str) -> None:
    home = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    subprocess.run(["bash", script, *arguments], check=True, env={**home, **env}, timeout=120)


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "pristine"
    sh(DATA / "make-pristine.sh", folder)
    return folder


@pytest.fixture
def box(tmp_path: Path, pristine: Path):
    """A folder with a fresh workspace, as its explorer would get it, and places to put things."""
    workspace = tmp_path / "w"
    shutil.copytree(pristine, workspace, symlinks=True)
    (tmp_path / "candidate").mkdir()
    yield tmp_path
    remove_tree(tmp_path)


def take(box: Path, pristine: Path) -> Capture | PolicyRefused | ProofFailed:
    return capture(
        box / "w",
        pristine,
        exclude=EXCLUDE,
        policy="off",
        store=STORE,
        destination=box / "candidate",
    )


def replay(
    patch: Path, pristine: Path, target: Path, proven: str | None = None
) -> Applied | InvalidPatch | PatchDiffers:
    target.mkdir()
    return apply(
        patch,
        pristine,
        target,
        store=STORE,
        exclude=EXCLUDE,
        policy="off",
        expected_sha256=hashlib.sha256(patch.read_bytes()).hexdigest(),
        expected_manifest_digest=proven,
    )


def seen(root: Path) -> dict[bytes, tuple[str, bytes]]:
    """Read a tree with nothing of ours: type and mode bits, and bytes, by path."""
    found: dict[bytes, tuple[str, bytes]] = {}
    for folder, folders, files in os.walk(os.fsencode(root)):
        folders[:] = [name for name in folders if name not in {b".git", b"__pycache__"}]
        for name in (*files, *folders):
            path = os.path.join(folder, name)
            if os.path.islink(path):
                found[os.path.relpath(path, os.fsencode(root))] = ("link", os.readlink(path))
            elif os.path.isfile(path) and name != b".git":
                mode = f"{os.stat(path).st_mode & 0o777:o}"
                with open(path, "rb") as file:
                    found[os.path.relpath(path, os.fsencode(root))] = (mode, file.read())
    return found


def roundtrip(box: Path, pristine: Path) -> tuple[Capture, Applied]:
    taken = take(box, pristine)
    assert isinstance(taken, Capture), taken
    patch = box / "candidate" / "candidate.patch"
    assert hashlib.sha256(patch.read_bytes()).hexdigest() == taken.patch_sha256
    stored = Manifest.from_json((box / "candidate" / "manifest.json").read_bytes())
    assert stored == taken.manifest
    applied = replay(patch, pristine, box / "target", taken.manifest_digest)
    assert isinstance(applied, Applied), applied
    assert applied.manifest_digest == taken.manifest_digest
    return taken, applied


LEFT_OUT = {
    "21-empty-dirs": {(b"ckpt/empty", "empty_folder"), (b"nested/deep", "empty_folder")},
    "25-nested-git-with-commit": {(b"vendor/.git", "nested_repository")},
    "27-nested-gitfile": {(b"vendor/.git", "nested_repository")},
    "29-deletes-dotgit": set(),
    "35-dotgit-gitfile-redirect": {(b".git", "nested_repository")},
    "64-special-files": {(b"pipe", "special_file"), (b"sock", "special_file")},
    "66-dotgit-lookalikes": {(b".GIT", "nested_repository")},
    "72-pycache-and-pyc": {(b"src/__pycache__", "excluded_by_rule")},
}


@pytest.mark.parametrize("script", RECIPES, ids=lambda script: script.stem)
def test_workspace(script: Path, box: Path, pristine: Path) -> None:
    canary = box / "canary"
    sh(script, box / "w", CANARY=str(canary))
    expect = expectation(script)
    if expect == "quiesce":
        wait_until_still(box / "w" / "live.txt")
    if expect.endswith("+noexec"):
        canary.write_bytes(b"")
    taken, applied = roundtrip(box, pristine)
    assert taken.is_empty == (expect == "empty")
    assert (taken.patch_size == 0) == (expect == "empty")
    listed = {(left.path, left.reason.value) for left in taken.left_out}
    own = {(b".git", "excluded_by_rule")}
    assert listed - own == LEFT_OUT.get(script.stem, set())
    if not LEFT_OUT.get(script.stem):
        assert seen(box / "target") == seen(box / "w")
    assert applied.manifest.entries == manifest_of(box / "w", exclude=EXCLUDE).entries
    if canary.exists():
        assert canary.read_bytes() == b""


def wait_until_still(path: Path) -> None:
    """Stand in for the pause of a container: wait until the writer has written its last line."""
    deadline = time.monotonic() + 60
    while path.read_bytes().count(b"\n") < 40:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("script", HOSTILE, ids=lambda script: script.stem)
def test_hostile_patch(script: Path, box: Path, pristine: Path) -> None:
    sh(script, box / "w", box / "p.patch")
    copy_of_pristine = seen(pristine)
    around = sorted(os.listdir(box))
    result = replay(box / "p.patch", pristine, box / "target")
    expect = expectation(script)
    if expect == "apply":
        assert isinstance(result, Applied)
        changed = {"P20": b"conf/settings.cfg", "P22": b"n.txt"}[script.stem[:3]]
        added = {"P20": b"[a]\nk = 2\n", "P22": b"a  \nb\t \n"}[script.stem[:3]]
        assert seen(box / "target") == {**copy_of_pristine, changed: ("644", added)}
    elif expect == "empty":
        assert isinstance(result, Applied)
        assert seen(box / "target") == copy_of_pristine
    else:
        assert isinstance(result, InvalidPatch), result
        assert result.reason
        assert os.listdir(box / "target") == []
    assert sorted(os.listdir(box)) == sorted([*around, "target"])


def test_all_are_there() -> None:
    print(f"{len(RECIPES)} workspace recipes, {len(HOSTILE)} hostile patches")
    assert (len(RECIPES), len(HOSTILE)) == (46, 13)


def test_a_candidate_that_no_longer_applies_is_the_machine_s_doing(
    box: Path, pristine: Path
) -> None:
    (box / "w" / "README.md").write_text("other\n")
    taken, _ = roundtrip(box, pristine)
    patch = box / "candidate" / "candidate.patch"
    other = box / "other"
    other.mkdir()
    copy_pristine(pristine, other, exclude=EXCLUDE)
    (other / "README.md").write_text("changed base\n")
    result = replay(patch, other, box / "again", taken.manifest_digest)
    assert isinstance(result, PatchDiffers)
    (other / "README.md").write_bytes((pristine / "README.md").read_bytes())
    (other / "empty.txt").write_text("changed base\n")
    result = replay(patch, other, box / "once-more", taken.manifest_digest)
    assert isinstance(result, PatchDiffers)
