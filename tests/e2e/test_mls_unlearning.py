"""The task mls_unlearning from a recorded conversation to a verified leaderboard row."""

import json
import re
import shutil
from pathlib import Path

import pytest

from orchestrator.config import bundled
from tests.e2e.rig import Rig, events, final, last
from tests.large_images import require_image

SEEDS = ("42", "123", "456")


@pytest.fixture
def pack(rig: Rig) -> Path:
    """The task on digits, trained for no longer than it takes to see that it is."""
    require_image("torch-cpu")
    place = rig.root / "pack"
    shutil.copytree(bundled("tasks") / "mls_unlearning", place)
    task = place / "task.yaml"
    text = task.read_text()
    for name, epochs in (("PRETRAIN", 2), ("UNLEARN", 1)):
        text, found = re.subn(rf'({name}_EPOCHS): "\d+"', rf'\1: "{epochs}"', text)
        assert found == 1
    task.write_text(text)
    done = rig.call("task", "prepare", place)
    assert done.code == 0, done.err
    return place


def test_a_recorded_model_edits_tests_three_times_and_gets_a_row_for_each_seed(
    rig: Rig, pack: Path
) -> None:
    conversation = bundled("tasks") / "mls_unlearning/demo.jsonl"
    attempt = rig.explore(pack, "--agent", "editor", "--model", f"recorded/{conversation}")
    tests = [e["data"] for e in events(attempt) if e["data"].get("audit") == "edit_test"]
    assert [(test["exit_code"], test["edits"]) for test in tests] == [(0, 0), (0, 1), (0, 3)]
    printed = (attempt / "transcript.jsonl").read_text()
    for seed in (*SEEDS, "mean", "sd"):
        assert f"TEST_METRICS benchmark=digits-class0 seed={seed} unlearn_score=" in printed
    assert last(attempt, "captured")["reason"] == "agent_explicit_submit"

    replay = rig.replay(attempt)
    assert final(replay) == "validated"
    (published,) = (replay / "checkpoints").iterdir()
    assert {file.name for file in published.iterdir()} == {
        f"seed-{seed}.safetensors" for seed in SEEDS
    }
    # Who replays does not see the validation rows, and prints no guess at the score.
    assert "TEST_METRICS" not in (replay / "logs/stdout.log").read_text()
    assert final(replay / "score-001") == "scored"

    rows = rig.call("compare", pack, "--json").json()
    assert [row["seed"] for row in rows] == [*SEEDS, "mean"]
    scores = [row["metrics"]["unlearn_score"] for row in rows]
    assert scores[3] == pytest.approx(sum(scores[:3]) / 3)
    assert rows[3]["sd"]["unlearn_score"] > 0
    assert json.loads((replay / "score-001/summary.json").read_text())["best"]["value"] == scores[3]
    assert "below 0.5 is rewarded" in rig.call("show", attempt).out

    (start,) = Path(rig.variables["ORCH_ASSETS"]).glob("*/models/start/*")
    handed_in = rig.call("score", pack, "--checkpoint", f"1={start}", "--json").json()[-1]
    summary = json.loads((Path(handed_in["path"]) / "summary.json").read_text())
    assert (summary["status"], summary["best"]) == ("invalid", None)
    assert summary["checkpoints"][0]["reason"] == "start_weights"
    rig.nothing_left()
