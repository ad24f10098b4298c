"""The final evaluator of digits_class0.

unlearn_score = (retain_acc + (1 - forget_acc) + (1 - forget_mia_auc)) / 3, after MLS-Bench.
retain_acc and forget_acc are accuracies on held-out test rows. forget_mia_auc is the Mann-Whitney
AUC of the greatest softmax probability, members being the forget rows that were trained on and
non-members the held-out ones of the same digit; an AUC below 0.5 is rewarded.

The checkpoint gives weights alone; sizes and the forgotten digit come from the anchor. The start
and the reference are measured again in every run.
"""

import json
import os
from pathlib import Path

import numpy as np

Weights = dict[str, np.ndarray]


def load(folder: Path, config: dict[str, int]) -> Weights:
    """Read the four arrays of a model; anything else in the file is not looked at."""
    sizes = config["inputs"], config["hidden"], config["classes"]
    shapes = {"w1": sizes[:2], "b1": sizes[1:2], "w2": sizes[1:], "b2": sizes[2:]}
    with np.load(folder / "weights.npz", allow_pickle=False) as file:
        weights = {name: file[name].astype(np.float64) for name in shapes}
    for name, shape in shapes.items():
        if weights[name].shape != shape:
            raise ValueError(f"{name} is {weights[name].shape}, the anchor has {shape}")
    return weights


def probabilities(weights: Weights, x: np.ndarray) -> np.ndarray:
    """Return the softmax output for each row."""
    hidden = np.maximum(x @ weights["w1"] + weights["b1"], 0.0)
    logits = hidden @ weights["w2"] + weights["b2"]
    exp = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exp / exp.sum(axis=1, keepdims=True)


def mann_whitney_auc(members: np.ndarray, others: np.ndarray) -> float:
    """Return the chance that a member ranks above a non-member, ties counting half."""
    if not (np.isfinite(members).all() and np.isfinite(others).all()):
        return float("nan")
    above = (members[:, None] > others[None, :]).mean()
    equal = (members[:, None] == others[None, :]).mean()
    return float(above + equal / 2.0)


def measure(weights: Weights, data: Path) -> dict[str, float]:
    """Compute the score and its parts for one model."""

    def rows(folder: str, name: str) -> tuple[np.ndarray, np.ndarray]:
        x, y = (np.load(data / folder / f"{name}_{axis}.npy") for axis in "xy")
        return probabilities(weights, x), y

    (retain, retain_y), (forget, forget_y) = rows("final", "retain"), rows("final", "forget")
    members, _ = rows("members", "forget")
    retain_acc = float((retain.argmax(axis=1) == retain_y).mean())
    forget_acc = float((forget.argmax(axis=1) == forget_y).mean())
    auc = mann_whitney_auc(members.max(axis=1), forget.max(axis=1))
    return {
        "unlearn_score": (retain_acc + (1.0 - forget_acc) + (1.0 - auc)) / 3.0,
        "retain_acc": retain_acc,
        "forget_acc": forget_acc,
        "forget_mia_auc": auc,
    }


def main() -> None:
    """Judge the checkpoint and write summary.json."""
    assets = Path(os.environ.get("ASSETS_DIR", "/assets"))
    checkpoint = Path(os.environ.get("CHECKPOINT_DIR", "/ckpt"))
    out = Path(os.environ.get("OUTPUT_DIR", "/out"))
    anchor = assets / "models/training_start"
    config = json.loads((anchor / "config.json").read_text(encoding="ascii"))
    start, candidate = load(anchor, config), load(checkpoint, config)
    reference = load(assets / "models/retain_reference", config)

    is_start = all(np.array_equal(candidate[name], start[name]) for name in start)
    invalid = is_start and os.environ.get("ORCH_REFERENCE_RUN") != "1"
    summary = {
        "status": "invalid" if invalid else "scored",
        "reason": "start_weights" if invalid else "",
        "metrics": measure(candidate, assets / "data"),
        "baselines": {
            "start": measure(start, assets / "data"),
            "reference": measure(reference, assets / "data"),
        },
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
