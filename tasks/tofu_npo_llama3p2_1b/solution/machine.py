"""What the recipe runs on: DeepSpeed ZeRO-3 where it is installed, else one GPU, else the CPU."""

import importlib
import importlib.util
import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import torch
from settings import DeepSpeed, Machine, Optimizer, Precision, Training
from transformers import AutoModelForCausalLM, PreTrainedModel

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
_ALONE = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}
"""What a launcher would set for the one process of one."""
_DTYPES = {Precision.BF16: torch.bfloat16, Precision.FP32: torch.float32}


class Trainee(Protocol):
    """A model in training."""

    model: torch.nn.Module
    """What is called for logits."""

    def computing(self) -> AbstractContextManager[Any]:
        """Return what the losses are to be computed in."""

    def backward(self, loss: torch.Tensor, *, last: bool) -> None:
        """Add the gradient of a share of a step's loss; ``last`` ends the step's batches."""

    def step(self, learning_rate: float) -> None:
        """Clip the gradient, take one step, and forget the gradient."""

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the weights by name."""


def frozen(folder: Path, machine: Machine) -> PreTrainedModel:
    """Load the start as it is, to compare with."""
    model = _load(folder, machine, _DTYPES[machine.precision])
    return model.eval().requires_grad_(requires_grad=False)


def trainee(folder: Path, machine: Machine, training: Training) -> Trainee:
    """Load the start to be trained."""
    if machine.deepspeed is DeepSpeed.ZERO3 and _installed("deepspeed"):
        return Zero3(_load(folder, machine, _DTYPES[machine.precision]), machine, training)
    return Plain(_load(folder, machine, torch.float32), machine, training)


class Plain:
    """Training without help: weights in 32 bits, computed in the precision that is asked for."""

    def __init__(self, model: PreTrainedModel, machine: Machine, training: Training) -> None:
        self.model = _in_training(model, machine)
        self._precision = machine.precision
        self._max_norm = training.max_grad_norm
        self._optimizer = _optimizer(model, machine, training)

    def computing(self) -> AbstractContextManager[Any]:
        return torch.autocast(
            DEVICE.type, torch.bfloat16, enabled=self._precision is Precision.BF16
        )

    def backward(self, loss: torch.Tensor, *, last: bool) -> None:
        del last
        loss.backward()

    def step(self, learning_rate: float) -> None:
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._max_norm)
        _set_rate(self._optimizer, learning_rate)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def weights(self) -> dict[str, torch.Tensor]:
        return dict(self.model.state_dict())


class Zero3:
    """Training under DeepSpeed: ZeRO-3 without offload, one process, weights kept in 32 bits."""

    def __init__(self, model: PreTrainedModel, machine: Machine, training: Training) -> None:
        self._deepspeed = importlib.import_module("deepspeed")
        os.environ |= _ALONE
        self._deepspeed.init_distributed("nccl" if DEVICE.type == "cuda" else "gloo")
        optimizer = _optimizer(model, machine, training)
        self.model, self._optimizer, _, _ = self._deepspeed.initialize(
            model=_in_training(model, machine),
            optimizer=optimizer,
            config={
                "train_micro_batch_size_per_gpu": training.batch,
                # The losses arrive as shares of a step; DeepSpeed is told which one is the last.
                "gradient_accumulation_steps": 1,
                "gradient_clipping": training.max_grad_norm,
                "bf16": {"enabled": machine.precision is Precision.BF16},
                "zero_allow_untested_optimizer": True,
                "zero_optimization": {"stage": 3},
            },
        )
        self._plain = model

    def computing(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def backward(self, loss: torch.Tensor, *, last: bool) -> None:
        self.model.set_gradient_accumulation_boundary(last)
        self.model.backward(loss)

    def step(self, learning_rate: float) -> None:
        _set_rate(self._optimizer, learning_rate)
        self.model.step()

    def weights(self) -> dict[str, torch.Tensor]:
        with self._deepspeed.zero.GatheredParameters(list(self._plain.parameters())):
            return {name: value.clone() for name, value in self._plain.state_dict().items()}


def _load(folder: Path, machine: Machine, dtype: torch.dtype) -> PreTrainedModel:
    attention = machine.attention
    if attention == "flash_attention_2" and not _installed("flash_attn"):
        attention = "sdpa"
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation=attention, local_files_only=True
    )
    loaded: PreTrainedModel = model.to(DEVICE)
    return loaded


def _in_training(model: PreTrainedModel, machine: Machine) -> PreTrainedModel:
    if machine.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def _optimizer(
    model: PreTrainedModel, machine: Machine, training: Training
) -> torch.optim.Optimizer:
    kind: type[torch.optim.Optimizer] = torch.optim.AdamW
    if machine.optimizer is Optimizer.PAGED_ADAMW and _installed("bitsandbytes"):
        kind = importlib.import_module("bitsandbytes").optim.PagedAdamW32bit
    return kind(model.parameters(), lr=0.0, weight_decay=training.weight_decay)  # type: ignore[call-arg]


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
