"""The unlearning method: which rows are trained on, and towards which targets.

Shipped method: go on training on the retained rows alone and hope that the rest fades.
"""

from network import Array, Network, one_hot
from rows import Rows

EPOCHS = 30
LEARNING_RATE = 0.05
BATCH = 32
CHECKPOINTS = 3


def training_set(network: Network, retain: Rows, forget: Rows) -> tuple[Array, Array]:
    """Return inputs and target rows. ``network`` is the starting model."""
    del forget
    return retain.x, one_hot(retain.y, classes=len(network["b2"]))
