"""What lies in the workspace of an agent without a shell."""

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.evidence.trial import Trials
from tests.e2e.rig import snapshot


@pytest.fixture
def trials(tmp_path: Path) -> Trials:
    for name in ("solution", "workspace"):
        (tmp_path / name / "bench").mkdir(parents=True)
        (tmp_path / name / "bench/run.sh").write_text("shipped\n")
        (tmp_path / name / "bench/run.sh").chmod(0o755)
    unused = cast("Any", None)
    return Trials(
        ctx=cast("Any", SimpleNamespace(users=SimpleNamespace(agent=(os.getuid(), os.getgid())))),
        plan=unused,
        pack=cast("Any", SimpleNamespace(solution=tmp_path / "solution")),
        folder=cast("Any", SimpleNamespace(workspace=tmp_path / "workspace")),
        held=unused,
        deadline_ns=0,
        stopping=threading.Event(),
        putting=threading.Lock(),
    )


def test_what_is_put_is_the_shipped_solution_with_these_files_and_no_others(
    trials: Trials,
) -> None:
    workspace = trials.folder.workspace
    trials.put({"bench/run.sh": "edited\n", "bench/a/b/new.py": "new\n", "bench/a/c.py": "c\n"})
    assert snapshot(workspace) == {
        "bench/run.sh": b"edited\n",
        "bench/a/b/new.py": b"new\n",
        "bench/a/c.py": b"c\n",
    }
    assert os.access(workspace / "bench/run.sh", os.X_OK)
    trials.put({"bench/a/c.py": "c\n"})
    assert snapshot(workspace) == {"bench/run.sh": b"shipped\n", "bench/a/c.py": b"c\n"}
    assert not (workspace / "bench/a/b").exists()
    trials.put({})
    assert snapshot(workspace) == {"bench/run.sh": b"shipped\n"}
    assert not (workspace / "bench/a").exists()
    assert os.access(workspace / "bench/run.sh", os.X_OK)


def test_nothing_is_put_while_somebody_reads_the_workspace(trials: Trials) -> None:
    workspace = trials.folder.workspace
    before = snapshot(workspace)
    with trials.putting:
        worker = threading.Thread(target=trials.put, args=({"bench/run.sh": "edited\n"},))
        worker.start()
        worker.join(0.2)
        assert worker.is_alive()
        assert snapshot(workspace) == before
    worker.join()
    assert snapshot(workspace) == {"bench/run.sh": b"edited\n"}


def test_no_link_is_written_through(trials: Trials, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("kept")
    (trials.folder.workspace / "bench/link").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="symbolic links"):
        trials.put({"bench/link": "edited"})
    assert (tmp_path / "outside").read_text() == "kept"
