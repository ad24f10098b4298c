"""The final evaluator. It alone sees the final rows, and no candidate ever sees this folder.

It reads one checkpoint at CHECKPOINT_DIR, which was validated before, and writes summary.json with
``status`` (``scored``, or ``invalid`` with a ``reason`` of one word), ``metrics`` and
``baselines``, numbers only. Take arrays from the checkpoint and everything else from the anchor;
import and unpickle nothing that a candidate wrote. Measure the start in the same run: a broken
evaluator shows in it.
"""

import json
import os
from pathlib import Path

import numpy as np

ASSETS = Path(os.environ.get("ASSETS_DIR", "/assets"))
Weights = tuple[np.ndarray, np.ndarray]


def load(folder: Path) -> Weights:
    """Read the two arrays of a model; anything else in the file is not looked at."""
    with np.load(folder / "weights.npz", allow_pickle=False) as file:
        return file["w"].astype(np.float64), file["b"].astype(np.float64)


def measure(weights: Weights, x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Compute accuracy and mean log loss (nats) for one model."""
    logits = x @ weights[0] + weights[1]
    loss = np.logaddexp(0.0, np.where(y == 1, -logits, logits))
    return {"accuracy": float(((logits > 0.0) == y).mean()), "log_loss": float(loss.mean())}


def main() -> None:
    """Judge the checkpoint. The start itself is no result, unless a reference run asks for it."""
    start = load(ASSETS / "models/start")
    candidate = load(Path(os.environ.get("CHECKPOINT_DIR", "/ckpt")))
    x, y = (np.load(ASSETS / "data/final" / f"{name}.npy") for name in "xy")
    is_start = all(np.array_equal(a, b) for a, b in zip(candidate, start, strict=True))
    invalid = is_start and os.environ.get("ORCH_REFERENCE_RUN") != "1"
    summary = {
        "status": "invalid" if invalid else "scored",
        "reason": "start_weights" if invalid else "",
        "metrics": measure(candidate, x, y),
        "baselines": {"start": measure(start, x, y)},
    }
    out = Path(os.environ.get("OUTPUT_DIR", "/out"))
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
