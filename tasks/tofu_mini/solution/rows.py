"""The rows: files of questions and answers, and their tokens."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SYSTEM_PROMPT = "You are a helpful assistant."
DATE = "10 Apr 2025"
LONGEST = 512


class Row(NamedTuple):
    """One question with its answer as tokens, and how many of them are the question."""

    tokens: list[int]
    question: int


def read(path: Path) -> list[tuple[str, str]]:
    """Read questions and answers, one JSON object a line."""
    rows = [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]
    return [(row["question"], row["answer"]) for row in rows]


def encode(tokenizer: "PreTrainedTokenizerBase", question: str, answer: str) -> Row:
    """Turn a row into tokens as the start was trained on them, at most 512."""
    chat = [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": question},
        {"role": "assistant", "content": answer},
    ]
    prompt, whole = (
        tokenizer.apply_chat_template(
            part,
            tokenize=True,
            return_dict=True,
            add_generation_prompt=part is not chat,
            date_string=DATE,
        )["input_ids"]
        for part in (chat[:-1], chat)
    )
    if whole[-1] != tokenizer.eos_token_id:
        whole = [*whole, tokenizer.eos_token_id]
    return Row(whole[:LONGEST], len(prompt))
