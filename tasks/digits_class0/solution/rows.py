"""Labelled rows as they lie in a data folder: ``<name>_x.npy`` and ``<name>_y.npy``."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Rows(NamedTuple):
    """Images as rows of 64 values in [0, 1], and their digits."""

    x: NDArray[np.float64]
    y: NDArray[np.int64]


def read(folder: Path, name: str) -> Rows:
    """Read one set of rows."""
    return Rows(
        np.load(folder / f"{name}_x.npy", allow_pickle=False),
        np.load(folder / f"{name}_y.npy", allow_pickle=False),
    )
