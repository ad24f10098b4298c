"""What an evaluator and a validator may write; whatever else comes out of them is a crash."""

from typing import Annotated

from pydantic import Field

from orchestrator.domain.records import ScoreStatus
from orchestrator.domain.schema import Strict

Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:@/-]{1,64}$")]

Figure = Annotated[float, Field(strict=True)]
"""A number, and nothing that could be read as one: ``true`` is not 1 and ``"0.5"`` is not 0.5."""


class EvaluatorOutput(Strict):
    """What an evaluator may write to ``/out/summary.json``; anything else is a crash.

    Numbers may be non-finite here: they come from Python's own ``json`` module. Names and the
    reason are words, not sentences: an evaluator sees final rows, and no text of its own leaves it.
    """

    status: ScoreStatus
    reason: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{0,64}$")] = ""
    metrics: Annotated[dict[Word, Figure | tuple[Figure, ...]], Field(max_length=1000)] = Field(
        default_factory=dict
    )
    baselines: Annotated[dict[Word, dict[Word, Figure]], Field(max_length=16)] = Field(
        default_factory=dict
    )


class ValidatorOutput(Strict):
    """What a validator may write to ``/out/validation.json``; anything else is a crash."""

    valid: bool
    reason: str = ""
    detail: str = ""
    arrays: int | None = None
    parameters: int | None = None
