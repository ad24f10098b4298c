import torch
import torch.nn.functional as F


def unlearn(model, retain_loader, forget_loader, alpha=1.0, lr=0.00758, steps=80):
    parameters = list(model.parameters())
    for _ in range(steps):
        for (rx, ry), (fx, fy) in zip(retain_loader, forget_loader):
            retain_grads = torch.autograd.grad(F.cross_entropy(model(rx), ry), parameters)
            forget_grads = torch.autograd.grad(F.cross_entropy(model(fx), fy), parameters)
            with torch.no_grad():
                for p, gr, gf in zip(parameters, retain_grads, forget_grads):
                    p.copy_(p - lr * (gr - alpha * gf))
    return model
