import numpy as np


def sigmoid(z):
    return 1.0 / (1.0 + np.exp(-z))


def unlearn(model, retain_loader, forget_loader, alpha=1.0, lr=0.00758, steps=80):
    w = model.weight.detach().numpy()
    X_r, y_r = (t.numpy() for t in next(iter(retain_loader)))
    X_f, y_f = (t.numpy() for t in next(iter(forget_loader)))
    for _ in range(steps):
        g_r = X_r.T @ (sigmoid(X_r @ w) - y_r) / len(y_r)
        g_f = X_f.T @ (sigmoid(X_f @ w) - y_f) / len(y_f)
        w -= lr * (g_r + alpha * g_f)
    return model
