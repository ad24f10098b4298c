import torch


def compute_losses(model, criterion, retain_batch, forget_batch):
    (x_retain, y_retain), (x_forget, y_forget) = retain_batch, forget_batch
    return {
        "retain": criterion(model(x_retain), y_retain),
        "forget": criterion(model(x_forget), y_forget),
    }


def unlearn(model, retain_loader, forget_loader, alpha=1.0, lr=0.00758, steps=80):
    criterion = torch.nn.CrossEntropyLoss()
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(params, lr=lr, momentum=0.0, weight_decay=0.0)
    retain_iter, forget_iter = iter(retain_loader), iter(forget_loader)
    for _ in range(steps):
        try:
            retain_batch = next(retain_iter)
        except StopIteration:
            retain_iter = iter(retain_loader)
            retain_batch = next(retain_iter)
        try:
            forget_batch = next(forget_iter)
        except StopIteration:
            forget_iter = iter(forget_loader)
            forget_batch = next(forget_iter)
        losses = compute_losses(model, criterion, retain_batch, forget_batch)
        objective = losses["retain"] - alpha * losses["forget"]
        optimizer.zero_grad()
        objective.backward()
        optimizer.step()
    return model
