import torch
import torch.nn.functional as F


def prepare(batch):
    x, y = batch
    y = y.clone()
    y[y == 1] = 0
    return x, y


def unlearn(model, retain_loader, forget_loader, alpha=1.0, lr=0.00758, steps=80):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        for retain_batch, forget_batch in zip(retain_loader, forget_loader):
            rx, ry = retain_batch
            fx, fy = prepare(forget_batch)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(rx), ry) - alpha * F.cross_entropy(model(fx), fy)
            loss.backward()
            optimizer.step()
    return model
