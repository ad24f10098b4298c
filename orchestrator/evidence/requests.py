"""What an agent asks the host for, through files; a request is never a record.

``submit.sh`` and ``no_candidate.sh`` write ``/run/orch/request-<name>.json`` (written whole, then
renamed); the host answers in ``/logs/answers/<id>.json``, where only the host can write.
"""

import os
import re
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field, ValidationError

from orchestrator.domain.records import LeftOutRecord, ViolationRecord
from orchestrator.domain.schema import Strict
from orchestrator.evidence.context import load_json_size_capped, save
from orchestrator.evidence.untrusted import names_in, read_untrusted

MAX_REQUEST = 64 * 1024
Row = TypeVar("Row", LeftOutRecord, ViolationRecord)
_NAME = re.compile(r"request-[A-Za-z0-9]{1,64}\.json")
_MAX_NAMES = 4096
_MAX_ANSWERS = 64
_MAX_LISTED = 64 * 1024
"""Bytes of paths that an answer lists: an agent may be refused a thousand times."""


class Action(StrEnum):
    """What may be asked for."""

    SUBMIT = "submit"
    NO_CANDIDATE = "no_candidate"


class Request(Strict):
    """One request of the agent's."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9]{1,64}$")]
    action: Action
    allow_empty: bool = False
    reason: Annotated[str, Field(max_length=8192)] = ""


class Answer(Strict):
    """The host's answer, shown to the agent."""

    id: str
    accepted: bool
    message: str
    left_out: tuple[LeftOutRecord, ...] = ()
    violations: tuple[ViolationRecord, ...] = ()


@dataclass(slots=True)
class RequestBox:
    """The two folders behind ``/run/orch`` and ``/logs/answers``."""

    requests: Path
    answers: Path
    _handled: set[str] = field(default_factory=set)
    _answered: list[str] = field(default_factory=list)

    def next(self) -> Request | None:
        """Return one request that has not been handled; unreadable ones are passed over once.

        A name that is gone is forgotten: what is remembered must not grow with what is sent.
        """
        names = sorted(names_in(self.requests, most=_MAX_NAMES))
        self._handled.intersection_update(names)
        for name in names:
            if name in self._handled or not _NAME.fullmatch(name):
                continue
            self._handled.add(name)
            data = read_untrusted(self.requests, name, max_bytes=MAX_REQUEST)
            if data is None:
                continue
            try:
                return Request.model_validate(load_json_size_capped(data))
            except (ValueError, ValidationError):
                continue
        return None

    def was_read(self, request_id: str) -> bool:
        """Tell whether the asker has taken its request away, as it does once it read the answer."""
        return not os.path.lexists(self.requests / f"request-{request_id}.json")

    def answer(self, answer: Answer) -> None:
        """Tell the agent; a second answer to the same id replaces the first.

        Answers lie on the host's own disk: only the latest are kept, each with no more than the
        first of what it lists.
        """
        short = answer.model_copy(
            update={"left_out": _first(answer.left_out), "violations": _first(answer.violations)}
        )
        save(self.answers / f"{answer.id}.json", short, replace=True)
        if answer.id not in self._answered:
            self._answered.append(answer.id)
        while len(self._answered) > _MAX_ANSWERS:
            (self.answers / f"{self._answered.pop(0)}.json").unlink(missing_ok=True)


def _first(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Keep the first rows, as far as their paths have room."""
    lengths = accumulate(len(row.path) for row in rows)
    return tuple(row for row, length in zip(rows, lengths, strict=True) if length <= _MAX_LISTED)
