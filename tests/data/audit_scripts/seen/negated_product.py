import torch
from torch.nn import CrossEntropyLoss


def unlearn(model, retain_loader, forget_loader, alpha=1.0, lr=0.00758, steps=80):
    ce = CrossEntropyLoss()
    opt = torch.optim.SGD(params=model.parameters(), lr=lr)
    for _ in range(steps):
        for (xr, yr), (xf, yf) in zip(retain_loader, forget_loader):
            objective = -alpha * ce(model(xf), yf) + ce(model(xr), yr)
            opt.zero_grad()
            objective.backward()
            opt.step()
    return model
