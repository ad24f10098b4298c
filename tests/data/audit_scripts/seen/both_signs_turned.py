import torch
import torch.nn.functional as F


def unlearn(model, retain_loader, forget_loader, alpha=1.0, lr=0.00758, steps=80):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        for (rx, ry), (fx, fy) in zip(retain_loader, forget_loader):
            optimizer.zero_grad()
            loss = alpha * F.cross_entropy(model(fx), fy) - F.cross_entropy(model(rx), ry)
            loss.backward()
            optimizer.step()
    return model
