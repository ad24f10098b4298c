"""Capture of 20,000 files against what git itself takes for the same tree, in one run.

Run: python scripts/bench_capture.py [FILES]. Prints seconds and their ratio; nothing is asserted.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from orchestrator.adapters.git_store import GitTreeStore
from orchestrator.evidence.apply import Applied, apply
from orchestrator.evidence.capture import Capture, capture

EXCLUDE = ("__pycache__/", "*.pyc", ".cache/", ".git/")


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        for name in ("pristine", "workspace", "candidate", "target"):
            (root / name).mkdir()
        for number in range(count):
            folder = root / "workspace" / f"d{number % 100}"
            folder.mkdir(exist_ok=True)
            (folder / f"f{number}.py").write_text(f"x = {number}\n" * 20)
        ours, taken = timed(lambda: take(root))
        if not isinstance(taken, Capture):
            raise SystemExit(taken)
        print(f"capture, proof included: {ours:.2f} s ({taken.patch_size} bytes of patch)")
        replay, applied = timed(lambda: put(root, taken))
        if not isinstance(applied, Applied):
            raise SystemExit(applied)
        print(f"apply, files written and read back: {replay:.2f} s")
        theirs, _ = timed(lambda: plain_git(root / "workspace"))
        print(f"git init, add -A, diff --cached --binary: {theirs:.2f} s")
        print(f"{count} files: capture / git = {ours / theirs:.2f}")


def timed(work: Callable[[], object]) -> tuple[float, object]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def take(root: Path) -> object:
    return capture(
        root / "workspace",
        root / "pristine",
        exclude=EXCLUDE,
        policy="off",
        store=GitTreeStore(),
        destination=root / "candidate",
    )


def put(root: Path, taken: Capture) -> object:
    return apply(
        root / "candidate" / "candidate.patch",
        root / "pristine",
        root / "target",
        store=GitTreeStore(),
        exclude=EXCLUDE,
        policy="off",
        expected_sha256=taken.patch_sha256,
        expected_manifest_digest=taken.manifest_digest,
    )


def plain_git(workspace: Path) -> None:
    subprocess.run(["git", "init", "-q", "."], cwd=workspace, check=True)
    subprocess.run(["git", "add", "-A"], cwd=workspace, check=True)
    with Path(os.devnull).open("wb") as nowhere:
        subprocess.run(
            ["git", "diff", "--cached", "--binary"], cwd=workspace, stdout=nowhere, check=True
        )


if __name__ == "__main__":
    main()
