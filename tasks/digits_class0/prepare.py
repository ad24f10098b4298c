"""Make the assets of digits_class0 from scikit-learn's handwritten digits.

Run as ``python3 prepare.py OUT`` with the pack beside it. The same machine code gives the same
bytes; ``prepare.env`` in task.yaml pins what would otherwise depend on the processor.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent / "solution"))

import network as nn  # noqa: E402 - the pack's own module, found beside this script
from rows import Rows  # noqa: E402

FORGET = 0
HIDDEN = 64
CLASSES = 10
EPOCHS = 40
LEARNING_RATE = 0.05
BATCH = 32
TEST_SHARE = 0.4
PROXY_SHARE = 0.15


def train(rows: Rows, seed: int) -> nn.Network:
    """Train a fresh network on ``rows``."""
    rng = np.random.default_rng(seed)
    network = nn.initial(rows.x.shape[1], HIDDEN, CLASSES, rng)
    targets = nn.one_hot(rows.y, CLASSES)
    for _ in range(EPOCHS):
        order = rng.permutation(len(rows.x))
        for first in range(0, len(order), BATCH):
            batch = order[first : first + BATCH]
            nn.step(network, rows.x[batch], targets[batch], LEARNING_RATE)
    return network


def split(rows: Rows, seed: int) -> tuple[Rows, Rows, Rows]:
    """Cut into train, validation and test, each digit in the same shares."""
    rng = np.random.default_rng(seed)
    parts: tuple[list[NDArray[np.int64]], ...] = ([], [], [])
    for digit in range(CLASSES):
        found = rng.permutation(np.flatnonzero(rows.y == digit))
        test = round(len(found) * TEST_SHARE)
        proxy = round((len(found) - test) * PROXY_SHARE)
        for part, piece in zip(
            parts, np.split(found, [len(found) - test - proxy, -test]), strict=True
        ):
            part.append(piece)
    train_rows, validation, test_rows = (np.sort(np.concatenate(part)) for part in parts)
    return take(rows, train_rows), take(rows, validation), take(rows, test_rows)


def take(rows: Rows, chosen: NDArray[np.int64] | NDArray[np.bool_]) -> Rows:
    """Select rows."""
    return Rows(rows.x[chosen], rows.y[chosen])


def save_rows(folder: Path, **named: Rows) -> None:
    """Write sets of rows as plain arrays."""
    folder.mkdir(parents=True)
    for name, rows in named.items():
        np.save(folder / f"{name}_x.npy", rows.x, allow_pickle=False)
        np.save(folder / f"{name}_y.npy", rows.y, allow_pickle=False)


def save_model(folder: Path, network: nn.Network) -> None:
    """Write a model; its configuration is what evaluators rely on."""
    nn.publish(network, folder)
    config = {"inputs": 64, "hidden": HIDDEN, "classes": CLASSES, "forget_class": FORGET}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="ascii")


def main(out: Path, seed: int) -> None:
    """Write every asset of task.yaml under ``out``."""
    digits = load_digits()
    everything = Rows(digits.data / 16.0, digits.target.astype(np.int64))
    training, validation, test = split(everything, seed)
    forget, retain = (take(training, training.y == FORGET), take(training, training.y != FORGET))
    test_forget, test_retain = take(test, test.y == FORGET), take(test, test.y != FORGET)

    save_model(out / "models/training_start", train(training, seed + 1))
    save_model(out / "models/retain_reference", train(retain, seed + 2))
    save_rows(out / "data/train", retain=retain, forget=forget)
    save_rows(out / "data/proxy", retain=take(validation, validation.y != FORGET))
    save_rows(out / "data/final", retain=test_retain, forget=test_forget)
    save_rows(out / "data/members", forget=forget)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(os.environ.get("SPLIT_SEED", "20240607")))
