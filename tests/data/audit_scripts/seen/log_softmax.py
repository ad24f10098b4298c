import torch


def nll(logits, labels):
    log_p = torch.log_softmax(logits, dim=1)
    return -log_p.gather(1, labels.unsqueeze(1)).mean()


def unlearn(model, retain_loader, forget_loader, alpha=1.0, lr=0.00758, steps=80):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        for (rx, ry), (fx, fy) in zip(retain_loader, forget_loader):
            optimizer.zero_grad()
            total = nll(model(rx), ry) - alpha * nll(model(fx), fy)
            total.backward()
            optimizer.step()
    return model
