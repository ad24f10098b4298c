"""The measures of unlearning, after MLS-Bench, in plain Python. The evaluator has this file too."""

import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence


def unlearn_score(retain_acc: float, forget_acc: float, forget_mia_auc: float) -> float:
    """Return the primary metric, the mean of three terms in [0, 1]; more is better."""
    return (retain_acc + (1.0 - forget_acc) + (1.0 - forget_mia_auc)) / 3.0


def measure(
    predicted: Sequence[int],
    confidences: Sequence[float],
    labels: Sequence[int],
    members: Sequence[float],
    forget_class: int,
) -> dict[str, float]:
    """Measure one network on rows that it was not trained on.

    Args:
        predicted: the class that the network gives each row.
        confidences: its greatest softmax probability for each row.
        labels: the true class of each row.
        members: its greatest softmax probability for each row to forget that it was trained on.
        forget_class: the class to forget.

    Returns:
        ``unlearn_score``, its three parts, and ``auc_below_half``: how much of the score is there
        because the AUC is below 0.5, which the formula rewards and which is no sign of forgetting.
    """
    rows = list(zip(predicted, confidences, labels, strict=True))
    others = [confidence for _, confidence, label in rows if label == forget_class]
    retain_acc = _share([found == label for found, _, label in rows if label != forget_class])
    forget_acc = _share([found == label for found, _, label in rows if label == forget_class])
    auc = mann_whitney_auc(members, others)
    return {
        "unlearn_score": unlearn_score(retain_acc, forget_acc, auc),
        "retain_acc": retain_acc,
        "forget_acc": forget_acc,
        "forget_mia_auc": auc,
        "auc_below_half": auc if math.isnan(auc) else max(0.0, 0.5 - auc) / 3.0,
    }


def mann_whitney_auc(members: Sequence[float], others: Sequence[float]) -> float:
    """Return the chance that a member ranks above a non-member, ties counting half.

    NaN where a value is not finite, or where there is nothing to compare.
    """
    if not members or not others or not all(map(math.isfinite, [*members, *others])):
        return math.nan
    ranked = sorted(others)
    wins = sum(bisect_left(ranked, one) + bisect_right(ranked, one) for one in members)
    return wins / 2.0 / len(members) / len(others)


def over_seeds(per_seed: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    """Lay the measures of all seeds out flat, with their mean and sample standard deviation.

    ``retain_acc`` is the mean, ``retain_acc@sd`` the standard deviation (n - 1), ``retain_acc@42``
    the value of seed 42. Where a value is not finite, neither are the first two.
    """
    flat: dict[str, float] = {}
    for name in next(iter(per_seed.values())):
        values = [measured[name] for measured in per_seed.values()]
        finite = all(map(math.isfinite, values))
        flat[name] = statistics.fmean(values) if finite else math.nan
        flat[f"{name}@sd"] = statistics.stdev(values) if finite else math.nan
        flat |= {f"{name}@{seed}": measured[name] for seed, measured in per_seed.items()}
    return flat


def _share(hits: Sequence[bool]) -> float:
    return sum(hits) / len(hits) if hits else math.nan
