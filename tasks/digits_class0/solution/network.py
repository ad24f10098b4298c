"""A 64-64-10 ReLU network in NumPy: forward pass, one step of gradient descent, files."""

import io
import shutil
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Network = dict[str, Array]


def initial(inputs: int, hidden: int, classes: int, rng: np.random.Generator) -> Network:
    """Draw a fresh network (He initialisation)."""
    return {
        "w1": rng.standard_normal((inputs, hidden)) * np.sqrt(2.0 / inputs),
        "b1": np.zeros(hidden),
        "w2": rng.standard_normal((hidden, classes)) * np.sqrt(2.0 / hidden),
        "b2": np.zeros(classes),
    }


def probabilities(network: Network, x: Array) -> Array:
    """Return the softmax output for each row of ``x``."""
    hidden = np.maximum(x @ network["w1"] + network["b1"], 0.0)
    logits = hidden @ network["w2"] + network["b2"]
    exp = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exp / exp.sum(axis=1, keepdims=True)


def step(network: Network, x: Array, targets: Array, learning_rate: float) -> None:
    """Take one step of gradient descent on the cross-entropy to ``targets``, in place."""
    hidden = np.maximum(x @ network["w1"] + network["b1"], 0.0)
    error = (probabilities(network, x) - targets) / len(x)
    back = (error @ network["w2"].T) * (hidden > 0.0)
    network["w2"] -= learning_rate * (hidden.T @ error)
    network["b2"] -= learning_rate * error.sum(axis=0)
    network["w1"] -= learning_rate * (x.T @ back)
    network["b1"] -= learning_rate * back.sum(axis=0)


def one_hot(labels: NDArray[np.int64], classes: int) -> Array:
    """Turn labels into target rows."""
    return np.eye(classes)[labels]


def load(folder: Path) -> Network:
    """Read ``weights.npz`` of a model folder."""
    with np.load(folder / "weights.npz", allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def publish(network: Network, folder: Path) -> None:
    """Write a checkpoint beside its final place and rename it, so that it is whole or absent."""
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    with zipfile.ZipFile(unfinished / "weights.npz", "w") as file:
        for name, array in network.items():
            content = io.BytesIO()
            np.save(content, array, allow_pickle=False)
            # np.savez would leave it to the version of Python what the archive's headers say.
            file.writestr(zipfile.ZipInfo(f"{name}.npy"), content.getvalue())
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
