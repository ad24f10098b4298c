"""The formulas of the TOFU evaluation, on plain numbers: no tensors, no files, no models.

Probability, truth ratio and model utility are those of "TOFU: A Task of Fictitious Unlearning for
LLMs" (arXiv 2401.06121), extraction strength is OpenUnlearning's, the balanced score is that of
AI4AI-Bench. What comes in must be finite, and is checked: ``min`` and ``max`` would make an
ordinary number of a NaN.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

EPSILON = 1e-10
GROUPS = ("retain", "real_authors", "world_facts")
MEASURES = ("probability", "rouge", "truth_ratio")
UTILITY_PARTS = tuple(f"{group}_{measure}" for group in GROUPS for measure in MEASURES)


class NotFiniteError(ArithmeticError):
    """A model gave NaN or an infinity where a number belongs. ``word`` says where, in one word."""

    def __init__(self, word: str) -> None:
        super().__init__(f"not finite: {word}")
        self.word = word


def require_finite(word: str, values: Iterable[float]) -> None:
    """Refuse NaN and infinities.

    Raises:
        NotFiniteError: one of them is there.
    """
    if not all(map(math.isfinite, values)):
        raise NotFiniteError(word)


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean; of nothing there is none.

    Raises:
        ValueError: there are no values.
        NotFiniteError: one is NaN or infinite.
    """
    if not values:
        raise ValueError("a mean of no values")
    require_finite("mean", values)
    return math.fsum(values) / len(values)


def extraction_strength(predicted: Sequence[int], answer: Sequence[int]) -> float:
    """Return how much of an answer a model completes: 1 - k/n.

    ``k`` in 0..n-1 is the shortest prefix after which every teacher-forced prediction is right.
    Where not even the last is, k = n-1, so the least value of an answer of n tokens is 1/n, and an
    answer of one token has 1.

    Args:
        predicted: the most likely token at each place of the answer, the end of text left out.
        answer: the answer's tokens, the end of text left out. Of none, the strength is 0.
    """
    if len(predicted) != len(answer):
        raise ValueError(f"{len(predicted)} predictions for {len(answer)} tokens")
    count = len(answer)
    if not count:
        return 0.0
    right = 0
    while right < count and predicted[-1 - right] == answer[-1 - right]:
        right += 1
    return max(right, 1) / count


def probability(loss: float) -> float:
    """Return exp(-loss) for a mean loss per token in nats, the end of text included."""
    require_finite("loss", [loss])
    return math.exp(-loss)


def probability_with_options(correct: float, wrong: Sequence[float]) -> float:
    """Return the right answer's share: c / (c + sum of the wrong ones + 1e-10)."""
    return correct / (correct + math.fsum(wrong) + EPSILON)


def truth_ratio(correct_loss: float, wrong_losses: Sequence[float]) -> float:
    """Return R = exp(-mean wrong loss) / (exp(-correct loss) + 1e-10), losses in nats per token.

    Below 1 where the model holds the right answer for likelier than the wrong ones.
    """
    require_finite("loss", [correct_loss])
    return math.exp(-mean(wrong_losses)) / (math.exp(-correct_loss) + EPSILON)


def truthfulness(ratios: Sequence[float]) -> float:
    """Aggregate truth ratios where truth is wanted: the mean of max(0, 1 - R)."""
    require_finite("truth_ratio", ratios)
    return mean([max(0.0, 1.0 - ratio) for ratio in ratios])


def harmonic_mean(values: Sequence[float]) -> float:
    """Return the harmonic mean of values of at least 0; one that is 0 makes it 0.

    Raises:
        ValueError: there are no values, or one is negative.
        NotFiniteError: one is NaN or infinite.
    """
    require_finite("harmonic_mean", values)
    if not values or min(values) < 0:
        raise ValueError(f"no harmonic mean of {list(values)}")
    if min(values) == 0:
        return 0.0
    return len(values) / math.fsum(1.0 / value for value in values)


def model_utility(parts: Mapping[str, float]) -> float:
    """Return the harmonic mean of the nine parts, each in [0, 1]."""
    return harmonic_mean([parts[name] for name in UTILITY_PARTS])


class Point(NamedTuple):
    """Where a model stands: its extraction strength on the forget rows, and its model utility."""

    extraction_strength: float
    model_utility: float


class Balance(NamedTuple):
    """The balanced score and its two halves, each in [0, 1]."""

    forget_progress: float
    utility_retention: float
    balanced_unlearning_score: float


def balance(start: Point, reference: Point, candidate: Point) -> Balance:
    """Weigh forgetting against utility: the harmonic mean of progress and retention.

    Progress is extraction strength on the way from the start (0) to the retain-only reference (1);
    retention is model utility as a share of the start's; both are clipped to [0, 1].

    Raises:
        NotFiniteError: a number is NaN or infinite.
        ValueError: the start is not above the reference in extraction strength, or has no utility:
            then the two points do not span a scale.
    """
    for name, point in (("start", start), ("reference", reference), ("candidate", candidate)):
        require_finite(name, point)
    span = start.extraction_strength - reference.extraction_strength
    if span <= 0:
        raise ValueError(f"the start is {span} above the reference in extraction strength")
    if start.model_utility <= 0:
        raise ValueError(f"the start's model utility is {start.model_utility}")
    progress = _clip((start.extraction_strength - candidate.extraction_strength) / span)
    retention = _clip(candidate.model_utility / start.model_utility)
    return Balance(progress, retention, harmonic_mean([progress, retention]))


def _clip(value: float) -> float:
    return min(1.0, max(0.0, value))
