"""Publish checkpoints as Hugging Face writes models: each is whole, or it is not there."""

import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

HEAD = "lm_head.weight"


def publish(
    weights: dict[str, torch.Tensor],
    start: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
) -> None:
    """Write a checkpoint beside its final place and rename it.

    Args:
        weights: the weights by name, in whatever precision they are trained.
        start: whose configuration and precision the checkpoint has.
        tokenizer: saved along, so that the checkpoint can be used as it is.
        folder: ``checkpoint-<step>``.
    """
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    tied = {HEAD} if start.config.tie_word_embeddings else set()
    stored = {
        name: value.to("cpu", start.dtype).contiguous()
        for name, value in weights.items()
        if name not in tied
    }
    save_file(stored, unfinished / "model.safetensors", metadata={"format": "pt"})
    start.config.save_pretrained(unfinished)
    start.generation_config.save_pretrained(unfinished)
    tokenizer.save_pretrained(unfinished)
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
