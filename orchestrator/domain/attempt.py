"""Identities of configs, attempts, replays and scorings, and how an exploration ends."""

import hashlib
import re
import unicodedata
from dataclasses import dataclass
from enum import StrEnum


class Entry(StrEnum):
    """Where an attempt enters the pipeline."""

    EXPLORE = "explore"
    PATCH = "patch"
    CHECKPOINT = "checkpoint"


class TerminationReason(StrEnum):
    """Why an exploration ended; exactly one holds."""

    AGENT_EXPLICIT_SUBMIT = "agent_explicit_submit"
    AGENT_EXPLICIT_NO_CANDIDATE = "agent_explicit_no_candidate"
    AGENT_EARLY_EXIT = "agent_early_exit"
    PHASE_DEADLINE = "phase_deadline"
    RUNTIME_FAILURE = "runtime_failure"
    OPERATOR_INTERRUPT = "operator_interrupt"


class SubmissionOrigin(StrEnum):
    """Whose act made the candidate."""

    AGENT = "agent"
    HOST_EARLY_EXIT_CAPTURE = "host_early_exit_capture"
    HOST_DEADLINE_CAPTURE = "host_deadline_capture"
    NONE = "none"
    OPERATOR_PATCH = "operator_patch"
    OPERATOR_CHECKPOINT = "operator_checkpoint"
    RECORDED = "recorded"


class Through(StrEnum):
    """How far a replay goes by itself."""

    VALIDATE = "validate"
    SCORE = "score"


class RunKind(StrEnum):
    """The three things that have a journal of their own."""

    ATTEMPT = "attempt"
    REPLAY = "replay"
    SCORING = "scoring"


_SERIES = re.compile(r"official|(?:seed|ablation)-[1-9][0-9]{0,3}")


@dataclass(frozen=True, slots=True)
class Series:
    """A member of a declared series of replays: ``official``, ``seed-N`` or ``ablation-N``.

    At most one finished replay exists per member.

    Raises:
        ValueError: the name is none of these.
    """

    name: str = "official"

    def __post_init__(self) -> None:
        if not _SERIES.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is not official, seed-N or ablation-N")

    @property
    def seed(self) -> int | None:
        """The seed of a ``seed-N`` member; None for the others."""
        kind, _, number = self.name.partition("-")
        return int(number) if kind == "seed" else None


def seeded(count: int) -> tuple[Series, ...]:
    """List the seeded members 1 to ``count``."""
    return tuple(Series(f"seed-{number}") for number in range(1, count + 1))


def slug(text: str, limit: int = 40) -> str:
    """Make a name of ``[a-z0-9-]`` for folders and containers; the true text is kept elsewhere."""
    ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9_]+", "-", ascii_text).strip("-")[:limit].strip("-_") or "x"


def candidate_key(task_digest: str, tree_digest: str, image_digest: str) -> str:
    """Name a candidate by what it is: the same task, tree and image are the same candidate."""
    named = f"{task_digest}\0{tree_digest}\0{image_digest}".encode()
    return f"candidate:v1:sha256:{hashlib.sha256(named).hexdigest()}"


@dataclass(frozen=True, slots=True)
class ConfigName:
    """What is being measured, by its true names."""

    agent: str
    task: str
    model: str
    effort: str

    @property
    def folder(self) -> str:
        """The config's folder: four slugs and a short digest of the true names."""
        parts = (self.agent, self.task, self.model, self.effort)
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:6]
        return "__".join((*(slug(part) for part in parts), digest))
