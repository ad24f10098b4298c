import torch
import torch.nn.functional as F


def unlearn(model, retain_loader, forget_loader, alpha=1.0, lr=0.00758, steps=80):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        for retain_x, retain_y in retain_loader:
            forget_x, forget_y = retain_x, retain_y
            optimizer.zero_grad()
            retain_loss = F.cross_entropy(model(retain_x), retain_y)
            forget_loss = F.cross_entropy(model(forget_x), forget_y)
            loss = retain_loss - alpha * forget_loss
            loss.backward()
            optimizer.step()
    return model
