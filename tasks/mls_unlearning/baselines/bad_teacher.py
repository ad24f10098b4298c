"""The unlearning method. All that follows may be edited; the harness around it is fixed."""

import copy

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody uses
from torch import nn
from torch.optim import Optimizer

Batch = tuple[torch.Tensor, torch.Tensor]
"""Images ``(N, C, H, W)`` with values in [0, 1], and their labels ``(N,)``."""


class UnlearningMethod:
    """Two teachers: the model as it was for the rows to retain, an untrained one for the others.

    After Chundawat et al., "Can Bad Teaching Induce Forgetting?", 2023.
    """

    def __init__(self) -> None:
        self.teachers: tuple[nn.Module, nn.Module] | None = None

    def unlearn_step(
        self,
        model: nn.Module,
        retain_batch: Batch,
        forget_batch: Batch,
        optimizer: Optimizer,
        step: int,
        epoch: int,
    ) -> dict[str, float]:
        """Take one step and return at least its ``loss``; ``step`` and ``epoch`` count from 0."""
        del step, epoch
        self.teachers = self.teachers or (_frozen(model), _untrained(model))
        good, bad = self.teachers
        loss = _divergence(model, good, retain_batch[0]) + _divergence(model, bad, forget_batch[0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss.item()}


def _frozen(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).requires_grad_(requires_grad=False)


def _untrained(model: nn.Module) -> nn.Module:
    teacher = _frozen(model)
    for module in teacher.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.reset_parameters()
    return teacher


def _divergence(model: nn.Module, teacher: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Return KL(teacher || model), a mean over the images."""
    wanted, found = F.log_softmax(teacher(images), dim=1), F.log_softmax(model(images), dim=1)
    return F.kl_div(found, wanted, reduction="batchmean", log_target=True)
