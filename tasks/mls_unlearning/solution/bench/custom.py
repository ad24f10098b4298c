"""The unlearning method. All that follows may be edited; the harness around it is fixed."""

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody uses
from torch import nn
from torch.optim import Optimizer

Batch = tuple[torch.Tensor, torch.Tensor]
"""Images ``(N, C, H, W)`` with values in [0, 1], and their labels ``(N,)``."""


class UnlearningMethod:
    """Random labels: teach the rows to forget any class but their own. One object per seed."""

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
        retain_logits, forget_logits = model(retain_x), model(forget_x)
        classes = forget_logits.shape[1]
        other = (forget_y + torch.randint_like(forget_y, 1, classes)) % classes
        loss = F.cross_entropy(retain_logits, retain_y) + F.cross_entropy(forget_logits, other)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss.item()}
