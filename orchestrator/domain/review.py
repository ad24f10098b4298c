"""What a person says of a model's answers: labels given in a review, and single corrections.

They lie beside what the evaluator found, as ``corrections/NNN.json`` of the attempt, and change
nothing of it: no score, no class, no eligibility. A later one of the same label supersedes an
earlier one by naming its number.
"""

from typing import Annotated, Literal

from pydantic import Field, RootModel

from orchestrator.domain.interface import Name
from orchestrator.domain.records import FileDigest
from orchestrator.domain.schema import Strict

MOST_TEXT = 4000
Text = Annotated[str, Field(min_length=1, max_length=MOST_TEXT)]


class Judged(Strict):
    """Which answer is spoken of, and by which scoring it was labelled.

    Attributes:
        number: of this record, the same as its file's.
        answer_sha256: of the answer's bytes.
        supersedes: the latest earlier record that says something of one of the same labels.
    """

    format: Literal[1] = 1
    number: Annotated[int, Field(ge=1)]
    made: str
    replay: Annotated[int, Field(ge=1)]
    scoring: Annotated[int, Field(ge=1)]
    checkpoint: Annotated[str, Field(pattern=r"^checkpoint-[0-9]{1,12}$")]
    case: Name
    answer: Annotated[int, Field(ge=1, le=99)]
    answer_sha256: FileDigest
    supersedes: int | None = None


class Correction(Judged):
    """One label that is held to be wrong. ``quote`` stands in the answer, white space aside."""

    kind: Literal["correction"] = "correction"
    check: Name
    original: bool
    corrected: bool
    quote: Text
    reason: Text

    @property
    def labels(self) -> dict[str, bool]:
        """What it says, by check."""
        return {self.check: self.corrected}


class Review(Judged):
    """What a person who went through the answers says of one of them.

    Attributes:
        labels: by check; those that were left open are missing.
        blind: the original labels, the model and the case's name were not shown.
        seed: of the order that the answers came in: by the sha256 of ``SEED RUN_ID CASE ANSWER``.
        place: this answer's place in that order, from 1.
        total: how many there were.
    """

    kind: Literal["review"] = "review"
    labels: Annotated[dict[Name, bool], Field(min_length=1)]
    blind: bool
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)]
    place: Annotated[int, Field(ge=1)]
    total: Annotated[int, Field(ge=1)]


Judgement = Correction | Review


class JudgementRecord(RootModel[Annotated[Judgement, Field(discriminator="kind")]]):
    """A file of either kind."""


def folded(text: str) -> str:
    """Fold white space, as a quote and the answer it is from are compared."""
    return " ".join(text.split())
