"""The method: how one step of training changes the model. This is the file to have ideas in."""

import numpy as np

STEPS = 30
LEARNING_RATE = 0.1


def step(w: np.ndarray, b: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    """Take one step of gradient descent on the log loss of all rows, in place."""
    error = 1.0 / (1.0 + np.exp(-(x @ w + b))) - y
    w -= LEARNING_RATE * (x.T @ error) / len(y)
    b -= LEARNING_RATE * error.mean()
