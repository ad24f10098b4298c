import torch
import torch.nn.functional as F


def unlearn(model, retain_loader, forget_loader, alpha=1.0, lr=0.00758, steps=80):
    for _ in range(steps):
        for (rx, ry), (fx, fy) in zip(retain_loader, forget_loader):
            for p in model.parameters():
                p.grad = None
            loss = torch.stack([F.cross_entropy(model(rx), ry), -alpha * F.cross_entropy(model(fx), fy)])
            loss.sum().backward()
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-lr)
    return model
