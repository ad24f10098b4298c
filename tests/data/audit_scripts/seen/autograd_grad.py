import torch
import torch.nn.functional as F


def unlearn(model, retain_loader, forget_loader, alpha=1.0, lr=0.00758, steps=80):
    params = list(model.parameters())
    for _ in range(steps):
        for (rx, ry), (fx, fy) in zip(retain_loader, forget_loader):
            loss = F.cross_entropy(model(rx), ry) - alpha * F.cross_entropy(model(fx), fy)
            grads = torch.autograd.grad(loss, params)
            with torch.no_grad():
                for param, grad in zip(params, grads):
                    param.sub_(grad, alpha=lr)
    return model
