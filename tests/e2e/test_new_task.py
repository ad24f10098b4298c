"""A pack that ``orch task new`` made, from nothing to its reference points."""

import json
from pathlib import Path

import pytest

from orchestrator.report.lookup import path_id
from orchestrator.report.references import HERE
from orchestrator.storage.layout import AttemptFolder
from orchestrator.storage.pack import load_pack
from tests.e2e.rig import Rig, final


def test_a_new_task_goes_all_the_way_and_measures_its_own_baseline(
    rig: Rig, tmp_path: Path
) -> None:
    task = tmp_path / "my_task"
    assert rig.call("task", "new", task).code == 0
    assert rig.call("task", "prepare", task).code == 0
    checked = rig.call("task", "check", task)
    assert (checked.code, checked.out) == (0, f"{task}: no faults\n")

    before = load_pack(task)
    done = rig.call("task", "baseline", task)
    assert done.code == 0, done.err
    after = load_pack(task)
    assert before.digest in done.out
    assert after.digest in done.out
    start, shipped = after.spec.reference
    assert (start.name, start.value) == ("start", pytest.approx(0.43))
    assert (shipped.name, shipped.value) == ("shipped", pytest.approx(0.933))
    assert set(shipped.components) == {"log_loss"}
    digest = before.digest.rpartition(":")[2][:12]
    for point in (start, shipped):
        assert "scoring " in point.note
        assert f"of pack {digest}" in point.note
        assert " of memory" in point.note
    assert shipped.note.startswith("replay ")

    attempt = rig.explore(task)
    replay = rig.replay(attempt)
    assert final(replay) == "validated"
    best = json.loads((replay / "score-001/summary.json").read_text())["best"]
    assert best["value"] > (shipped.value or 0.0) > (start.value or 0.0)
    assert rig.call("verify", attempt).code == 3
    shown = rig.call("show", path_id(AttemptFolder(attempt))).out
    assert "Reference points" in shown
    for name in (HERE, "start", "shipped"):
        assert name in shown


def test_a_shipped_solution_without_a_score_is_the_packs_fault(rig: Rig) -> None:
    scorer = 'echo \'{"status": "scored", "metrics": {"score": 0.5}}\' > /out/summary.json\n'
    pack = rig.pack("exit 3\n", scorer=scorer)
    before = (pack / "task.yaml").read_bytes()
    done = rig.call("task", "baseline", pack)
    assert done.code == 65
    assert "shipped came to no score (terminal behavior)" in done.err
    assert "orch show " in done.err
    assert (pack / "task.yaml").read_bytes() == before
    assert len(list(rig.runs.glob("*/attempt-001/replay-001"))) == 2
