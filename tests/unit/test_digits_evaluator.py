"""The evaluator and the proxy of digits_class0 on data small enough to score by hand."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.config import bundled

PACK = bundled("tasks") / "digits_class0"
X = np.eye(3)
"""Three inputs; the network below answers with the class of the same number."""


def _weights(gain: float = 9.0, *, silent: int | None = None) -> dict[str, np.ndarray]:
    """A network that reads the inputs off, unless it has forgotten class ``silent``."""
    out = gain * np.eye(3)
    if silent is not None:
        out[:, silent] = -gain
    return {"w1": np.eye(3), "b1": np.zeros(3), "w2": out, "b2": np.zeros(3)}


def _model(folder: Path, weights: dict[str, np.ndarray]) -> Path:
    folder.mkdir(parents=True)
    np.savez(folder / "weights.npz", **weights)
    return folder


@pytest.fixture
def assets(tmp_path: Path) -> Path:
    root = tmp_path / "assets"
    start = _model(root / "models/training_start", _weights())
    config = {"inputs": 3, "hidden": 3, "classes": 3, "forget_class": 0}
    (start / "config.json").write_text(json.dumps(config))
    _model(root / "models/retain_reference", _weights(silent=0))
    sets = {
        "data/final/retain": ([1, 2, 2, 1], [1, 2, 2, 2]),
        "data/final/forget": ([0, 0], [0, 0]),
        "data/members/forget": ([0, 0, 0], [0, 0, 0]),
        "data/proxy/retain": ([1, 2], [1, 2]),
        "data/train/forget": ([0], [0]),
    }
    for name, (inputs, labels) in sets.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path.with_name(f"{path.name}_x.npy"), X[inputs])
        np.save(path.with_name(f"{path.name}_y.npy"), np.array(labels))
    return root


def _score(assets: Path, checkpoint: Path, **env: str) -> dict[str, Any]:
    out = checkpoint.parent / "out"
    out.mkdir(exist_ok=True)
    places = {"ASSETS_DIR": assets, "CHECKPOINT_DIR": checkpoint, "OUTPUT_DIR": out}
    subprocess.run(
        [sys.executable, PACK / "evaluator/final_eval.py"],
        env={"PATH": os.environ["PATH"], **{k: str(v) for k, v in places.items()}, **env},
        check=True,
        capture_output=True,
        timeout=60,
    )
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary


def test_the_score_is_the_mean_of_its_three_parts(assets: Path, tmp_path: Path) -> None:
    summary = _score(assets, _model(tmp_path / "ckpt", _weights(5.0, silent=0)))
    assert (summary["status"], summary["reason"]) == ("scored", "")
    assert summary["metrics"] == {
        "unlearn_score": pytest.approx((0.75 + 1 + 0.5) / 3),
        "retain_acc": 0.75,
        "forget_acc": 0.0,
        "forget_mia_auc": 0.5,
    }
    assert summary["baselines"]["start"]["forget_acc"] == 1.0
    assert summary["baselines"]["reference"]["forget_acc"] == 0.0


def test_the_start_handed_in_is_invalid_unless_it_is_a_reference_run(
    assets: Path, tmp_path: Path
) -> None:
    checkpoint = _model(tmp_path / "ckpt", _weights())
    summary = _score(assets, checkpoint)
    assert (summary["status"], summary["reason"]) == ("invalid", "start_weights")
    assert _score(assets, checkpoint, ORCH_REFERENCE_RUN="1")["status"] == "scored"


def test_a_members_confidence_above_a_non_members_costs(assets: Path, tmp_path: Path) -> None:
    np.save(assets / "data/members/forget_x.npy", 2 * X[[0, 0, 1]])
    summary = _score(assets, _model(tmp_path / "ckpt", _weights(1.0)))
    assert summary["metrics"]["forget_mia_auc"] == 1.0
    assert summary["metrics"]["unlearn_score"] == 0.25  # retain_acc alone is left
    np.save(assets / "data/members/forget_x.npy", np.stack([2 * X[0], X[0] / 2]))
    assert _score(assets, tmp_path / "ckpt")["metrics"]["forget_mia_auc"] == 0.5


def test_nonfinite_weights_give_a_score_that_is_no_number(assets: Path, tmp_path: Path) -> None:
    weights = {**_weights(), "w2": np.full((3, 3), np.nan)}
    score = _score(assets, _model(tmp_path / "ckpt", weights))["metrics"]["unlearn_score"]
    assert np.isnan(score)


def test_sizes_come_from_the_anchor_never_from_the_checkpoint(assets: Path, tmp_path: Path) -> None:
    checkpoint = _model(tmp_path / "ckpt", {**_weights(), "b2": np.zeros(1)})
    with pytest.raises(subprocess.CalledProcessError):
        _score(assets, checkpoint)


def test_the_proxy_weighs_keeping_against_forgetting(assets: Path, tmp_path: Path) -> None:
    for weights, value in ((_weights(), 0.5), (_weights(silent=0), 1.0)):
        checkpoint = _model(tmp_path / f"ckpt-{value}", weights)
        shown = subprocess.run(
            [sys.executable, PACK / "proxy/fast_eval.py", checkpoint],
            env={"PATH": os.environ["PATH"], "ASSETS_DIR": str(assets)},
            check=True,
            capture_output=True,
            timeout=60,
        )
        assert json.loads(shown.stdout)["metric"] == "tradeoff"
        assert json.loads(shown.stdout)["value"] == value
