"""The built wheel, installed away from the checkout, carries all it needs and nothing else."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNWANTED = re.compile(r"__pycache__|\.py[co]$|(^|/)\.(?!orch)|~$|\.lock\.tmp$")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = "import sys, hatchling.build as b; print(b.build_wheel(sys.argv[1]))"
    answer = subprocess.run(
        [sys.executable, "-c", build, folder],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return folder / answer.stdout.split()[-1]


def test_the_wheel_holds_no_leftovers_and_every_tracked_file(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if UNWANTED.search(name)]
    assert not [name for name in names if name.startswith(("tests/", "scripts/"))]
    for folder in ("harness", "containers", "profiles", "tasks", "templates"):
        tracked = subprocess.run(
            ["git", "-C", ROOT, "ls-files", "-z", folder],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split("\0")[:-1]
        assert tracked
        assert {f"orchestrator/_bundled/{path}" for path in tracked} <= set(names)


def test_an_installed_wheel_finds_what_it_brings_away_from_the_checkout(
    wheel: Path, tmp_path: Path
) -> None:
    installed = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", installed, wheel], check=True, timeout=120)
    brought = ("harness", "containers", "profiles", "tasks", "templates")
    look = (
        "import orchestrator.config as c, receipts\n"
        "from orchestrator.storage.pack import bundled_packs, load_pack\n"
        f"for name in {brought}: print(c.bundled(name))\n"
        "print([load_pack(path).spec.name for path in bundled_packs()])\n"
    )
    answer = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(installed)!r})\n{look}"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    *folders, tasks = answer.stdout.splitlines()
    assert [Path(f) for f in folders] == [installed / "orchestrator/_bundled" / n for n in brought]
    run = installed / "orchestrator/_bundled/templates/task/solution/run.sh"
    assert os.access(run, os.X_OK)
    assert "digits_class0" in tasks
