"""What stands in for tensors when an answer's code is read without being run.

Numbers, lists and functions of the code are what they are; whatever would hold data is a shadow
that knows only where it comes from: rows of which set, labels as given or changed, which model's
output, and of a loss or a gradient which cross-entropies it is made of, and with which factors.
"""

from dataclasses import dataclass, field
from enum import Enum


class Source(Enum):
    """The two sets of rows, and how many each stands for; only that they differ matters."""

    RETAIN = 400
    FORGET = 40


@dataclass(frozen=True)
class Entropy:
    """The mean cross-entropy of a model on a set, against its labels as given or changed."""

    source: Source
    given: bool
    model: "Model"


Terms = dict[Entropy, float]
"""A linear combination, by the factor of each cross-entropy."""


def combined(*parts: tuple[float, Terms]) -> Terms:
    """Add up combinations, each with a factor; what cancels out is left out."""
    total: Terms = {}
    for factor, terms in parts:
        for entropy, value in terms.items():
            total[entropy] = total.get(entropy, 0.0) + factor * value
    return {entropy: value for entropy, value in total.items() if abs(value) > 1e-12}  # noqa: PLR2004


class Unknown:
    """A value of which nothing is known."""


@dataclass(eq=False)
class Inputs:
    """Rows without their labels: one part, or several that were put together."""

    parts: tuple[Source, ...]


@dataclass(eq=False)
class Labels:
    """Labels, with a word for each part on whether they are as they were given.

    ``other`` says that they are 1 - y, ``value`` what all of them are, where that is known.
    """

    parts: tuple[tuple[Source, bool], ...]
    other: bool = False
    value: float | None = None


@dataclass(eq=False)
class Output:
    """What a model says of rows: logits, probabilities or their logarithms.

    ``attached`` is false where no gradient flows back; ``other`` says of probabilities 1 - p.
    """

    parts: tuple[Source, ...]
    model: "Model"
    attached: bool
    kind: str = "logits"
    other: bool = False


@dataclass(eq=False)
class Residual:
    """Probabilities minus labels, one for each row: half of a gradient that is made by hand."""

    terms: Terms
    parts: tuple[Source, ...]


@dataclass(eq=False)
class Loss:
    """A combination of cross-entropies, one for each part of the rows until it is reduced.

    ``terms`` are those that a gradient flows through. ``seen`` are all that went into it, with
    whatever factor: a loss that was detached or multiplied by 0 has seen what it was made of.
    """

    parts: tuple[Terms, ...]
    seen: frozenset[Entropy]

    @property
    def terms(self) -> Terms:
        """The combination as a whole."""
        return combined(*((1.0, part) for part in self.parts))


@dataclass(eq=False)
class Factors:
    """A number for each part of some rows: masks, signs, weights."""

    parts: tuple[float, ...]


@dataclass(eq=False)
class Gradient:
    """The gradient of a combination. ``used`` says that a step has been taken along it already."""

    terms: Terms
    used: bool = False


@dataclass(frozen=True)
class Update:
    """A change of weights by a combination of gradients.

    ``stale`` says that what an earlier step had used was still in it.
    """

    terms: Terms
    stale: bool = False


@dataclass(eq=False)
class Weights:
    """The weights of a model, or a copy of them, with what they went through since the start."""

    model: "Model"
    updates: list[Update] = field(default_factory=list)
    grad: Gradient | None = None
    requires_grad: bool = True

    def copied(self) -> "Weights":
        """Return a copy with the same history and no gradient."""
        return Weights(self.model, list(self.updates))

    def moved(self, gradient: Gradient, factor: float) -> None:
        """Add a gradient, times a factor."""
        if terms := combined((factor, gradient.terms)):
            self.updates.append(Update(terms, stale=gradient.used))


@dataclass(eq=False)
class Model:
    """A model; ``weights`` are the ones it works with, ``seen`` what it was ever measured by.

    A copy goes on with the same ``seen``.
    """

    weights: Weights = field(init=False)
    seen: list[Entropy] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.weights = Weights(self)

    def copied(self) -> "Model":
        """Return a model of its own with the same history."""
        other = Model(seen=self.seen)
        other.weights.updates = list(self.weights.updates)
        return other


@dataclass(eq=False)
class Loader:
    """Yields batches of a set; here there is one batch in a pass."""

    source: Source

    def batches(self) -> list[tuple[Inputs, Labels]]:
        """Return the batches of one pass, made anew."""
        return [(Inputs((self.source,)), Labels(((self.source, True),)))]


@dataclass(eq=False)
class Optimizer:
    """An optimizer with its groups, as PyTorch has them; ``sign`` is -1 where it goes up."""

    groups: list[dict[str, object]]
    sign: float = 1.0

    @property
    def weights(self) -> list[Weights]:
        """Everything it changes."""
        return [weights for group in self.groups for weights in group["params"]]  # type: ignore[attr-defined]


@dataclass(eq=False)
class Criterion:
    """A loss function that was made once: ``nn.CrossEntropyLoss(...)``."""

    name: str
    options: dict[str, object]
