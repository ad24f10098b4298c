"""The final evaluator of mls_unlearning: the measures of every seed, on rows that only it has.

The checkpoint gives tensors alone, one file a seed; the network, its sizes and the class to forget
are the evaluator's own and the anchor's. Members of the membership test are the training rows of
that class, non-members its test rows. The untrained start is measured in the same run: what the
score is worth shows beside it.
"""

import json
import os
from pathlib import Path

import numpy as np
import torch
from measures import measure, over_seeds
from network import Network, predict, read_weights

SEEDS = (42, 123, 456)


def read(folder: Path) -> tuple[torch.Tensor, list[int]]:
    """Read images and labels."""
    x, y = (np.load(folder / f"{name}.npy", allow_pickle=False) for name in "xy")
    return torch.from_numpy(x), y.tolist()


def networks(folder: Path, sizes: dict[str, int]) -> dict[int, Network]:
    """Put the tensors of every seed into a network; the validator has held them to the start's."""
    found = {}
    for seed in SEEDS:
        found[seed] = Network(**sizes)
        found[seed].load_state_dict(read_weights(folder / f"seed-{seed}.safetensors"))
    return found


def same(one: Network, other: Network) -> bool:
    """Tell whether two networks have the same weights."""
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(first, second) for first, second in pairs)


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

    start, candidate = (
        networks(f, config["network"]) for f in (assets / "models/start", checkpoint)
    )
    is_start = any(same(start[seed], candidate[seed]) for seed in SEEDS)
    invalid = is_start and os.environ.get("ORCH_REFERENCE_RUN") != "1"
    summary = {
        "status": "invalid" if invalid else "scored",
        "reason": "start_weights" if invalid else "",
        "metrics": over_seeds({seed: measured(network) for seed, network in candidate.items()}),
        "baselines": {
            "start": over_seeds({seed: measured(network) for seed, network in start.items()})
        },
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
