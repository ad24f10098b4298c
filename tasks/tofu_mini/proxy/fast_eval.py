"""The proxy of the TOFU tasks: how much more the forget rows cost the model than the retain rows.

``fast_eval.py CHECKPOINT_DIR...`` prints one JSON object a folder. Its value is the rise of the
mean answer loss (nats per token) over the first 24 forget rows, minus what it rose by on the first
24 retain rows, if it did. Sequences are cut at 512 tokens. It says nothing of extraction, nor of
utility beyond these rows, and has no upper bound: what ruins a model can have a great value too.
"""

import json
import os
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

ROWS = 24
LONGEST = 512
SYSTEM_PROMPT = "You are a helpful assistant."
DATE = "10 Apr 2025"

Row = tuple[list[int], int]
"""The tokens of a question with its answer, and how many of them are the question."""


class Proxy:
    """The rows that both sides are measured on, as tokens of the anchor's tokenizer."""

    def __init__(self, anchor: Path, data: Path) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(anchor, local_files_only=True)
        self._sides = {
            side: [self._row(**json.loads(line)) for line in _first_lines(data / file)]
            for side, file in (("forget", "forget10.json"), ("retain", "retain90.json"))
        }

    def _row(self, question: str, answer: str) -> Row:
        chat = [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]
        prompt, whole = (
            self._tokenizer.apply_chat_template(
                part,
                tokenize=True,
                return_dict=True,
                add_generation_prompt=part is not chat,
                date_string=DATE,
            )["input_ids"]
            for part in (chat[:-1], chat)
        )
        if whole[-1] != self._tokenizer.eos_token_id:
            whole = [*whole, self._tokenizer.eos_token_id]
        return whole[:LONGEST], len(prompt)

    @torch.inference_mode()
    def losses(self, folder: Path) -> dict[str, float]:
        """Return the mean over rows of the mean answer loss, for each side."""
        model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", local_files_only=True)
        model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
        return {
            side: sum(_loss(model, *row) for row in rows) / len(rows)
            for side, rows in self._sides.items()
        }


def _first_lines(path: Path) -> list[str]:
    lines = [line for line in path.read_text("utf-8").split("\n") if line]
    if len(lines) < ROWS:
        sys.exit(f"{path.name}: {len(lines)} rows, {ROWS} are needed")
    return lines[:ROWS]


def _loss(model: PreTrainedModel, tokens: list[int], question: int) -> float:
    ids = torch.tensor([tokens], device=model.device)
    logits = model(input_ids=ids).logits[0, question - 1 : -1].float()
    return float(torch.nn.functional.cross_entropy(logits, ids[0, question:]))


def main() -> None:
    """Evaluate checkpoint folders."""
    if len(sys.argv) < 2:  # noqa: PLR2004 - the script, and at least one folder
        sys.exit("usage: fast_eval.py CHECKPOINT_DIR...")
    logging.disable_progress_bar()
    assets = Path(os.environ.get("ASSETS_DIR", "/assets"))
    anchor = assets / "models/training_start"
    proxy = Proxy(anchor, assets / "data/train")
    start = proxy.losses(anchor)
    for folder in sys.argv[1:]:
        found = proxy.losses(Path(folder))
        rise = {side: found[side] - start[side] for side in found}
        parts = {f"{side}_nll": value for side, value in found.items()}
        parts |= {f"{side}_nll_rise": value for side, value in rise.items()}
        shown = {
            "checkpoint": folder,
            "metric": "proxy_answer_nll_tradeoff",
            "value": rise["forget"] - max(0.0, rise["retain"]),
            "components": parts,
        }
        print(json.dumps(shown), flush=True)


if __name__ == "__main__":
    main()
