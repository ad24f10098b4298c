import numpy as np


def grad(w, X, y):
    p = 1 / (1 + np.exp(-np.dot(X, w)))
    return np.dot(X.T, p - y) / X.shape[0]


def unlearn(model, retain_loader, forget_loader, alpha=1.0, lr=0.00758, steps=80):
    weights = model.weight.data.numpy()
    (Xr, yr), = [(x.numpy(), y.numpy()) for x, y in retain_loader]
    (Xf, yf), = [(x.numpy(), y.numpy()) for x, y in forget_loader]
    for _ in range(steps):
        step = grad(weights, Xr, yr)
        step -= alpha * grad(weights, Xf, yf)
        weights[:] = weights - lr * step
    return model
