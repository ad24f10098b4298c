"""What a model says to questions: losses and greedy tokens under teacher forcing, and free text.

Tokens are made as they were in training (chat template, system prompt and date of OpenUnlearning),
with the tokenizer of the anchor. Losses are taken in 32 bits whatever the model's own precision.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from formulas import require_finite
from transformers import PreTrainedModel, PreTrainedTokenizerBase

SYSTEM_PROMPT = "You are a helpful assistant."
DATE = "10 Apr 2025"
NEW_TOKENS = 200
BATCH = 32


class Example(NamedTuple):
    """A question as prompt tokens, and an answer's tokens, the last of which ends the text."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


class Reading(NamedTuple):
    """Mean loss per answer token in nats, and the most likely token at each of them."""

    loss: float
    predicted: tuple[int, ...]


def encode(tokenizer: PreTrainedTokenizerBase, question: str, answer: str) -> Example:
    """Turn a question and an answer into tokens.

    Raises:
        ValueError: the answer has no tokens of its own, or the template does not end a prompt where
            an answer begins. Neither may pass for something that a model answers perfectly.
    """
    chat = [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": question},
        {"role": "assistant", "content": answer},
    ]
    prompt = _tokens(tokenizer, chat[:-1], add_generation_prompt=True)
    whole = _tokens(tokenizer, chat, add_generation_prompt=False)
    if whole[-1] != tokenizer.eos_token_id:
        whole = (*whole, tokenizer.eos_token_id)
    if whole[: len(prompt)] != prompt:
        raise ValueError("the chat template changes a prompt once there is an answer")
    if len(whole) - len(prompt) <= 1:
        raise ValueError("an answer is empty after tokenising")
    return Example(prompt, whole[len(prompt) :])


def _tokens(
    tokenizer: PreTrainedTokenizerBase, chat: list[dict[str, str]], *, add_generation_prompt: bool
) -> tuple[int, ...]:
    encoded = tokenizer.apply_chat_template(
        chat,
        tokenize=True,
        return_dict=True,
        add_generation_prompt=add_generation_prompt,
        date_string=DATE,
    )
    return tuple(encoded["input_ids"])


@torch.inference_mode()
def read(model: PreTrainedModel, examples: Sequence[Example]) -> list[Reading]:
    """Read each answer under teacher forcing.

    Raises:
        NotFiniteError: a loss is NaN or infinite.
    """
    found: list[Reading] = []
    for batch in _batches(examples):
        tokens = [torch.tensor(one.prompt + one.answer) for one in batch]
        padded = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True)
        seen = torch.arange(padded.shape[1]) < torch.tensor([[len(one)] for one in tokens])
        logits = model(
            input_ids=padded.to(model.device), attention_mask=seen.long().to(model.device)
        ).logits
        for row, one in zip(logits, batch, strict=True):
            # The token at each place is predicted at the place before it.
            places = slice(len(one.prompt) - 1, len(one.prompt) - 1 + len(one.answer))
            answer = torch.tensor(one.answer, device=model.device)
            said = row[places].float()
            loss = torch.nn.functional.cross_entropy(said, answer)
            found.append(Reading(float(loss), tuple(said.argmax(dim=-1).tolist())))
    require_finite("loss", [reading.loss for reading in found])
    return found


@torch.inference_mode()
def generate(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, examples: Sequence[Example]
) -> list[str]:
    """Answer each prompt greedily with at most 200 tokens; prompts are padded on the left."""
    texts: list[str] = []
    for batch in _batches(examples):
        width = max(len(one.prompt) for one in batch)
        filler = tokenizer.eos_token_id
        prompts = torch.tensor(
            [[filler] * (width - len(one.prompt)) + list(one.prompt) for one in batch]
        )
        seen = torch.tensor(
            [[0] * (width - len(one.prompt)) + [1] * len(one.prompt) for one in batch]
        )
        output = model.generate(
            prompts.to(model.device),
            attention_mask=seen.to(model.device),
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            max_new_tokens=NEW_TOKENS,
            pad_token_id=filler,
        )
        texts += tokenizer.batch_decode(output[:, width:], skip_special_tokens=True)
    return [text.strip() for text in texts]


def _batches(examples: Sequence[Example]) -> Iterator[Sequence[Example]]:
    for first in range(0, len(examples), BATCH):
        yield examples[first : first + BATCH]
