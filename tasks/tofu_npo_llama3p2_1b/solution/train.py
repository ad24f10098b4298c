"""Train the start as ``settings.toml`` says and publish a series of checkpoints.

Reads MAX_WALL_TIME_SECONDS and DEADLINE_RESERVE_SECONDS (stop early enough), OUTPUT_DIR (default
/out), SEED and ASSETS_DIR (default /assets). Checkpoints are numbered by optimizer steps.
"""

import math
import os
import sys
import time
from pathlib import Path

import losses
import machine
import rows
import torch
from batches import Batches, endless
from publish import publish
from settings import Settings, Training, load
from transformers import AutoTokenizer, PreTrainedModel
from transformers.utils import logging


def main() -> None:
    """Train from the anchor until the schedule is done or the time is up."""
    started = time.monotonic()
    logging.disable_progress_bar()
    wall = float(os.environ.get("MAX_WALL_TIME_SECONDS", "42600"))
    reserve = float(os.environ.get("DEADLINE_RESERVE_SECONDS", "900"))
    assets = Path(os.environ.get("ASSETS_DIR", "/assets"))
    checkpoints = Path(os.environ.get("OUTPUT_DIR", "/out")) / "checkpoints"
    recipe = load(Path(__file__).with_name("settings.toml"))
    training, seed = recipe.training, int(os.environ.get("SEED", recipe.training.seed))
    torch.manual_seed(seed)

    anchor = assets / "models/training_start"
    tokenizer = AutoTokenizer.from_pretrained(anchor, local_files_only=True)
    forget, retain = (
        [rows.encode(tokenizer, *row) for row in rows.read(assets / "data/train" / file)]
        for file in ("forget10.json", "retain90.json")
    )
    start = machine.frozen(anchor, recipe.machine)
    trainee = machine.trainee(anchor, recipe.machine, training)
    batches = endless(forget, retain, training.batch, seed)

    steps = training.steps(len(forget), training.epochs)
    warmup = training.steps(len(forget), training.warmup_epochs)
    for step in range(1, steps + 1):
        forget_loss, retain_loss = add_gradient(recipe, trainee, start, batches)
        if not math.isfinite(forget_loss + retain_loss):
            sys.exit(f"step {step}: the loss is not finite; checkpoints published before it stay")
        trainee.step(training.learning_rate * ramp(step, steps, warmup))
        print(
            f"step {step}/{steps}: forget {forget_loss:.4f}, retain {retain_loss:.4f}", flush=True
        )
        out_of_time = time.monotonic() - started > wall - reserve
        if out_of_time or step in publications(training, steps):
            publish(trainee.weights(), start, tokenizer, checkpoints / f"checkpoint-{step}")
        if out_of_time:
            print("stopped early: the reserve has been reached", flush=True)
            return


def add_gradient(
    recipe: Settings, trainee: machine.Trainee, start: PreTrainedModel, batches: Batches
) -> tuple[float, float]:
    """Add up the gradient of one step over its batches; return forget and retain loss."""
    count = recipe.training.accumulate
    sums = [0.0, 0.0]
    for number in range(1, count + 1):
        forget, retain = (batch.to(machine.DEVICE) for batch in next(batches))
        with trainee.computing():
            pair = losses.loss(recipe.method, trainee.model, start, forget, retain)
        trainee.backward((pair[0] + pair[1]) / count, last=number == count)
        sums = [total + part.item() for total, part in zip(sums, pair, strict=True)]
    return sums[0] / count, sums[1] / count


def ramp(step: int, steps: int, warmup: int) -> float:
    """Return the share of the learning rate at a step: linear warm-up, then linear decay to 0."""
    if step <= warmup:
        return step / warmup
    return (steps - step + 1) / max(1, steps - warmup)


def publications(training: Training, steps: int) -> set[int]:
    """Return the steps after which a checkpoint is published."""
    count = training.checkpoints
    return {round(steps * number / count) for number in range(1, count + 1)}


if __name__ == "__main__":
    main()
