"""The unlearning method. All that follows may be edited; the harness around it is fixed."""

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody uses
from torch import nn
from torch.optim import Optimizer

Batch = tuple[torch.Tensor, torch.Tensor]
"""Images ``(N, C, H, W)`` with values in [0, 1], and their labels ``(N,)``."""


class UnlearningMethod:
    """Go on training on the rows to retain alone, and hope that the rest fades."""

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
        del forget_batch, step, epoch
        retain_x, retain_y = retain_batch
        loss = F.cross_entropy(model(retain_x), retain_y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss.item()}
