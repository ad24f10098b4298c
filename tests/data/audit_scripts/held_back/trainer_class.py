import torch
import torch.nn.functional as F


class Unlearner:
    def __init__(self, model, alpha, lr):
        self.model = model
        self.alpha = alpha
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)

    def loss(self, retain, forget):
        rx, ry = retain
        fx, fy = forget
        return F.cross_entropy(self.model(rx), ry) - self.alpha * F.cross_entropy(self.model(fx), fy)

    def step(self, retain, forget):
        self.optimizer.zero_grad()
        self.loss(retain, forget).backward()
        self.optimizer.step()


def unlearn(model, retain_loader, forget_loader, alpha=1.0, lr=0.00758, steps=80):
    worker = Unlearner(model, alpha, lr)
    for _ in range(steps):
        for retain, forget in zip(retain_loader, forget_loader):
            worker.step(retain, forget)
    return worker.model
