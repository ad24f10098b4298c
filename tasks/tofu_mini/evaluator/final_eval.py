"""The final evaluator of the TOFU tasks: Extraction Strength, Model Utility, and their balance.

The start and the retain-only reference are measured again in every run, and the candidate against
them. A checkpoint gives tensors and nothing else: configuration, tokenizer, chat template and
generation settings are the anchor's, into whose model the tensors are copied.

Writes /out/summary.json. ``invalid``, the candidate's own doing: ``start_weights`` (its weights are
the start's; ORCH_REFERENCE_RUN=1 permits that), ``nonfinite_weights``, ``nonfinite_<where>``.
Anything else that is wrong (rows, answers without tokens, points that span no scale) is an error of
the evaluation and ends it with a traceback.
"""

import json
import os
from pathlib import Path
from typing import Any

import torch
from formulas import NotFiniteError, Point, balance
from measure import Examiner
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

HEAD = "lm_head.weight"


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Read the tensors of a model folder, in one file or in shards."""
    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
    if not found:
        raise ValueError(f"no safetensors in {folder}")
    return found


def copy_into(model: PreTrainedModel, found: dict[str, torch.Tensor]) -> None:
    """Put tensors into a model in its own precision.

    Raises:
        ValueError: names are not the model's. A head that is the embedding may be left out.
        RuntimeError: shapes are not the model's.
    """
    if model.config.tie_word_embeddings:
        found = {name: tensor for name, tensor in found.items() if name != HEAD}
    result = model.load_state_dict(found, strict=False)
    tied = {HEAD} if model.config.tie_word_embeddings else set()
    if result.unexpected_keys or set(result.missing_keys) - tied:
        raise ValueError(f"missing {result.missing_keys}, unexpected {result.unexpected_keys}")


def is_finite(model: PreTrainedModel) -> bool:
    """Tell whether no weight is NaN or infinite."""
    return all(bool(torch.isfinite(weight).all()) for weight in model.parameters())


def has_weights_of(model: PreTrainedModel, found: dict[str, torch.Tensor]) -> bool:
    """Tell whether a model's weights are these tensors, in the model's precision."""
    own = model.state_dict()
    return all(
        torch.equal(own[name], tensor.to(own[name]))
        for name, tensor in found.items()
        if name in own
    )


def measure_candidate(
    model: PreTrainedModel, examiner: Examiner, start: dict[str, float], reference: dict[str, float]
) -> dict[str, float]:
    """Measure the candidate and weigh it against both points.

    Raises:
        NotFiniteError: its weights, or what it says, hold NaN or an infinity.
    """
    if not is_finite(model):
        raise NotFiniteError("weights")
    found = examiner.measure(model)
    return {**balance(point(start), point(reference), point(found))._asdict(), **found}


def point(measured: dict[str, float]) -> Point:
    """Pick the two numbers that the balance is made of."""
    return Point(measured["extraction_strength"], measured["model_utility"])


def evaluate(assets: Path, checkpoint: Path, *, reference_run: bool) -> dict[str, Any]:
    """Measure start, reference and candidate, and return the summary."""
    anchor = assets / "models/training_start"
    tokenizer = AutoTokenizer.from_pretrained(anchor, local_files_only=True)
    examiner = Examiner(tokenizer, assets / "data/final")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(anchor, dtype="auto", local_files_only=True)
    model = model.to(device).eval()
    start = examiner.measure(model)
    copy_into(model, tensors(assets / "models/retain_reference"))
    reference = examiner.measure(model)
    balance(point(start), point(reference), point(start))  # the scale, before the candidate

    copy_into(model, tensors(checkpoint))
    reason, metrics = "", dict[str, float]()
    if has_weights_of(model, tensors(anchor)) and not reference_run:
        reason = "start_weights"
    else:
        try:
            metrics = measure_candidate(model, examiner, start, reference)
        except NotFiniteError as fault:
            reason = f"nonfinite_{fault.word}"
    return {
        "status": "invalid" if reason else "scored",
        "reason": reason,
        "metrics": metrics,
        "baselines": {"start": start, "reference": reference},
    }


def main() -> None:
    """Judge the checkpoint and write summary.json."""
    logging.disable_progress_bar()
    summary = evaluate(
        Path(os.environ.get("ASSETS_DIR", "/assets")),
        Path(os.environ.get("CHECKPOINT_DIR", "/ckpt")),
        reference_run=os.environ.get("ORCH_REFERENCE_RUN") == "1",
    )
    out = Path(os.environ.get("OUTPUT_DIR", "/out"))
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
