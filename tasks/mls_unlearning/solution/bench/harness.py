"""The fixed harness: for every seed, train the start on all classes, then make it forget one.

Reads PRETRAIN_EPOCHS, UNLEARN_EPOCHS and BATCH (the task's settings), MAX_WALL_TIME_SECONDS and
DEADLINE_RESERVE_SECONDS (a seed whose share of the time is over stops unlearning early), ASSETS_DIR
(default /assets) and OUTPUT_DIR (default /out). Publishes one checkpoint, numbered by steps of
unlearning, that holds the weights of every seed. Where validation rows are there, that is in a
test, it measures on them and prints a line for each seed.
"""

import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody uses

from bench.custom import UnlearningMethod
from bench.measures import measure, over_seeds
from bench.network import Network, predict, read_weights, write_weights

SEEDS = (42, 123, 456)
LEARNING_RATE = 1e-3
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Rows:
    """Images as bytes ``(N, C, H, W)``, and their labels ``(N,)``."""

    x: torch.Tensor
    y: torch.Tensor

    def where(self, chosen: torch.Tensor) -> "Rows":
        """Select rows by a mask or by numbers."""
        return Rows(self.x[chosen], self.y[chosen])

    def batch(self, chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Put rows on the device, images with values in [0, 1]."""
        return self.x[chosen].to(DEVICE) / 255, self.y[chosen].to(DEVICE)


def read(folder: Path) -> Rows:
    """Read ``x.npy`` and ``y.npy``."""
    x, y = (np.load(folder / f"{name}.npy", allow_pickle=False) for name in "xy")
    return Rows(torch.from_numpy(x), torch.from_numpy(y))


def batches(count: int, size: int, rng: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Draw an epoch's batches of row numbers."""
    return torch.randperm(count, generator=rng).split(size)


def pretrain(network: Network, train: Rows, epochs: int, size: int, seed: int) -> None:
    """Train on all classes."""
    rng = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    for epoch in range(epochs):
        losses = []
        for chosen in batches(len(train.y), size, rng):
            x, y = train.batch(chosen)
            loss = F.cross_entropy(network(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        told(seed, "pretrain", epoch, losses)


def unlearn(
    network: Network, retain: Rows, forget: Rows, size: int, seed: int, epochs: int, deadline: float
) -> int:
    """Let the method take its steps until ``deadline`` (monotonic seconds); return how many.

    An epoch is one pass over the rows to retain; each step gets a batch of those to forget as well.
    """
    rng = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    method, steps = UnlearningMethod(), 0
    for epoch in range(epochs):
        losses = []
        for chosen in batches(len(retain.y), size, rng):
            if time.monotonic() > deadline:
                print(f"seed {seed}: out of time after {steps} steps", flush=True)
                return steps
            others = torch.randint(len(forget.y), (size,), generator=rng)
            told_by = method.unlearn_step(
                network, retain.batch(chosen), forget.batch(others), optimizer, steps, epoch
            )
            losses.append(float(told_by["loss"]))
            steps += 1
        told(seed, "unlearn", epoch, losses)
    return steps


def told(seed: int, phase: str, epoch: int, losses: list[float]) -> None:
    """Print how an epoch went."""
    mean = sum(losses) / len(losses)
    print(f"TRAIN_METRICS seed={seed} phase={phase} epoch={epoch + 1} loss={mean:.4f}", flush=True)


def validated(network: Network, members: Rows, rows: Rows, forget_class: int) -> dict[str, float]:
    """Measure on validation rows as the evaluator does on those that it alone has."""
    predicted, confidences = predict(network, rows.x)
    _, trained_on = predict(network, members.x)
    return measure(predicted, confidences, rows.y.tolist(), trained_on, forget_class)


def publish(weights: dict[int, dict[str, torch.Tensor]], folder: Path) -> None:
    """Write the checkpoint beside its final place and rename it, so that it is whole or absent."""
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for seed, tensors in weights.items():
        write_weights(unfinished / f"seed-{seed}.safetensors", tensors)
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)


def main() -> None:
    """Run every seed and publish."""
    torch.set_num_threads(1)
    wall = float(os.environ.get("MAX_WALL_TIME_SECONDS", "3600"))
    end = time.monotonic() + wall - float(os.environ.get("DEADLINE_RESERVE_SECONDS", "60"))
    pretrain_epochs, unlearn_epochs, size = (
        int(os.environ[name]) for name in ("PRETRAIN_EPOCHS", "UNLEARN_EPOCHS", "BATCH")
    )
    assets = Path(os.environ.get("ASSETS_DIR", "/assets"))
    start = assets / "models/start"
    config = json.loads((start / "config.json").read_text(encoding="ascii"))
    train = read(assets / "data/train")
    is_forgotten = train.y == config["forget_class"]
    retain, forget = train.where(~is_forgotten), train.where(is_forgotten)
    validation = assets / "data/validation"

    steps, weights, measured = 0, {}, {}
    for number, seed in enumerate(SEEDS):
        torch.manual_seed(seed)
        network = Network(**config["network"]).to(DEVICE)
        network.load_state_dict(read_weights(start / f"seed-{seed}.safetensors"))
        pretrain(network, train, pretrain_epochs, size, seed)
        now = time.monotonic()
        deadline = now + (end - now) / (len(SEEDS) - number)
        steps += unlearn(network, retain, forget, size, seed, unlearn_epochs, deadline)
        weights[seed] = network.state_dict()
        if validation.is_dir():
            measured[seed] = validated(network, forget, read(validation), config["forget_class"])
            print(line(config["benchmark"], seed, measured[seed]), flush=True)
    if measured:
        flat = over_seeds(measured)
        for word, mark in (("mean", ""), ("sd", "@sd")):
            chosen = {name: flat[f"{name}{mark}"] for name in measured[SEEDS[0]]}
            print(line(config["benchmark"], word, chosen), flush=True)
    publish(weights, Path(os.environ.get("OUTPUT_DIR", "/out")) / f"checkpoints/checkpoint-{steps}")


def line(benchmark: str, seed: int | str, measured: dict[str, float]) -> str:
    """Write the measures of a seed in one line."""
    figures = " ".join(f"{name}={value:.4f}" for name, value in measured.items())
    return f"TEST_METRICS benchmark={benchmark} seed={seed} {figures}"


if __name__ == "__main__":
    main()
