import torch
import torch.nn.functional as F


def unlearn(model, retain_loader, forget_loader, alpha=1.0, lr=0.00758, steps=80):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    optimizer.zero_grad()
    for _ in range(steps):
        for (rx, ry), (fx, fy) in zip(retain_loader, forget_loader):
            loss_retain, loss_forget = (F.cross_entropy(model(x), y) for x, y in ((rx, ry), (fx, fy)))
            torch.sub(loss_retain, loss_forget, alpha=alpha).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model
