"""Every state an agent can leave a workspace in, and every damaged patch, to its right end.

The recipes are in ``tests/data/patch``; each says in its header what is expected.
"""

import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.adapters.git_store import GitTrees, GitTreeStore
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
def box(tmp_path: Path, pristine: Path) -> Iterator[Path]:
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
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in {".git", "__pycache__"}]
        for path in (Path(folder, name) for name in (*files, *folders)):
            key = os.fsencode(path.relative_to(root))
            if path.is_symlink():
                found[key] = ("link", os.fsencode(os.readlink(path)))  # noqa: PTH115 - exact bytes
            elif path.is_file() and path.name != ".git":
                found[key] = (f"{path.stat().st_mode & 0o777:o}", path.read_bytes())
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
    while not path.exists() or path.read_bytes().count(b"\n") < 40:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("script", HOSTILE, ids=lambda script: script.stem)
def test_hostile_patch(script: Path, box: Path, pristine: Path) -> None:
    sh(script, box / "w", box / "p.patch")
    copy_of_pristine = seen(pristine)
    around = sorted(box.iterdir())
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
        assert list((box / "target").iterdir()) == []
    assert sorted(box.iterdir()) == sorted([*around, box / "target"])


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


def test_PA_01_blank_ends_and_missing_newlines_survive_to_the_byte(
    box: Path, pristine: Path
) -> None:
    base = box / "base"
    shutil.copytree(pristine, base, symlinks=True)
    (base / "blank.txt").write_bytes(b"a\nb\n \n \n")
    (box / "w" / "blank.txt").write_bytes(b"a\nB\n \n \n")
    (box / "w" / "src" / "noeol.txt").write_bytes(b"alpha\nBETA\ngamma")
    roundtrip(box, base)
    patch = (box / "candidate" / "candidate.patch").read_bytes()
    assert b"\n  \n  \n" in patch
    stripped = box / "stripped.patch"
    stripped.write_bytes(b"\n".join(line.rstrip() for line in patch.split(b"\n")))
    assert isinstance(replay(stripped, base, box / "never"), InvalidPatch)
    assert seen(box / "target") == seen(box / "w")


def test_PA_03_commits_and_branches_do_not_matter(box: Path, pristine: Path) -> None:
    (box / "w" / "README.md").write_text("edited\n")
    git = ["git", "-C", str(box / "w"), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["add", "-A"], ["commit", "-qm", "x"], ["checkout", "-qb", "other"]):
        subprocess.run([*git, *command], check=True)
    taken, _ = roundtrip(box, pristine)
    assert (taken.changed.modified, taken.changed.added, taken.changed.deleted) == (1, 0, 0)
    assert (box / "target" / "README.md").read_text() == "edited\n"


def test_PA_05_everything_crosses_or_is_listed(box: Path, pristine: Path) -> None:
    work = box / "w"
    (work / ".gitignore").write_text("*.pt\n")
    (work / "model.pt").write_bytes(bytes(range(256)))
    (work / "new.bin").write_bytes(b"\0\1")
    (work / "new.txt").write_text("new\n")
    (work / "void").write_bytes(b"")
    (work / "README.md").chmod(0o755)
    (work / "empty").mkdir()
    (work / "new.txt").chmod(0o600)
    (work / "void").chmod(0o4755)
    taken, _ = roundtrip(box, pristine)
    listed = {(left.path, left.reason.value, left.detail) for left in taken.left_out}
    assert listed == {
        (b".git", "excluded_by_rule", ""),
        (b"empty", "empty_folder", ""),
        (b"new.txt", "mode_bits", "0600"),
        (b"void", "mode_bits", "4755"),
    }
    expected = seen(work)
    expected[b"new.txt"] = ("644", b"new\n")
    assert seen(box / "target") == expected


def test_PA_07_nothing_of_the_agent_s_configuration_runs(box: Path, pristine: Path) -> None:
    work, marker = box / "w", box / "marker"
    program = box / "program"
    program.write_text(f"#!/bin/sh\ntouch {marker}\ncat\n")
    program.chmod(0o755)
    (work / "README.md").write_text("edited\n")
    plain = take(box, pristine)
    assert isinstance(plain, Capture)
    for key in (
        "filter.x.clean",
        "filter.x.process",
        "core.fsmonitor",
        "diff.external",
        "diff.x.textconv",
        "diff.x.command",
        "core.hooksPath",
        "core.sshCommand",
    ):
        subprocess.run(["git", "-C", work, "config", key, str(program)], check=True)
    for hook in ("pre-commit", "post-checkout", "post-index-change"):
        shutil.copy(program, work / ".git" / "hooks" / hook)
    (work / ".gitattributes").write_text("* filter=x diff=x text eol=crlf\n")
    taken, applied = roundtrip(box, pristine)
    assert not marker.exists()
    assert taken.changed.added == plain.changed.added + 1
    edited = [entry for entry in applied.manifest.entries if entry.path == b"README.md"]
    assert edited == [e for e in plain.manifest.entries if e.path == b"README.md"]


def test_PA_08_a_foreign_repository_above_changes_nothing(box: Path, pristine: Path) -> None:
    subprocess.run(["git", "init", "-q", box], check=True)
    (box / "w" / "README.md").write_text("edited\n")
    roundtrip(box, pristine)
    assert seen(box / "target") == seen(box / "w")
    wrong = replay(
        box / "candidate" / "candidate.patch", pristine, box / "t2", "tree:v1:sha256:" + "0" * 64
    )
    assert isinstance(wrong, PatchDiffers)
    assert list((box / "t2").iterdir()) == []


NEW = "diff --git a/{0} b/{0}\nnew file mode {1}\n--- /dev/null\n+++ b/{0}\n@@ -0,0 +1 @@\n+{2}\n"
CUT = "\\ No newline at end of file\n"


@pytest.mark.parametrize(
    "text",
    [
        NEW.format("x", "120000", "/tmp") + CUT + NEW.format("x/pwn", "100644", "y"),
        NEW.format("x/pwn", "100644", "y") + NEW.format("x", "120000", "/tmp") + CUT,
        NEW.format("dirlink/pwn", "100644", "y"),
        NEW.format("b/../evil", "100644", "y"),
        NEW.format("../evil", "100644", "y"),
        NEW.format(".git/hooks/pre-commit", "100755", "y"),
        NEW.format("sub/.GIT/config", "100644", "y"),
        NEW.format("/etc/evil", "100644", "y").replace("a//", "/").replace("b//", "/"),
        NEW.format("a//b", "100644", "y"),
        NEW.format("./b", "100644", "y"),
        NEW.format("n" * 256, "100644", "y"),
        NEW.format("x.pyc", "100644", "y"),
        NEW.format("__pycache__/x.py", "100644", "y"),
        "diff --git a/new b/new\nnew file mode 120000\nindex 0000000..e69de29\n",
        NEW.format("new", "104755", "y"),
        NEW.format("new", "040000", "y"),
        r'diff --git "a/\056\056/evil" "b/\056\056/evil"' + "\nnew file mode 100644\n",
        NEW.format("ok", "100644", "y") + "Index: oops\n",
        NEW.format("ok", "100644", "y") + "From: someone\n",
        NEW.format("run.sh", "100644", "y"),
        NEW.format("run.sh/x", "100644", "y"),
        "diff --git a/run.sh b/run.sh\nold mode 100755\nnew mode 160000\n",
        "diff --git a/none b/none\nold mode 100644\nnew mode 100755\n",
        "diff --git a/none b/elsewhere\n",
        "nonsense\n",
        "\n",
        "--- a/run.sh\n+++ b/run.sh\n",
    ],
    ids=range(27),
)
def test_PA_09_a_patch_that_reaches_out_is_refused_before_any_write(
    box: Path, pristine: Path, text: str
) -> None:
    (box / "p.patch").write_text(text)
    around = sorted(box.iterdir())
    assert isinstance(replay(box / "p.patch", pristine, box / "target"), InvalidPatch)
    assert list((box / "target").iterdir()) == []
    assert sorted(box.iterdir()) == sorted([*around, box / "target"])


def test_links_with_impossible_targets_are_refused(box: Path, pristine: Path) -> None:
    (box / "w" / "l").symlink_to("t" * 4000)
    roundtrip(box, pristine)
    (box / "p.patch").write_text(NEW.format("l", "120000", "t" * 5000) + CUT)
    assert isinstance(replay(box / "p.patch", pristine, box / "t2"), InvalidPatch)


def test_a_plain_git_diff_with_renames_is_taken(box: Path, pristine: Path) -> None:
    work = box / "w"
    git = ["git", "-C", work]
    (work / "src" / "train.py").rename(work / "src" / "a b.py")
    (work / 'n"q').write_text("x\n")
    (work / "README.md").chmod(0o755)
    subprocess.run([*git, "add", "-A"], check=True)
    diff = subprocess.run(
        [*git, "diff", "--cached", "--binary", "-M"], check=True, capture_output=True
    )
    assert b"rename from" in diff.stdout
    (box / "p.patch").write_bytes(diff.stdout)
    assert isinstance(replay(box / "p.patch", pristine, box / "target"), Applied)
    assert seen(box / "target") == seen(work)


def test_a_writer_that_still_runs_cannot_tear_a_capture(
    box: Path, pristine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = box / "w" / "late.txt"
    honest = manifest_of

    def then_write(root: Path, **options: object) -> Manifest:
        manifest = honest(root, **options)
        late.write_text(f"{root}\n")
        return manifest

    monkeypatch.setattr("orchestrator.evidence.capture.manifest_of", then_write)
    assert isinstance(take(box, pristine), ProofFailed)
    assert list((box / "candidate").iterdir()) == []


def test_files_are_given_to_their_owner(box: Path, pristine: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may give files away")
    (box / "copy").mkdir()
    copy_pristine(pristine, box / "copy", exclude=EXCLUDE, owner=(1234, 4321))
    owners = {
        (p.lstat().st_uid, p.lstat().st_gid) for p in (box / "copy", *(box / "copy").rglob("*"))
    }
    assert owners == {(1234, 4321)}
    assert seen(box / "copy") == seen(pristine)


def test_two_thousand_levels_cross(box: Path, pristine: Path) -> None:
    here = os.open(box / "w", os.O_RDONLY)
    for _ in range(2046):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("f", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=here))
    os.close(here)
    taken, applied = roundtrip(box, pristine)
    assert any(entry.path.endswith(b"d/d/f") for entry in applied.manifest.entries)
    assert [left.reason.value for left in taken.left_out] == ["excluded_by_rule"]


def test_a_patch_that_gives_another_tree_fails_the_proof(
    box: Path, pristine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lie(self: GitTrees, before: str, after: str, destination: Path) -> None:
        destination.write_text(NEW.format("new", "100644", "other"))

    (box / "w" / "new").write_text("mine\n")
    monkeypatch.setattr(GitTrees, "diff", lie)
    assert take(box, pristine) == ProofFailed("the patch gives another tree", ("new",))
    assert list((box / "candidate").iterdir()) == []


def test_a_store_that_changes_more_than_the_patch_names_is_not_believed(
    box: Path, pristine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch = box / "p.patch"
    patch.write_text(NEW.format("new", "100644", "y"))

    def drop_all(self: GitTrees, base: str, patch: Path) -> str:
        return self.add(())

    def skip(self: GitTrees, base: str, patch: Path) -> str:
        return base

    for number, lie in enumerate((drop_all, skip)):
        monkeypatch.setattr(GitTrees, "apply", lie)
        assert isinstance(replay(patch, pristine, box / f"t{number}"), InvalidPatch)
