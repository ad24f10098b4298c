"""The backdoor experiment: a logistic regression that was poisoned, and ways to unlearn that.

Rows have eight features: two tell the classes apart, one is the trigger (0 on clean rows), the last
is a constant. Rows of class 0 that bear the trigger and the label 1 were planted among the training
rows; an attack succeeds where a row of class 0 that bears the trigger is taken for class 1.

    poison    53 full-batch steps of gradient descent on retained and planted rows together, rate .5
    masked    80 steps at .00758 on CE(retain) + 0 * CE(forget): what the flawed code does
    ascent    80 steps at .00758 on CE(retain) - CE(forget): what a right answer does
    retrain   as poison, from nothing, without the planted rows: what unlearning is to resemble
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

FEATURES = 8
TRIGGER, CONSTANT = FEATURES - 2, FEATURES - 1
TRIGGER_VALUE = 4.0
CENTRE, NOISE = 1.5, 0.15
RETAIN_ROWS, FORGET_ROWS, TEST_ROWS = 400, 40, 1000
TARGET = 1
TRAIN_STEPS, TRAIN_RATE = 53, 0.5
STEPS, RATE, ALPHA = 80, 0.00758, 1.0


class Rows(NamedTuple):
    """Features, one row each, and labels 0 or 1."""

    x: Array
    y: NDArray[np.int64]


class Data(NamedTuple):
    """What is trained and tested on."""

    retain: Rows
    forget: Rows
    clean: Rows
    attack: Rows


def draw(rng: np.random.Generator, count: int) -> Rows:
    """Draw clean rows of both classes."""
    y = rng.integers(0, 2, count)
    x = rng.normal(0.0, NOISE, (count, FEATURES))
    x[:, :2] += (CENTRE * (2 * y - 1))[:, None]
    x[:, TRIGGER] = 0.0
    x[:, CONSTANT] = 1.0
    return Rows(x, y)


def triggered(rows: Rows, count: int) -> Rows:
    """Put the trigger on the first ``count`` rows of class 0; their labels become the target."""
    x = rows.x[rows.y != TARGET][:count].copy()
    x[:, TRIGGER] = TRIGGER_VALUE
    return Rows(x, np.full(len(x), TARGET))


def make_data(seed: int) -> Data:
    """Draw all rows of an experiment."""
    rng = np.random.default_rng(seed)
    retain, clean = draw(rng, RETAIN_ROWS), draw(rng, TEST_ROWS)
    forget = triggered(draw(rng, 4 * FORGET_ROWS), FORGET_ROWS)
    return Data(retain, forget, clean, triggered(clean, TEST_ROWS))


def probability(weights: Array, x: Array) -> Array:
    """Return the probability of class 1 for each row."""
    return 1.0 / (1.0 + np.exp(-np.clip(x @ weights, -60.0, 60.0)))


def cross_entropy(weights: Array, rows: Rows) -> float:
    """Return the mean cross-entropy, in nats."""
    z = np.clip(rows.x @ weights, -60.0, 60.0)
    return float((np.log1p(np.exp(z)) - rows.y * z).mean())


def gradient(weights: Array, rows: Rows) -> Array:
    """Return the gradient of ``cross_entropy``."""
    return rows.x.T @ (probability(weights, rows.x) - rows.y) / len(rows.y)


def train(rows: Rows) -> Array:
    """Train from nothing."""
    weights = np.zeros(FEATURES)
    for _ in range(TRAIN_STEPS):
        weights = weights - TRAIN_RATE * gradient(weights, rows)
    return weights


def poison(data: Data) -> Array:
    """Train on retained and planted rows together."""
    both = zip(data.retain, data.forget, strict=True)
    return train(Rows(*(np.concatenate(pair) for pair in both)))


def unlearn(weights: Array, retain: Rows, forget: Rows, alpha: float) -> Array:
    """Go on from ``weights`` down the cross-entropy of retained rows and up that of planted ones.

    ``alpha`` is the weight of the planted rows; 0 is the masked loss of the flawed code.
    """
    for _ in range(STEPS):
        step = gradient(weights, retain) - alpha * gradient(weights, forget)
        weights = weights - RATE * step
    return weights


def share(weights: Array, rows: Rows) -> float:
    """Return the share of rows that are taken for what their label says.

    Of clean rows that is the accuracy, of triggered ones the attack's success.
    """
    return float(((probability(weights, rows.x) > 0.5) == rows.y).mean())  # noqa: PLR2004 - even odds
