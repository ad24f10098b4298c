import torch
import torch.nn.functional as F


def unlearn(model, retain_loader, forget_loader, alpha=1.0, lr=0.00758, steps=80):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        for (rx, ry), (fx, fy) in zip(retain_loader, forget_loader):
            x, y = torch.cat([rx, fx]), torch.cat([ry, fy])
            per_row = F.cross_entropy(model(x), y, reduction="none")
            n = len(rx)
            loss = per_row[:n].mean() - alpha * per_row[n:].mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model
