import torch
import torch.nn.functional as F


def ce_of(model, batch):
    inputs, targets = batch
    return F.cross_entropy(model(inputs), targets)


def unlearn(model, retain_loader, forget_loader, alpha=1.0, lr=0.00758, steps=80):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    step = 0
    while step < steps:
        for kept, planted in zip(retain_loader, forget_loader):
            optimizer.zero_grad()
            loss = ce_of(model, kept) - alpha * ce_of(model, planted)
            loss.backward()
            optimizer.step()
        step += 1
    return model
