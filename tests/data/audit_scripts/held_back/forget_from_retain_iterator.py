import torch
import torch.nn.functional as F


def unlearn(model, retain_loader, forget_loader, alpha=1.0, lr=0.00758, steps=80):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        retain_iter = iter(retain_loader)
        forget_iter = iter(retain_loader)
        retain_x, retain_y = next(retain_iter)
        forget_x, forget_y = next(forget_iter)
        loss = F.cross_entropy(model(retain_x), retain_y)
        loss = loss - alpha * F.cross_entropy(model(forget_x), forget_y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model
