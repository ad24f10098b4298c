"""The rows that models are measured on."""

import json
from pathlib import Path
from typing import Any, NamedTuple


class Question(NamedTuple):
    """One row: a question, its answer, another wording of that, and wrong answers."""

    question: str
    answer: str
    paraphrase: str
    wrong: tuple[str, ...]


def questions(path: Path) -> list[Question]:
    """Read a file of rows, one JSON object a line.

    Where there is no other wording of the right answer, it is the answer itself.

    Raises:
        ValueError: a row is not what it should be, or there are none.
    """
    found = [_question(json.loads(line)) for line in path.read_text("utf-8").split("\n") if line]
    if not found:
        raise ValueError(f"{path.name} has no rows")
    return found


def _question(row: dict[str, Any]) -> Question:
    answer, wrong = row["answer"], tuple(row["perturbed_answer"])
    paraphrase = row.get("paraphrased_answer", answer)
    if not wrong or not all(isinstance(text, str) for text in (answer, paraphrase, *wrong)):
        raise ValueError("a row has no wrong answers, or one that is no text")
    return Question(row["question"], answer, paraphrase, wrong)
