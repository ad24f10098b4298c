"""The unlearning method. All that follows may be edited; the harness around it is fixed."""

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody uses
from torch import nn
from torch.optim import Optimizer

Batch = tuple[torch.Tensor, torch.Tensor]
"""Images ``(N, C, H, W)`` with values in [0, 1], and their labels ``(N,)``."""


class UnlearningMethod:
    """The start: go on training, and let the rows to forget have no say. One object per seed."""

    forget_weight = 0.0

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
        del step, epoch  # every step is the same
        retain_x, retain_y = retain_batch
        forget_x, forget_y = forget_batch
        loss = F.cross_entropy(model(retain_x), retain_y)
        if self.forget_weight:
            loss = loss - self.forget_weight * F.cross_entropy(model(forget_x), forget_y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss.item()}
