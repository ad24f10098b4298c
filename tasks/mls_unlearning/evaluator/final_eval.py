"""The final evaluator of mls_unlearning: the measures of every seed, on rows that only it has.

The checkpoint gives tensors alone, one file a seed; the network, its sizes and the class to forget
are the evaluator's own and the anchor's. Members of the membership test are the training rows of
that class, non-members its test rows. An untrained network is measured in the same run: what the
score is worth shows beside it.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measures import measure, over_seeds
from network import Network, predict

SEEDS = (42, 123, 456)


def read(folder: Path) -> tuple[torch.Tensor, list[int]]:
    """Read images and labels."""
    x, y = (np.load(folder / f"{name}.npy", allow_pickle=False) for name in "xy")
    return torch.from_numpy(x), y.tolist()


def untrained(config: dict[str, Any], seed: int) -> Network:
    """Make the network as it is before any training."""
    torch.manual_seed(seed)
    return Network(**config["network"])


def loaded(config: dict[str, Any], file: Path) -> Network:
    """Put the tensors of a file into the network; whatever does not fit is an error."""
    network = untrained(config, 0)
    network.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    return network


def main() -> None:
    """Judge the checkpoint and write summary.json."""
    torch.set_num_threads(1)
    assets = Path(os.environ.get("ASSETS_DIR", "/assets"))
    checkpoint = Path(os.environ.get("CHECKPOINT_DIR", "/ckpt"))
    out = Path(os.environ.get("OUTPUT_DIR", "/out"))
    config = json.loads((assets / "models/start/config.json").read_text(encoding="ascii"))
    (train_x, train_y), (test_x, test_y) = (read(assets / f"data/{n}") for n in ("train", "test"))
    members_x = train_x[torch.tensor(train_y) == config["forget_class"]]

    def measured(network: Network) -> dict[str, float]:
        predicted, confidences = predict(network, test_x)
        _, members = predict(network, members_x)
        return measure(predicted, confidences, test_y, members, config["forget_class"])

    def summarized() -> dict[str, Any]:
        files = {seed: checkpoint / f"seed-{seed}.pt" for seed in SEEDS}
        if not all(file.is_file() for file in files.values()):
            return {"status": "invalid", "reason": "missing_seed"}
        try:
            networks = {seed: loaded(config, file) for seed, file in files.items()}
        except RuntimeError:  # what load_state_dict says of other names and other shapes
            return {"status": "invalid", "reason": "another_network"}
        metrics = over_seeds({seed: measured(network) for seed, network in networks.items()})
        return {"status": "scored", "metrics": metrics}

    baselines = {"untrained": measured(untrained(config, SEEDS[0]))}
    summary = {**summarized(), "baselines": baselines}
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
