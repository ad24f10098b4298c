"""What the code of an answer works with: the poisoned model and the two loaders, in PyTorch.

One thread, one full batch of 64-bit numbers: the same steps as ``backdoor.py`` of the evaluator.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
# The first optimizer has PyTorch import a good deal more: once here, and not in every process.
torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)


class Detector(torch.nn.Module):
    """A logistic regression with two logits: 0 for class 0, ``x @ weight`` for class 1."""

    def __init__(self, weights: NDArray[np.float64]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(weights, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits, one row each."""
        z = x @ self.weight
        return torch.stack((torch.zeros_like(z), z), dim=1)


class WholeLoader(DataLoader):
    """A loader whose one batch is the whole set, copied at once and not put together row by row."""

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        return iter([[tensor.clone() for tensor in self.dataset.tensors]])


def load(assets: Path) -> tuple[Detector, DataLoader, DataLoader]:
    """Return the poisoned model, the loader of retained rows and the loader of planted ones."""
    weights = np.load(assets / "models/poisoned/weights.npy", allow_pickle=False)
    return Detector(weights), _loader(assets, "retain"), _loader(assets, "forget")


def _loader(assets: Path, name: str) -> DataLoader:
    x, y = (np.load(assets / f"data/train/{name}_{axis}.npy", allow_pickle=False) for axis in "xy")
    rows = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    return WholeLoader(rows, batch_size=len(y))
