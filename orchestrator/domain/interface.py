"""How an agent works on a task that gives it no shell: edits with tests, or written answers."""

from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from orchestrator.domain.schema import RelativePath, Strict


class Interface(StrEnum):
    """How an agent works on the task."""

    SHELL = "shell"
    EDIT_TEST_SUBMIT = "edit-test-submit"
    ANSWER = "answer"


LineRange = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,6}-[1-9][0-9]{0,6}$")]
"""Lines of a file from 1, both ends in: ``9-24``."""


class EditSpec(Strict):
    """The edit-test-submit interface: which lines may change.

    Attributes:
        packages: what the first part of an edited file's name must be.
        editable: the lines of each file that may change, from the top down.
        tests: how often an agent may test.
    """

    packages: Annotated[tuple[str, ...], Field(min_length=1)]
    editable: dict[RelativePath, tuple[LineRange, ...]]
    tests: Annotated[int, Field(ge=1)] = 3

    @model_validator(mode="after")
    def _ranges_are_in_order(self) -> Self:
        for path, ranges in self.editable.items():
            if PurePosixPath(path).parts[0] not in self.packages:
                raise ValueError(f"{path!r} lies in none of the packages")
            lines = [int(number) for one in ranges for number in one.split("-")]
            starts = lines[2::2]
            if lines != sorted(lines) or any(map(int.__eq__, lines[1::2], starts)):
                raise ValueError(f"the ranges of {path!r} overlap, or do not go downwards")
        return self


Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
"""A word that may name a file, a metric and a heading."""


class AnswerCheck(Strict):
    """What is judged of each answer, and the yes-or-no question that a person is asked about it."""

    name: Name
    asks: str


def _in_order(checks: object) -> object:
    """Take a mapping for a list, so that its order is kept wherever the task is written."""
    if isinstance(checks, dict):
        return [{"name": name, "asks": asks} for name, asks in checks.items()]
    return checks


class AnswerSpec(Strict):
    """The answer interface: what a model is asked, and what of its answers is judged.

    Attributes:
        cases: the file with the question of each case.
        repeats: how often each is asked, every time in a conversation of its own.
        checks: in the file a mapping of each check to its question. The evaluator's metric
            ``CASE/CHECK`` is a list with a 1 or 0 for each repeat.
    """

    cases: Annotated[dict[Name, RelativePath], Field(min_length=1, max_length=99)]
    repeats: Annotated[int, Field(ge=1, le=99)] = 1
    checks: Annotated[
        tuple[AnswerCheck, ...], BeforeValidator(_in_order), Field(max_length=99)
    ] = ()

    @property
    def questions(self) -> dict[str, str]:
        """The question of each check, in their order."""
        return {check.name: check.asks for check in self.checks}
