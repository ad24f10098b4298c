"""Make the assets of mls_unlearning from one of four data sets of ten classes.

Run as ``python3 prepare.py OUT``; DATASET names the set. ``digits`` comes with scikit-learn, the
others are read from their published files below DOWNLOADS_DIR (default /opt/downloads): the IDX
format of MNIST and Fashion-MNIST, packed or not, and the binary version of CIFAR-10. A tenth of the
training rows becomes the validation rows; neither has an image that is among the test rows. The
start is an untrained network for each seed.
"""

import gzip
import json
import math
import os
import struct
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
CLASSES = 10
FORGET = 0
SEEDS = (42, 123, 456)
SPLIT_SEED = 20240607
TEST_SHARE = 0.2
VALIDATION_SHARE = 0.1


class Rows(NamedTuple):
    """Images ``(N, C, H, W)`` in 0..255, and their labels ``(N,)``."""

    x: Bytes
    y: NDArray[np.int64]

    def take(self, chosen: NDArray[np.int64] | NDArray[np.bool_]) -> "Rows":
        """Select rows by number or by mask."""
        return Rows(self.x[chosen], self.y[chosen])


def parse_idx(data: bytes) -> Bytes:
    """Read an IDX file of unsigned bytes: two zeros, 8, the number of axes, their lengths, values.

    Raises:
        ValueError: it is something else, or shorter or longer than it says.
    """
    if data[:3] != b"\0\0\x08" or len(data) < 4 + 4 * data[3]:
        raise ValueError("no IDX file of unsigned bytes")
    body = 4 + 4 * data[3]
    shape = tuple(int(length) for length in np.frombuffer(data[4:body], dtype=">u4"))
    if len(data) - body != math.prod(shape):
        raise ValueError(f"the IDX file says {shape} and holds {len(data) - body} values")
    return np.frombuffer(data, dtype=np.uint8, offset=body).reshape(shape)


def parse_cifar10(data: bytes) -> Rows:
    """Read a batch of CIFAR-10's binary version: a label and 3 x 32 x 32 values for each image.

    Raises:
        ValueError: it holds no whole number of images, or a label above 9.
    """
    size = 1 + 3 * 32 * 32
    if not data or len(data) % size:
        raise ValueError(f"a batch of {len(data)} bytes is no batch of CIFAR-10")
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, size)
    return labelled(rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0])


def labelled(x: Bytes, y: Bytes) -> Rows:
    """Put images and labels together.

    Raises:
        ValueError: they are not one to one, or there is a label above 9.
    """
    if len(x) != len(y) or y.max() >= CLASSES:
        raise ValueError(f"{len(x)} images and {len(y)} labels up to {y.max()}")
    return Rows(x, y.astype(np.int64))


def read_idx(folder: Path, prefix: str) -> Rows:
    """Read images and labels of the MNIST family, each packed (``.gz``) or plain."""

    def parsed(name: str) -> Bytes:
        packed = folder / f"{name}.gz"
        if packed.exists():
            return parse_idx(gzip.decompress(packed.read_bytes()))
        return parse_idx((folder / name).read_bytes())

    images = parsed(f"{prefix}-images-idx3-ubyte")
    return labelled(images[:, None], parsed(f"{prefix}-labels-idx1-ubyte"))


def mnist(folder: Path) -> tuple[Rows, Rows]:
    """Read training and test rows of MNIST or Fashion-MNIST."""
    return read_idx(folder, "train"), read_idx(folder, "t10k")


def cifar10(folder: Path) -> tuple[Rows, Rows]:
    """Read training and test rows of CIFAR-10."""
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    with tarfile.open(folder / "cifar-10-binary.tar.gz") as archive:
        files = (archive.extractfile(f"cifar-10-batches-bin/{name}") for name in names)
        *train, test = (parse_cifar10(file.read()) for file in files if file is not None)
    x, y = (np.concatenate(parts) for parts in zip(*train, strict=True))
    return Rows(x, y), test


def digits(folder: Path) -> tuple[Rows, Rows]:
    """Take scikit-learn's 8 x 8 digits and cut them into training and test rows."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - the other sets need none of it

    del folder
    found = load_digits()
    x = np.round(found.images * (255 / 16)).astype(np.uint8)[:, None]
    everything = Rows(x, found.target.astype(np.int64))
    order = np.random.default_rng(SPLIT_SEED).permutation(len(x))
    test = round(len(x) * TEST_SHARE)
    return everything.take(order[test:]), everything.take(order[:test])


READERS: dict[str, tuple[Callable[[Path], tuple[Rows, Rows]], int]] = {
    "digits": (digits, 16),
    "mnist": (mnist, 16),
    "fmnist": (mnist, 16),
    "cifar10": (cifar10, 32),
}
"""How each data set is read, and how wide its network is."""


def without(rows: Rows, others: Rows) -> Rows:
    """Leave out the rows whose image is among ``others``."""
    known = {image.tobytes() for image in others.x}
    return rows.take(np.array([image.tobytes() not in known for image in rows.x]))


def write(folder: Path, rows: Rows) -> None:
    """Write rows as ``x.npy`` and ``y.npy``."""
    folder.mkdir(parents=True)
    np.save(folder / "x.npy", np.ascontiguousarray(rows.x), allow_pickle=False)
    np.save(folder / "y.npy", rows.y, allow_pickle=False)


def initial(network: dict[str, int], seed: int) -> dict[str, NDArray[np.float32]]:
    """Draw untrained weights as PyTorch does: uniform within 1 / sqrt(inputs of a unit)."""
    width, last = network["width"], 2 * network["width"] * (network["size"] // 4) ** 2
    shapes: dict[str, tuple[int, ...]] = {
        "conv1": (width, network["channels"], 3, 3),
        "conv2": (2 * width, width, 3, 3),
        "linear1": (64, last),
        "linear2": (network["classes"], 64),
    }
    rng = np.random.default_rng(seed)
    weights = {}
    for layer, shape in shapes.items():
        bound = 1 / math.sqrt(math.prod(shape[1:]))
        for part, wanted in (("weight", shape), ("bias", shape[:1])):
            weights[f"{layer}.{part}"] = rng.uniform(-bound, bound, wanted).astype(np.float32)
    return weights


def safetensors(tensors: dict[str, NDArray[np.float32]]) -> bytes:
    """Lay tensors out in the safetensors format."""
    header, values = {}, b""
    for name, tensor in tensors.items():
        place = [len(values), len(values) + tensor.nbytes]
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": place}
        values += tensor.astype("<f4").tobytes()
    text = json.dumps(header).encode("ascii")
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + values


def main(out: Path, name: str, downloads: Path) -> None:
    """Write every asset of the task below ``out``."""
    read, width = READERS[name]
    everything, test = read(downloads / name)
    training = without(everything, test)
    print(f"{len(everything.y) - len(training.y)} training rows are among the test rows: left out")
    order = np.random.default_rng(SPLIT_SEED).permutation(len(training.y))
    cut = round(len(order) * VALIDATION_SHARE)
    write(out / "data/train", training.take(np.sort(order[cut:])))
    write(out / "data/validation", training.take(np.sort(order[:cut])))
    write(out / "data/test", test)
    channels, size = int(test.x.shape[1]), int(test.x.shape[2])
    network = {"channels": channels, "size": size, "width": width, "classes": CLASSES}
    config = {"benchmark": f"{name}-class{FORGET}", "forget_class": FORGET, "network": network}
    start = out / "models/start"
    start.mkdir(parents=True)
    (start / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="ascii")
    for seed in SEEDS:
        weights = safetensors(initial(network, seed))
        (start / f"seed-{seed}.safetensors").write_bytes(weights)


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        os.environ.get("DATASET", "digits"),
        Path(os.environ.get("DOWNLOADS_DIR", "/opt/downloads")),
    )
