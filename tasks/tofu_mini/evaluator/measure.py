"""Measure one model: extraction strength on the forget rows, and model utility with nine parts."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import formulas
from questions import questions
from readings import Example, encode, generate, read
from rouge_score.rouge_scorer import RougeScorer
from transformers import PreTrainedModel, PreTrainedTokenizerBase

FORGET = "forget10_perturbed.json"
UTILITY = {
    "retain": "retain_perturbed.json",
    "real_authors": "real_authors_perturbed.json",
    "world_facts": "world_facts_perturbed.json",
}
WITHOUT_OPTIONS = frozenset({"retain"})
"""Groups whose probability is the answer's own; for the others it is its share among options."""


class Rows(NamedTuple):
    """A file of rows as tokens; ``wrong`` has a list for each row."""

    texts: list[str]
    answers: list[Example]
    paraphrases: list[Example]
    wrong: list[list[Example]]


def load(tokenizer: PreTrainedTokenizerBase, path: Path) -> Rows:
    """Read and tokenise a file of rows.

    Raises:
        ValueError: a row is broken, or an answer is empty after tokenising.
    """
    rows = questions(path)
    return Rows(
        texts=[row.answer for row in rows],
        answers=[encode(tokenizer, row.question, row.answer) for row in rows],
        paraphrases=[encode(tokenizer, row.question, row.paraphrase) for row in rows],
        wrong=[[encode(tokenizer, row.question, text) for text in row.wrong] for row in rows],
    )


class Examiner:
    """The rows of all groups, tokenised once, to measure any number of models on."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, data: Path) -> None:
        self._tokenizer = tokenizer
        self._forget = load(tokenizer, data / FORGET)
        self._utility = {group: load(tokenizer, data / file) for group, file in UTILITY.items()}

    def measure(self, model: PreTrainedModel) -> dict[str, float]:
        """Return extraction strength, model utility and its nine parts.

        Raises:
            NotFiniteError: the model gives NaN or an infinity.
        """
        parts: dict[str, float] = {}
        for group, rows in self._utility.items():
            parts |= self._parts(model, group, rows)
        return {
            "extraction_strength": _strength(model, self._forget),
            "model_utility": formulas.model_utility(parts),
            **parts,
        }

    def _parts(self, model: PreTrainedModel, group: str, rows: Rows) -> dict[str, float]:
        own = [reading.loss for reading in read(model, rows.answers)]
        paraphrased = [reading.loss for reading in read(model, rows.paraphrases)]
        wrong = _wrong_losses(model, rows.wrong)
        if group in WITHOUT_OPTIONS:
            probabilities = [formulas.probability(loss) for loss in own]
        else:
            probabilities = [
                formulas.probability_with_options(
                    formulas.probability(loss), [formulas.probability(other) for other in others]
                )
                for loss, others in zip(own, wrong, strict=True)
            ]
        ratios = [
            formulas.truth_ratio(loss, others)
            for loss, others in zip(paraphrased, wrong, strict=True)
        ]
        values = (
            formulas.mean(probabilities),
            _rouge(rows.texts, generate(model, self._tokenizer, rows.answers)),
            formulas.truthfulness(ratios),
        )
        return {
            f"{group}_{name}": value for name, value in zip(formulas.MEASURES, values, strict=True)
        }


def _strength(model: PreTrainedModel, rows: Rows) -> float:
    return formulas.mean(
        [
            # Without the last token, which ends the text.
            formulas.extraction_strength(reading.predicted[:-1], example.answer[:-1])
            for reading, example in zip(read(model, rows.answers), rows.answers, strict=True)
        ]
    )


def _wrong_losses(model: PreTrainedModel, wrong: Sequence[Sequence[Example]]) -> list[list[float]]:
    readings = iter(read(model, [example for examples in wrong for example in examples]))
    return [[next(readings).loss for _ in examples] for examples in wrong]


def _rouge(answers: Sequence[str], said: Sequence[str]) -> float:
    """Return the mean ROUGE-L recall, words stemmed."""
    scorer = RougeScorer(["rougeL"], use_stemmer=True)
    return formulas.mean(
        [
            float(scorer.score(answer, text)["rougeL"].recall)
            for answer, text in zip(answers, said, strict=True)
        ]
    )
