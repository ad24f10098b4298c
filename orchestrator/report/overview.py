"""One row per attempt: where it stands and what came of it."""

import re
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from typing import Any, ClassVar

from orchestrator.domain.attempt import SubmissionOrigin
from orchestrator.report import words
from orchestrator.report.facts import member, score_text
from orchestrator.report.lookup import run_id
from orchestrator.report.views import (
    AttemptView,
    ReplayView,
    Score,
    contested_of,
    ending_reason,
    exit_facts_of,
    faults_below,
    headline,
    reason_and_origin,
    score_of,
    state_word,
)

_SHORTEST = 8
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_LONGEST_REASON = 40


@dataclass(frozen=True, slots=True)
class Row:
    """One attempt with the replay that stands for it, and its result. ``age`` in seconds."""

    HEADINGS: ClassVar = ("id", "config", "attempt", "state", "replay", "exit", "score", "age")

    id: str
    view: AttemptView
    replay: ReplayView | None
    score: Score | None
    age: float | None

    def cells(self) -> tuple[str, ...]:
        """The row as it is printed."""
        config, _, attempt = self.view.id.partition("/")
        return (
            self.id or "-",
            config,
            attempt.removeprefix("attempt-"),
            self._standing(),
            self._replayed(),
            _exit_code(self.replay),
            self._result(),
            "-" if self.age is None else words.duration(self.age),
        )

    def document(self) -> dict[str, Any]:
        """The row as JSON."""
        reason, origin = reason_and_origin(self.view)
        best = self.score.best if self.score else None
        return {
            "id": self.view.id,
            "run_id": run_id(self.view.folder),
            "state": state_word(self.view),
            "reason": reason,
            "origin": origin,
            "ending": ending_reason(self.view),
            "contested": list(contested_of(self.view)),
            "replay": self.replay
            and {
                "id": self.replay.id,
                "series": self.replay.plan and self.replay.plan.series,
                "state": state_word(self.replay),
                "ending": ending_reason(self.replay),
                "exit_code": exit_facts_of(self.replay).get("exit_code"),
            },
            "score": self.score
            and {
                "status": self.score.word,
                "checkpoint": best.checkpoint if best else None,
                "value": best.value if best else None,
                "official": self.score.official,
                "contested": list(self.score.contested),
                "reason": self.score.reason,
            },
            "age_s": self.age,
            "faults": list(self.faults()),
        }

    def faults(self) -> tuple[str, ...]:
        """What could not be read of the attempt, its replays and their scorings."""
        return faults_below(self.view)

    def _standing(self) -> str:
        reason, origin = reason_and_origin(self.view)
        said = "/".join(
            part for part in (reason, origin) if part not in {"", SubmissionOrigin.NONE}
        ) or _name(ending_reason(self.view))
        return state_word(self.view) + (f" ({said})" if said else "")

    def _replayed(self) -> str:
        if self.replay is None:
            return "-"
        number = self.replay.id.rpartition("-")[2]
        ending = _name(ending_reason(self.replay))
        said = (number, member(self.replay), state_word(self.replay), ending and f"({ending})")
        return " ".join(part for part in said if part)

    def _result(self) -> str:
        why = f" ({_name(self.score.reason)})" if self.score and self.score.reason else ""
        return score_text(self.score) + why


def overview(views: tuple[AttemptView, ...], *, now: datetime) -> tuple[Row, ...]:
    """Make the rows of ``orch status``; ids are shortened as far as they stay unique.

    Args:
        views: the attempts, in the order to list them.
        now: aware; ages count from an attempt's latest event to here.
    """
    ids = [run_id(view.folder) for view in views]
    length = _shortest(ids)
    return tuple(_row(view, name[:length], now) for view, name in zip(views, ids, strict=True))


def _row(view: AttemptView, short: str, now: datetime) -> Row:
    replay = headline(view)
    return Row(
        id=short,
        view=view,
        replay=replay,
        score=score_of(replay) if replay else None,
        age=_age(view, now),
    )


def _name(reason: str) -> str:
    """Keep of a reason the names that it begins with; sentences are left to ``orch show``."""
    names = ": ".join(takewhile(_NAME.fullmatch, reason.split(": ")))
    if names or len(reason) <= _LONGEST_REASON:
        return names or reason
    return f"{reason[:_LONGEST_REASON]}..."


def _shortest(ids: list[str]) -> int:
    known = {name for name in ids if name}
    longest = max(map(len, known), default=_SHORTEST)
    return next(
        (n for n in range(_SHORTEST, longest) if len({name[:n] for name in known}) == len(known)),
        longest,
    )


def _age(view: AttemptView, now: datetime) -> float | None:
    journals = [view.journal]
    for replay in view.replays:
        journals += [replay.journal, *(scoring.journal for scoring in replay.scorings)]
    times = [words.moment(j.records[-1].ts) for j in journals if j.records]
    latest = max((time for time in times if time), default=None)
    return (now - latest).total_seconds() if latest else None


def _exit_code(replay: ReplayView | None) -> str:
    code = exit_facts_of(replay).get("exit_code") if replay else None
    return "-" if code is None else str(code)
