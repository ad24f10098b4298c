"""Random trees and random edits cross as patches, to the byte."""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from orchestrator.adapters.git_store import GitTreeStore
from orchestrator.evidence.apply import Applied, apply
from orchestrator.evidence.capture import Capture, capture
from orchestrator.evidence.tree import manifest_of

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

NAMES = st.one_of(
    st.sampled_from([b"a", b"b", b"A", b"a b", b"-x", b"git~1", b".gitignore", b".gitattributes"]),
    st.binary(min_size=1, max_size=6).filter(
        lambda n: (
            b"/" not in n and b"\0" not in n and n not in {b".", b".."} and n.lower() != b".git"
        )
    ),
)
LINES = st.sampled_from(
    [
        b"x\n",
        b"y\n",
        b"\n",
        b" \n",
        b"\t\n",
        b"a\r\n",
        b"\r",
        b"+x\n",
        b"-x\n",
        b"\\ No newline\n",
        b"diff --git a/x b/x\n",
        b"@@ -1 +1 @@\n",
        b"$Id$\n",
        b"* text eol=crlf ident filter=x\n",
        b"\0",
        b"\xff\n",
        b"end",
    ]
)
CONTENT = st.one_of(st.lists(LINES, max_size=12).map(b"".join), st.binary(max_size=40))
FILES = st.tuples(st.just("file"), CONTENT, st.booleans())
TARGETS = st.binary(min_size=1, max_size=9).filter(lambda target: b"\0" not in target)
LINKS = st.tuples(st.just("link"), TARGETS, st.just(False))
TREES = st.dictionaries(
    st.lists(NAMES, min_size=1, max_size=3).map(b"/".join), st.one_of(FILES, LINKS), max_size=7
)


def build(root: Path, tree: dict[bytes, tuple[str, bytes, bool]]) -> None:
    """Make a tree; a path that lies below a file of it is passed over."""
    for path, (kind, content, executable) in sorted(tree.items()):
        where = os.path.join(os.fsencode(root), path)  # noqa: PTH118 - bytes
        try:
            os.makedirs(os.path.dirname(where), exist_ok=True)  # noqa: PTH103, PTH120
            if kind == "link":
                os.symlink(content, where)  # noqa: PTH211 - bytes
            else:
                descriptor = os.open(where, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)
                os.write(descriptor, content)
                os.fchmod(descriptor, 0o755 if executable else 0o644)
                os.close(descriptor)
        except OSError:
            continue


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(before=TREES, after=TREES, keep=st.booleans())
@example(
    before={b"b /c": ("file", b"d", False)},
    after={b" /a": ("file", b"", False), b"b /c": ("file", b"d", True)},
    keep=True,
)
def test_any_edit_of_any_tree_crosses(
    before: dict[bytes, tuple[str, bytes, bool]],
    after: dict[bytes, tuple[str, bytes, bool]],
    keep: bool,
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        box = Path(scratch)
        for name in ("pristine", "workspace", "candidate", "target"):
            (box / name).mkdir()
        build(box / "pristine", before)
        build(box / "workspace", {**before, **after} if keep else after)
        store = GitTreeStore()
        taken = capture(
            box / "workspace",
            box / "pristine",
            exclude=(),
            policy="off",
            store=store,
            destination=box / "candidate",
        )
        assert isinstance(taken, Capture), taken
        patch = box / "candidate" / "candidate.patch"
        assert taken.is_empty == (patch.stat().st_size == 0)
        applied = apply(
            patch,
            box / "pristine",
            box / "target",
            store=store,
            exclude=(),
            policy="off",
            expected_sha256=hashlib.sha256(patch.read_bytes()).hexdigest(),
            expected_manifest_digest=taken.manifest_digest,
        )
        assert isinstance(applied, Applied), applied
        assert manifest_of(box / "target").entries == manifest_of(box / "workspace").entries
