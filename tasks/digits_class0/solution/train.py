"""Train the starting network as ``method.py`` says and publish a series of checkpoints.

Reads MAX_WALL_TIME_SECONDS and DEADLINE_RESERVE_SECONDS (stop early enough), OUTPUT_DIR (default
/out), SEED and ASSETS_DIR (default /assets). Checkpoints are numbered by gradient steps.
"""

import os
import time
from pathlib import Path

import method
import network as nn
import numpy as np
import rows


def main() -> None:
    """Run the method from the anchor until its epochs are done or the time is up."""
    started = time.monotonic()
    wall = float(os.environ.get("MAX_WALL_TIME_SECONDS", "600"))
    reserve = float(os.environ.get("DEADLINE_RESERVE_SECONDS", "30"))
    assets = Path(os.environ.get("ASSETS_DIR", "/assets"))
    checkpoints = Path(os.environ.get("OUTPUT_DIR", "/out")) / "checkpoints"
    rng = np.random.default_rng(int(os.environ.get("SEED", "0")))

    network = nn.load(assets / "models/training_start")
    data = assets / "data/train"
    retain, forget = rows.read(data, "retain"), rows.read(data, "forget")
    x, targets = method.training_set(network, retain, forget)
    ends = np.linspace(0, method.EPOCHS, method.CHECKPOINTS + 1).round().astype(int)[1:]

    steps = 0
    for epoch in range(1, method.EPOCHS + 1):
        order = rng.permutation(len(x))
        for first in range(0, len(x), method.BATCH):
            batch = order[first : first + method.BATCH]
            nn.step(network, x[batch], targets[batch], method.LEARNING_RATE)
            steps += 1
        out_of_time = time.monotonic() - started > wall - reserve
        if epoch in ends or out_of_time:
            nn.publish(network, checkpoints / f"checkpoint-{steps}")
            print(f"epoch {epoch}: published checkpoint-{steps}", flush=True)
        if out_of_time:
            print("stopped early: the reserve has been reached", flush=True)
            return


if __name__ == "__main__":
    main()
