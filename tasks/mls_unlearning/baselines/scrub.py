"""The unlearning method. All that follows may be edited; the harness around it is fixed."""

import copy

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody uses
from torch import nn
from torch.optim import Optimizer

Batch = tuple[torch.Tensor, torch.Tensor]
"""Images ``(N, C, H, W)`` with values in [0, 1], and their labels ``(N,)``."""


class UnlearningMethod:
    """A student leaves its teacher on the rows to forget, and stays with it on the others.

    The teacher is the model as it was. Steps away are taken in the first epochs only; what they
    disturb is restored in every epoch. After Kurmanji et al., "Towards Unbounded Machine
    Unlearning", 2023 (SCRUB).
    """

    away_epochs = 2
    temperature = 4.0
    alpha = 0.01
    gamma = 0.99

    def __init__(self) -> None:
        self.teacher: nn.Module | None = None

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
        del step
        if self.teacher is None:
            self.teacher = copy.deepcopy(model).requires_grad_(requires_grad=False)
        retain_x, retain_y = retain_batch
        if epoch < self.away_epochs:
            optimizer.zero_grad()
            (-self._divergence(model, forget_batch[0])).backward()
            optimizer.step()
        closeness = self._divergence(model, retain_x)
        loss = self.alpha * closeness + self.gamma * F.cross_entropy(model(retain_x), retain_y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss.item()}

    def _divergence(self, model: nn.Module, images: torch.Tensor) -> torch.Tensor:
        """Return KL(teacher || model) of softened probabilities, scaled as a gradient's size is."""
        assert self.teacher is not None
        wanted = F.log_softmax(self.teacher(images) / self.temperature, dim=1)
        found = F.log_softmax(model(images) / self.temperature, dim=1)
        divergence = F.kl_div(found, wanted, reduction="batchmean", log_target=True)
        return divergence * self.temperature**2
