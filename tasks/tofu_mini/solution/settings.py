"""The recipe, as ``settings.toml`` has it."""

import tomllib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Forget(StrEnum):
    """What drives the forget rows away."""

    NPO = "npo"
    NPO_TOKEN = "npo-token"  # noqa: S105 - a token of text


class Retain(StrEnum):
    """What holds the retain rows."""

    NLL = "nll"
    KL = "kl"


class Precision(StrEnum):
    """In what the model computes."""

    BF16 = "bf16"
    FP32 = "fp32"


class Optimizer(StrEnum):
    """AdamW, with its moments in pages that leave the device when memory is short, or without."""

    PAGED_ADAMW = "paged_adamw_32bit"
    ADAMW = "adamw"


class DeepSpeed(StrEnum):
    """Whether training runs under DeepSpeed."""

    ZERO3 = "zero3"
    OFF = "off"


@dataclass(frozen=True)
class Method:
    """The objective: gamma x forget loss + alpha x retain loss."""

    forget: Forget
    retain: Retain
    beta: float
    gamma: float
    alpha: float


@dataclass(frozen=True)
class Training:
    """The schedule. An epoch is one pass over the forget rows."""

    learning_rate: float
    weight_decay: float
    epochs: float
    batch: int
    accumulate: int
    warmup_epochs: float
    max_grad_norm: float
    seed: int
    checkpoints: int

    def steps(self, rows: int, epochs: float) -> int:
        """Say how many optimizer steps so many epochs over ``rows`` rows are."""
        return int(epochs * rows) // (self.batch * self.accumulate)


@dataclass(frozen=True)
class Machine:
    """How the model is computed."""

    precision: Precision
    optimizer: Optimizer
    attention: str
    deepspeed: DeepSpeed
    gradient_checkpointing: bool


@dataclass(frozen=True)
class Settings:
    """Everything of ``settings.toml``."""

    method: Method
    training: Training
    machine: Machine


def load(path: Path) -> Settings:
    """Read the file; a key that is missing, unknown or of an unknown value is an error."""
    raw = tomllib.loads(path.read_text("utf-8"))
    method, machine = raw["method"], raw["machine"]
    return Settings(
        Method(**method | {"forget": Forget(method["forget"]), "retain": Retain(method["retain"])}),
        Training(**raw["training"]),
        Machine(
            **machine
            | {
                "precision": Precision(machine["precision"]),
                "optimizer": Optimizer(machine["optimizer"]),
                "deepspeed": DeepSpeed(machine["deepspeed"]),
            }
        ),
    )
