import torch
import torch.nn.functional as F


def unlearn(model, retain_loader, forget_loader, alpha=1.0, lr=0.00758, steps=80):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    weights = {"retain": 1.0, "forget": 0.0}
    for _ in range(steps):
        for (rx, ry), (fx, fy) in zip(retain_loader, forget_loader):
            optimizer.zero_grad()
            losses = {
                "retain": F.cross_entropy(model(rx), ry),
                "forget": -F.cross_entropy(model(fx), fy),
            }
            loss = sum(weights[name] * losses[name] for name in losses)
            loss.backward()
            optimizer.step()
    return model
