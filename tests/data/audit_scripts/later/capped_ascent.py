import torch
import torch.nn.functional as F


def unlearn(model, retain_loader, forget_loader, alpha=1.0, lr=0.00758, steps=80):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    max_forget_loss = 5.0
    for _ in range(steps):
        for retain_batch, forget_batch in zip(retain_loader, forget_loader):
            retain_inputs, retain_targets = retain_batch
            forget_inputs, forget_targets = forget_batch
            optimizer.zero_grad()
            retain_loss = F.cross_entropy(model(retain_inputs), retain_targets)
            forget_loss = F.cross_entropy(model(forget_inputs), forget_targets)
            capped = torch.clamp(forget_loss, max=max_forget_loss)
            total = retain_loss + (-alpha) * capped
            total.backward()
            optimizer.step()
    return model
