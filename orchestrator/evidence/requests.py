"""What an agent asks the host for, through files; a request is never a record.

``submit.sh`` and ``no_candidate.sh`` write ``/run/orch/request-<name>.json`` (written whole, then
renamed); the host answers in ``/logs/answers/<id>.json``, where only the host can write.
"""

import os
import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from orchestrator.domain.records import LeftOutRecord, ViolationRecord
from orchestrator.domain.task import Strict
from orchestrator.evidence.context import load_json_size_capped, save
from orchestrator.evidence.untrusted import names_in, read_untrusted

MAX_REQUEST = 64 * 1024
_NAME = re.compile(r"request-[A-Za-z0-9]{1,64}\.json")
_MAX_NAMES = 4096


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

    def next(self) -> Request | None:
        """Return one request that has not been handled; unreadable ones are passed over once."""
        for name in sorted(names_in(self.requests, most=_MAX_NAMES)):
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
        """Tell the agent; a second answer to the same id replaces the first."""
        save(self.answers / f"{answer.id}.json", answer, replace=True)
