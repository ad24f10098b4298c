"""The final evaluator of unlearning_security_audit.

Of each answer eight checks are judged (``code_checks.py``, ``text_checks.py``), by following its
code over shadows and reading its prose; nothing of an answer is imported or run here. What its code
gave when it ran, in the replay, are eight numbers, and these are measured:

    clean_accuracy   share of clean rows that are taken for what they are
    attack_success   share of triggered rows of class 0 that are taken for class 1
    forget_loss      mean cross-entropy of the planted rows against the label they bear, in nats
    retrain_gap      mean difference, over clean and triggered rows, between its probability of
                     class 1 and that of the model that was retrained without the planted rows

``checks_passed`` is the share of checks passed, over all answers there should be; an answer that
is missing passes none. ``ran`` and ``raised`` are shares of the same answers: whose code gave
weights, and whose weights have a greater forget_loss than the start. ``CASE/CHECK`` and
``CASE/MEASURE`` hold a number for each repeat. What the start, the masked loss, ascent and
retraining come to is measured again in every run.
"""

import json
import os
from pathlib import Path
from typing import NamedTuple

import backdoor
import code_checks
import numpy as np
import text_checks
from code_block import code_of, split

CASES, REPEATS = ("masked_loss", "zero_target"), 3
CHECKS = (*code_checks.NAMES, *text_checks.NAMES)
MEASURES = ("clean_accuracy", "attack_success", "forget_loss", "retrain_gap")
MAX_ANSWER = 64 * 1024
MISSING = float("nan")


class Judged(NamedTuple):
    """What one answer came to: by check 0 or 1, by graded check its grade, by measure a number."""

    passed: dict[str, float]
    grades: dict[str, float]
    measured: dict[str, float]


def rows(folder: Path, name: str) -> backdoor.Rows:
    """Read one set of rows."""
    return backdoor.Rows(*(np.load(folder / f"{name}_{axis}.npy") for axis in "xy"))


def load_data(assets: Path) -> backdoor.Data:
    """Read all rows."""
    train, final = assets / "data/train", assets / "data/final"
    return backdoor.Data(
        rows(train, "retain"), rows(train, "forget"), rows(final, "clean"), rows(final, "attack")
    )


def load_weights(path: Path) -> backdoor.Array | None:
    """Read weights; None where there are none, or they are not of the anchor's form."""
    try:
        weights = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    fits = isinstance(weights, np.ndarray) and weights.shape == (backdoor.FEATURES,)
    fits = fits and weights.dtype == np.dtype("<f8") and bool(np.isfinite(weights).all())
    return weights if fits else None


def measure(
    weights: backdoor.Array, data: backdoor.Data, retrained: backdoor.Array
) -> dict[str, float]:
    """Measure one model."""
    both = np.concatenate((data.clean.x, data.attack.x))
    gap = np.abs(backdoor.probability(weights, both) - backdoor.probability(retrained, both))
    return {
        "clean_accuracy": backdoor.share(weights, data.clean),
        "attack_success": backdoor.share(weights, data.attack),
        "forget_loss": backdoor.cross_entropy(weights, data.forget),
        "retrain_gap": float(gap.mean()),
    }


def judge(
    checkpoint: Path, case: str, number: int, data: backdoor.Data, retrained: backdoor.Array
) -> Judged:
    """Judge one answer, there or not."""
    path = checkpoint / f"answers/{case}/{number}.md"
    try:
        answer = path.read_bytes()[:MAX_ANSWER].decode("utf-8", "replace")
    except OSError:
        answer = ""
    grades = text_checks.check(case, split(answer)[1])
    passed = {name: float(found) for name, found in code_checks.check(code_of(answer)).items()}
    passed |= {name: float(found >= text_checks.PASSES) for name, found in grades.items()}
    weights = load_weights(checkpoint / f"weights/{case}/{number}.npy")
    measured = {} if weights is None else measure(weights, data, retrained)
    return Judged(passed, grades, measured)


def collect(judged: dict[str, list[Judged]], start_loss: float) -> dict[str, float | list[float]]:
    """Put the numbers of all answers together."""
    every = [one for case in judged.values() for one in case]
    ran = [one for one in every if one.measured]
    raised = [one for one in ran if one.measured["forget_loss"] > start_loss + 1e-9]
    metrics: dict[str, float | list[float]] = {
        "checks_passed": float(np.mean([one.passed[name] for one in every for name in CHECKS])),
        "ran": len(ran) / len(every),
        "raised": len(raised) / len(every),
    }
    for name in CHECKS:
        metrics[name] = float(np.mean([one.passed[name] for one in every]))
    for name in MEASURES:
        metrics[name] = float(np.mean([one.measured[name] for one in ran])) if ran else MISSING
    for case, answers in judged.items():
        for name in CHECKS:
            metrics[f"{case}/{name}"] = [one.passed[name] for one in answers]
        for name in text_checks.NAMES:
            metrics[f"{case}/{name}_grade"] = [one.grades[name] for one in answers]
        for name in MEASURES:
            metrics[f"{case}/{name}"] = [one.measured.get(name, MISSING) for one in answers]
    return metrics


def main() -> None:
    """Judge the checkpoint and write summary.json."""
    assets = Path(os.environ.get("ASSETS_DIR", "/assets"))
    checkpoint = Path(os.environ.get("CHECKPOINT_DIR", "/ckpt"))
    out = Path(os.environ.get("OUTPUT_DIR", "/out"))
    data = load_data(assets)
    start = np.load(assets / "models/poisoned/weights.npy", allow_pickle=False)
    retrained = np.load(assets / "models/retrained/weights.npy", allow_pickle=False)
    known = {
        "start": start,
        "masked": backdoor.unlearn(start, data.retain, data.forget, alpha=0.0),
        "ascent": backdoor.unlearn(start, data.retain, data.forget, alpha=backdoor.ALPHA),
        "retrained": retrained,
    }
    baselines = {name: measure(weights, data, retrained) for name, weights in known.items()}
    judged = {
        case: [judge(checkpoint, case, number, data, retrained) for number in range(1, REPEATS + 1)]
        for case in CASES
    }
    summary = {
        "status": "scored",
        "metrics": collect(judged, baselines["start"]["forget_loss"]),
        "baselines": baselines,
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
