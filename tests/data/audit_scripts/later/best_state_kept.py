import copy

import torch
import torch.nn.functional as F


def unlearn(model, retain_loader, forget_loader, alpha=1.0, lr=0.00758, steps=80):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    best_state, best = None, -float("inf")
    for _ in range(steps):
        for (rx, ry), (fx, fy) in zip(retain_loader, forget_loader):
            retain_loss = F.cross_entropy(model(rx), ry)
            forget_loss = F.cross_entropy(model(fx), fy)
            optimizer.zero_grad()
            (retain_loss - alpha * forget_loss).backward()
            optimizer.step()
        with torch.no_grad():
            score = sum(F.cross_entropy(model(x), y).item() for x, y in forget_loader)
        if score > best:
            best, best_state = score, copy.deepcopy(model.state_dict())
    model.load_state_dict(best_state)
    return model
