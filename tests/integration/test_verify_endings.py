"""However a run ends, what is there verifies: no more receipts than it calls for, and no fewer."""

import json
from pathlib import Path

import pytest

from receipts.statement import PhaseName
from receipts.verify import verify
from receipts.verify_find import find
from receipts.verify_model import Report, Verdict, Wanted
from tests.e2e.rig import PUBLISH, THREE, Rig

pytestmark = pytest.mark.docker

GATE, REPLAY, VALIDATE = PhaseName.GATE, PhaseName.REPLAY, PhaseName.VALIDATE


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def _phases(rig: Rig) -> dict[str, list[str]]:
    """Verify everything, and return which receipts each run has."""
    report = verify(rig.runs, Wanted(whole_campaign=True))
    assert report.faults == []
    assert report.verdict is Verdict.UNAUTHENTICATED
    runs = find(rig.runs, Report(authenticated=False)).runs
    return {run.folder.name: [receipt.path.name for receipt in run.receipts] for run in runs}


def test_an_exploration_without_a_candidate(rig: Rig) -> None:
    rig.explore(rig.pack(steps=({"run": "/opt/harness/no_candidate.sh nothing helped"},)))
    assert _phases(rig) == {"attempt-001": ["001-explore.json"]}


def test_a_replay_without_a_checkpoint(rig: Rig) -> None:
    attempt = rig.explore(rig.pack("exit 7\n"))
    rig.replay(attempt)
    receipts = ["003-gate.json", "004-replay.json", "005-validate.json"]
    assert _phases(rig)["replay-001"] == receipts
    statement = json.loads((attempt / "replay-001" / "artifacts.json").read_text())
    assert statement["artifacts"] == []


def test_a_replay_with_none_that_is_valid(rig: Rig) -> None:
    run = 'cd "$OUTPUT_DIR"\nmkdir -p checkpoints/checkpoint-7\ntouch checkpoints/checkpoint-7/x\n'
    rig.replay(rig.explore(rig.pack(run)))
    assert _phases(rig)["replay-001"][-1] == "005-validate.json"


def test_a_replay_alone_and_its_scoring_later(rig: Rig) -> None:
    attempt = rig.explore(rig.pack())
    replay = rig.replay(attempt, "--through", "validate")
    assert "score-001" not in _phases(rig)
    assert rig.orch("score", replay).code == 0
    assert _phases(rig)["score-001"] == ["006-score.json"]


def test_a_scoring_that_is_invalid(rig: Rig) -> None:
    scorer = """echo '{"status": "invalid", "reason": "start_weights"}' > /out/summary.json\n"""
    rig.replay(rig.explore(rig.pack(scorer=scorer)))
    assert _phases(rig)["score-001"] == ["006-score.json"]


def test_a_scoring_that_crashed(rig: Rig) -> None:
    attempt = rig.explore(rig.pack(PUBLISH + "publish 5 0.5\n", scorer="exit 9\n"))
    assert rig.orch("replay", attempt).code == 75
    assert rig.orch("score", attempt / "replay-001").code in {0, 75}
    assert _phases(rig)["score-001"] == ["006-score.json"]
    assert _phases(rig)["score-002"] == ["006-score.json"]


def test_a_patch_that_was_handed_in(rig: Rig) -> None:
    pack = rig.pack(THREE)
    patch = rig.explore(pack) / "candidate" / "candidate.patch"
    done = rig.orch("submit-patch", pack, patch, "--json")
    assert done.code == 0, done.err
    rig.replay(Path(done.json()[-1]["path"]))
    entered = find(Path(done.json()[-1]["path"]), Report(authenticated=False)).runs
    assert [[r.path.name for r in run.receipts] for run in entered] == [
        ["001-submit.json"],
        ["002-gate.json", "003-replay.json", "004-validate.json"],
        ["005-score.json"],
    ]
    assert _phases(rig)


def test_checkpoints_that_existed_already(rig: Rig, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "weights.txt").write_text("0.7\n")
    done = rig.orch("score", rig.pack(), "--checkpoint", f"7={folder}")
    assert done.code == 0, done.err
    assert _phases(rig) == {
        "attempt-001": ["001-submit.json"],
        "replay-001": ["002-collect.json", "003-validate.json"],
        "score-001": ["004-score.json"],
    }


def test_a_gate_that_refuses(rig: Rig) -> None:
    attempt = rig.explore(rig.pack())
    plan = json.loads((attempt / "plan.json").read_text())
    (asset,) = Path(plan["materials"]["data/train"]["source"]).iterdir()
    asset.parent.chmod(0o755)
    asset.chmod(0o644)
    asset.write_text("changed")
    assert rig.orch("replay", attempt).code == 75
    assert _phases(rig)["replay-001"] == ["003-gate.json"]
