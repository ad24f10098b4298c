"""The proxy of digits_class0: (retain validation accuracy + 1 - forget-train accuracy) / 2.

``fast_eval.py CHECKPOINT_DIR`` prints one JSON object. It is a guide while exploring; the final
score is taken on rows that are not here.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np


def accuracy(weights: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray) -> float:
    """Return the share of rows whose greatest logit is the label."""
    hidden = np.maximum(x @ weights["w1"] + weights["b1"], 0.0)
    logits = hidden @ weights["w2"] + weights["b2"]
    return float((logits.argmax(axis=1) == y).mean())


def main() -> None:
    """Evaluate one checkpoint folder."""
    if len(sys.argv) != 2:  # noqa: PLR2004 - the script and its one argument
        sys.exit("usage: fast_eval.py CHECKPOINT_DIR")
    data = Path(os.environ.get("ASSETS_DIR", "/assets")) / "data"
    with np.load(Path(sys.argv[1]) / "weights.npz", allow_pickle=False) as file:
        weights = {name: file[name] for name in file.files}
    retain, forget = (
        accuracy(weights, np.load(folder / f"{name}_x.npy"), np.load(folder / f"{name}_y.npy"))
        for folder, name in ((data / "proxy", "retain"), (data / "train", "forget"))
    )
    value = (retain + 1.0 - forget) / 2.0
    parts = {"retain_validation_acc": retain, "forget_train_acc": forget}
    print(json.dumps({"metric": "tradeoff", "value": value, "components": parts}))


if __name__ == "__main__":
    main()
