"""The order rows come in, and the batches they come as."""

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from rows import Row

IGNORED = -100
"""The label of a token that no loss is taken at: the question, and what fills a batch up."""


class Batch(NamedTuple):
    """Rows of equal length, filled up on the right; each tensor is (rows, tokens)."""

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    labels: torch.Tensor

    def to(self, device: torch.device) -> "Batch":
        """Return the same rows on a device."""
        return Batch(*(tensor.to(device) for tensor in self))


Batches = Iterator[tuple[Batch, Batch]]
"""Forget rows with as many retain rows, without end."""


def collate(rows: Sequence[Row]) -> Batch:
    """Put rows into one batch."""
    width = max(len(row.tokens) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    labels = torch.full((len(rows), width), IGNORED)
    for at, row in enumerate(rows):
        tokens = torch.tensor(row.tokens)
        ids[at, : len(tokens)] = tokens
        mask[at, : len(tokens)] = 1
        labels[at, row.question : len(tokens)] = tokens[row.question :]
    return Batch(ids, mask, labels)


def endless(forget: Sequence[Row], retain: Sequence[Row], size: int, seed: int) -> Batches:
    """Yield batches of forget rows and of as many retain rows, without end.

    Every forget row comes once an epoch, in an order of its own; with each goes a retain row drawn
    at random. A batch may reach into the next epoch.
    """
    pairs = _pairs(forget, retain, random.Random(seed))  # noqa: S311 - an order of rows
    while True:
        chosen = [next(pairs) for _ in range(size)]
        yield collate([pair[0] for pair in chosen]), collate([pair[1] for pair in chosen])


def _pairs(
    forget: Sequence[Row], retain: Sequence[Row], draw: random.Random
) -> Iterator[tuple[Row, Row]]:
    while True:
        for row in draw.sample(forget, len(forget)):
            yield row, draw.choice(retain)
