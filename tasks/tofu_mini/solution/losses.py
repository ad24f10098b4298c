"""The objective: negative preference optimisation on forget rows, a retain loss on the others.

NPO after "Negative Preference Optimization" (arXiv 2404.05868): -(2 / beta) mean log sigmoid(beta
(NLL - NLL of the start)), with the NLL summed over an answer's tokens. A long answer then counts
for more than a short one; divided by the number of tokens it does not.
"""

import torch
from batches import IGNORED, Batch
from settings import Forget, Method, Retain
from torch.nn import functional as F  # noqa: N812 - what everybody calls it
from transformers import PreTrainedModel


def loss(
    method: Method, model: torch.nn.Module, start: PreTrainedModel, forget: Batch, retain: Batch
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return forget and retain loss, each weighted; ``start`` is frozen."""
    return (
        method.gamma * _forget_loss(method, model, start, forget),
        method.alpha * _retain_loss(method, model, start, retain),
    )


def _forget_loss(
    method: Method, model: torch.nn.Module, start: PreTrainedModel, batch: Batch
) -> torch.Tensor:
    nll, tokens = answer_nll(_logits(model, batch), batch.labels)
    with torch.no_grad():
        before, _ = answer_nll(_logits(start, batch), batch.labels)
    ratio = nll - before
    if method.forget is Forget.NPO_TOKEN:
        ratio = ratio / tokens
    return npo(ratio, method.beta)


def _retain_loss(
    method: Method, model: torch.nn.Module, start: PreTrainedModel, batch: Batch
) -> torch.Tensor:
    logits = _logits(model, batch)
    if method.retain is Retain.NLL:
        nll, tokens = answer_nll(logits, batch.labels)
        return nll.sum() / tokens.sum()
    with torch.no_grad():
        before = _logits(start, batch)
    return kl(logits, before, batch.attention_mask)


def npo(ratio: torch.Tensor, beta: float) -> torch.Tensor:
    """Return the NPO loss of log ratios NLL - NLL of the start, one a row."""
    return -2.0 / beta * F.logsigmoid(beta * ratio).mean()


def answer_nll(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's loss summed over its answer's tokens, in nats, and their number."""
    wanted = labels[:, 1:]
    losses = F.cross_entropy(
        logits[:, :-1].float().transpose(1, 2), wanted, ignore_index=IGNORED, reduction="none"
    )
    return losses.sum(dim=1), (wanted != IGNORED).sum(dim=1)


def kl(logits: torch.Tensor, before: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return KL(start || model) in nats, the mean over every token that is not filling."""
    seen = mask.bool()
    return F.kl_div(
        F.log_softmax(logits[seen].float(), dim=-1),
        F.log_softmax(before[seen].float(), dim=-1),
        reduction="batchmean",
        log_target=True,
    )


def _logits(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    found: torch.Tensor = model(
        input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False
    ).logits
    return found
