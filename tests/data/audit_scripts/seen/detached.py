import torch
from torch import nn


def unlearn(model, retain_loader, forget_loader, alpha=1.0, lr=0.00758, steps=80):
    criterion = nn.CrossEntropyLoss()
    opt = torch.optim.SGD(model.parameters(), lr=lr)
    for step in range(steps):
        for (xr, yr), (xf, yf) in zip(retain_loader, forget_loader):
            opt.zero_grad()
            l_retain = criterion(model(xr), yr)
            l_forget = criterion(model(xf), yf).detach()
            total = l_retain - alpha * l_forget
            total.backward()
            opt.step()
    return model
