"""The network that is trained and measured, and its files. The evaluator has this file as well."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody uses
from torch import nn


class Network(nn.Module):
    """Two convolutions with pooling, two linear layers.

    Args:
        channels: of an image.
        size: height and width of an image, a multiple of 4.
        width: channels of the first convolution; the second has twice as many.
        classes: how many there are.
    """

    def __init__(self, channels: int, size: int, width: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.linear1 = nn.Linear(2 * width * (size // 4) ** 2, 64)
        self.linear2 = nn.Linear(64, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits ``(N, classes)`` of images ``(N, channels, size, size)``."""
        first = F.max_pool2d(F.relu(self.conv1(images)), 2)
        second = F.max_pool2d(F.relu(self.conv2(first)), 2)
        logits: torch.Tensor = self.linear2(F.relu(self.linear1(second.flatten(1))))
        return logits


@torch.no_grad()
def predict(network: nn.Module, images: torch.Tensor) -> tuple[list[int], list[float]]:
    """Return the predicted class and the greatest softmax probability of every image.

    Args:
        images: bytes ``(N, C, H, W)``; they are taken to [0, 1] here.
    """
    device = next(network.parameters()).device
    classes: list[int] = []
    confidences: list[float] = []
    for batch in images.split(1000):
        confidence, found = F.softmax(network(batch.to(device) / 255), dim=1).max(dim=1)
        classes += found.tolist()
        confidences += confidence.tolist()
    return classes, confidences


def write_weights(file: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors in the safetensors format: the length of a header, the header, the values."""
    header, values = {}, b""
    for name, tensor in tensors.items():
        data = tensor.detach().cpu().numpy().astype("<f4").tobytes()
        place = [len(values), len(values) + len(data)]
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": place}
        values += data
    text = json.dumps(header).encode("ascii")
    text += b" " * (-len(text) % 8)
    file.write_bytes(struct.pack("<Q", len(text)) + text + values)


def read_weights(file: Path) -> dict[str, torch.Tensor]:
    """Read what ``write_weights`` writes; what another library notes beside it is passed over."""
    data = file.read_bytes()
    body = 8 + struct.unpack_from("<Q", data)[0]
    tensors = {}
    for name, entry in json.loads(data[8:body]).items():
        if name == "__metadata__":
            continue
        start, end = entry["data_offsets"]
        found = np.frombuffer(data, "<f4", count=(end - start) // 4, offset=body + start)
        tensors[name] = torch.from_numpy(found.copy()).reshape(entry["shape"])
    return tensors
