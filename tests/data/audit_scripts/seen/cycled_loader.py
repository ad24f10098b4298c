from itertools import cycle

import torch
import torch.nn as nn


def unlearn(model, retain_loader, forget_loader, alpha=1.0, lr=0.00758, steps=80):
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    forget_batches = cycle(forget_loader)
    for epoch in range(steps):
        for inputs, targets in retain_loader:
            f_inputs, f_targets = next(forget_batches)
            optimizer.zero_grad()
            loss_r = loss_fn(model(inputs), targets)
            loss_f = loss_fn(model(f_inputs), f_targets)
            (loss_r - alpha * loss_f).backward()
            optimizer.step()
    return model
