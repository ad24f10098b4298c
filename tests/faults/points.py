"""What is injected, and where: faults, points of a run, and the names that people give to cases.

A case is written ``FAULT@KIND:EVENT:WHEN``, such as ``kill9@replay:run_started:after``; the second
event of a name is ``EVENT#2``. ``before`` is right before the event is written to the journal,
``after`` right after it is durable there, ``during`` while a container runs.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from orchestrator.domain.attempt import RunKind


class Fault(StrEnum):
    """What happens to the process that supervises a run, or to what it stands on."""

    KILL9 = "kill9"
    KILL9_BOTH = "kill9_both"
    SIGTERM = "sigterm"
    ENGINE_CUT = "engine_cut"
    ENOSPC = "enospc"
    DISK_FULL = "disk_full"
    EIO = "eio"
    REMOVED = "removed"


SAYS: dict[Fault, str] = {
    Fault.KILL9: "kill -9 of the supervisor",
    Fault.KILL9_BOTH: "kill -9 of the supervisor and everything it started",
    Fault.SIGTERM: "SIGTERM to the supervisor",
    Fault.ENGINE_CUT: "every engine connection breaks, none opens for two seconds",
    Fault.ENOSPC: "the next write fails with ENOSPC, once",
    Fault.DISK_FULL: "the runs folder's file system is full until the command has ended",
    Fault.EIO: "the next fsync fails with EIO, once",
    Fault.REMOVED: "somebody else removes the run's containers",
}


class When(StrEnum):
    """Where a point lies: on one side of an event, or between two."""

    BEFORE = "before"
    AFTER = "after"
    DURING = "during"


CONTAINERS: dict[str, tuple[RunKind, str]] = {
    "explore": (RunKind.ATTEMPT, "exploring"),
    "replay": (RunKind.REPLAY, "running"),
    "validate": (RunKind.REPLAY, "validating"),
    "score": (RunKind.SCORING, "evaluating"),
}
"""Kind of run and name of the point at which a container of a phase runs."""


@dataclass(frozen=True, slots=True)
class Point:
    """One moment of one run. ``number`` counts the events of that name, from 1."""

    kind: RunKind
    event: str
    number: int
    when: When

    def __str__(self) -> str:
        number = f"#{self.number}" if self.number > 1 else ""
        return f"{self.kind}:{self.event}{number}:{self.when}"


@dataclass(frozen=True, slots=True)
class Case:
    """A fault at a point."""

    fault: Fault
    point: Point

    def __str__(self) -> str:
        return f"{self.fault}@{self.point}"


_Named = TypeVar("_Named", bound=StrEnum)
_POINT = re.compile(r"(\w+):(\w+?)(?:#(\d+))?:(\w+)")


def read_point(text: str) -> Point:
    """Read a point as it is written.

    Raises:
        ValueError: it is not one.
    """
    match = _POINT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not KIND:EVENT:WHEN")
    kind, event, number, when = match.groups()
    return Point(_named(RunKind, kind), event, int(number or 1), _named(When, when))


def read_case(text: str) -> Case:
    """Read a case as it is written.

    Raises:
        ValueError: it is not one.
    """
    fault, at, point = text.partition("@")
    if not at:
        raise ValueError(f"{text!r} is not FAULT@KIND:EVENT:WHEN")
    return Case(_named(Fault, fault), read_point(point))


def _named(kind: type[_Named], text: str) -> _Named:
    try:
        return kind(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not one of {', '.join(kind)}") from error
