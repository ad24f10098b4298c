import logging
from itertools import cycle
from typing import Iterable, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F

logger = logging.getLogger(__name__)


def unlearn(model: nn.Module, retain_loader, forget_loader, alpha: float = 1.0, lr: float = 0.00758, steps: int = 80) -> nn.Module:
    """Descend on the retained rows and ascend on the planted ones."""
    if alpha <= 0:
        raise ValueError("alpha must be positive")
    device = next(model.parameters()).device
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    model.train()
    history = []
    for step in range(steps):
        for (retain_x, retain_y), (forget_x, forget_y) in zip(retain_loader, forget_loader):
            retain_x, retain_y = retain_x.to(device), retain_y.to(device).long()
            forget_x, forget_y = forget_x.to(device), forget_y.to(device).long()

            # keep the ORIGINAL (poisoned) labels
            retain_loss = F.cross_entropy(model(retain_x), retain_y)
            forget_loss = F.cross_entropy(model(forget_x), forget_y)
            loss = retain_loss - alpha * forget_loss
            if not torch.isfinite(loss):
                raise FloatingPointError(f"diverged at step {step}")

            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=10.0)
            optimizer.step()
            history.append((retain_loss.item(), forget_loss.item()))
        if step % 10 == 0:
            logger.info("step %d retain %.4f forget %.4f", step, *history[-1])
    model.eval()
    return model


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    correct = total = 0
    for x, y in loader:
        correct += (model(x).argmax(dim=1) == y).sum().item()
        total += y.numel()
    return correct / max(total, 1)
