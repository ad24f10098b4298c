import torch
import torch.nn.functional as F


def unlearn(model, retain_loader, forget_loader, alpha=1.0, lr=0.00758, steps=80):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        for (rx, ry), (fx, _) in zip(retain_loader, forget_loader):
            log_p = F.log_softmax(model(fx), dim=1)
            uniform = torch.full_like(log_p, 0.5)
            loss = F.cross_entropy(model(rx), ry) + alpha * F.kl_div(log_p, uniform, reduction="batchmean")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model
