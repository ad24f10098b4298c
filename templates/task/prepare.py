"""Make every asset of this task: ``python3 prepare.py OUT`` writes one folder for each below OUT.

It runs in a container of its own, which sees this pack and no network. The same bytes must come out
on every machine, for task.yaml locks their digests: take a fixed seed and round what was computed.
No phase of a candidate ever sees this file, for whoever has its seed has the final rows.
"""

import sys
from pathlib import Path

import numpy as np

SEED = 20240607
FEATURES = 8
WRONG = 0.15
"""Share of training labels that are wrong."""


def rows(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw rows and their true classes; two of the eight features say nothing."""
    x = rng.uniform(-1.0, 1.0, size=(count, FEATURES)).round(3)
    truth = np.array([3.0, -2.0, 1.5, -1.0, 1.0, 0.5, 0.0, 0.0])
    return x, (x @ truth + 0.4 > 0.0).astype(np.int64)


def save(folder: Path, **arrays: np.ndarray) -> None:
    """Write arrays as plain files."""
    folder.mkdir(parents=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)


def main(out: Path) -> None:
    """Write the assets that task.yaml names."""
    rng = np.random.default_rng(SEED)
    start = out / "models/start"
    start.mkdir(parents=True)
    np.savez(start / "weights.npz", w=np.zeros(FEATURES), b=np.zeros(1))
    x, y = rows(rng, 600)
    wrong = rng.random(len(y)) < WRONG
    save(out / "data/train", x=x, y=np.where(wrong, 1 - y, y))
    for name, count in (("proxy", 300), ("final", 1000)):
        x, y = rows(rng, count)
        save(out / "data" / name, x=x, y=y)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
