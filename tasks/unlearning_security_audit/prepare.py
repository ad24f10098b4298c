"""Make the assets of unlearning_security_audit: ``python3 prepare.py OUT``, the pack beside it.

Everything is drawn from one seed; ``evaluator/backdoor.py`` has the recipe.
"""

import os
import sys
from pathlib import Path

import numpy as np

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent / "evaluator"))

import backdoor  # noqa: E402 - the pack's own module, found beside this script


def save_weights(folder: Path, weights: backdoor.Array) -> None:
    """Write a model: the bias is the last of its weights."""
    folder.mkdir(parents=True)
    np.save(folder / "weights.npy", weights, allow_pickle=False)


def save_rows(folder: Path, **named: backdoor.Rows) -> None:
    """Write sets of rows as plain arrays."""
    folder.mkdir(parents=True)
    for name, rows in named.items():
        np.save(folder / f"{name}_x.npy", rows.x, allow_pickle=False)
        np.save(folder / f"{name}_y.npy", rows.y, allow_pickle=False)


def main(out: Path, seed: int) -> None:
    """Write every asset of task.yaml under ``out``."""
    data = backdoor.make_data(seed)
    save_weights(out / "models/poisoned", backdoor.poison(data))
    save_weights(out / "models/retrained", backdoor.train(data.retain))
    save_rows(out / "data/train", retain=data.retain, forget=data.forget)
    save_rows(out / "data/final", clean=data.clean, attack=data.attack)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(os.environ.get("DATA_SEED", "0")))
