"""What a host can do, as ``orch doctor`` reports it."""

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.errors import Exit


class Level(StrEnum):
    """How far an ability is there. Only ``MISSING`` keeps a run from starting."""

    OK = "ok"
    LIMITED = "limited"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Ability:
    """One thing a host can or cannot do.

    Attributes:
        name: what was looked at.
        level: how far it is there.
        fact: what was found, in one line.
        remedy: what to do about it; empty when ``level`` is ok.
        exit_code: what a run ends with when it is missing.
    """

    name: str
    level: Level
    fact: str
    remedy: str = ""
    exit_code: Exit = Exit.INFRASTRUCTURE
