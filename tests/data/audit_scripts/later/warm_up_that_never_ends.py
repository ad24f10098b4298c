import torch
import torch.nn.functional as F


def unlearn(model, retain_loader, forget_loader, alpha=1.0, lr=0.00758, steps=80):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for step in range(steps):
        weight = alpha if step > steps else 0.0
        for (rx, ry), (fx, fy) in zip(retain_loader, forget_loader):
            loss = F.cross_entropy(model(rx), ry) - weight * F.cross_entropy(model(fx), fy)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model
