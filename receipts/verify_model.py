"""What a verification works on and what it comes to."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from pathlib import Path
from types import MappingProxyType

from receipts.canonical import sha256_hex
from receipts.envelope import Envelope
from receipts.journal import Journal, Line
from receipts.keys import VerifyingKey
from receipts.statement import PhaseName, Statement
from receipts.verify_records import AttemptPlan, PlanBase, ReplayPlan, ScoringPlan

MAX_FAULTS = 1000
_MAX_TEXT = 600


class Step(StrEnum):
    """The steps, in the order they are made and printed."""

    PARSE = "parse"
    SIGNATURES = "signatures"
    PHASES = "phases"
    CHAIN = "chain"
    EDGES = "edges"
    FILES = "files"
    SCORE = "score"
    JOURNAL = "journal"
    CAMPAIGN = "campaign"
    COMMIT = "commit"


PROVES: Mapping[Step, str] = MappingProxyType(
    {
        Step.PARSE: "every receipt and plan is strictly what its format says, nothing added",
        Step.SIGNATURES: "each receipt is signed by a known key, over the bytes as stored",
        Step.PHASES: "exactly the receipts that the entry and the journal call for, in order",
        Step.CHAIN: "each receipt names the one before it, all of the same run and attempt",
        Step.EDGES: "what one phase took in is what another gave out; only score saw final data",
        Step.FILES: "the files on disk are the ones that were receipted",
        Step.SCORE: "the printed score is the best of the receipted summaries, ties to the later",
        Step.JOURNAL: "the journals hang together and are those that the receipts were made over",
        Step.CAMPAIGN: "what was registered is here with its ending, and nothing was cut back",
        Step.COMMIT: "every ended run was committed, over its last receipt and its summary",
    }
)


class Verdict(IntEnum):
    """What verification came to, as the exit code of the command."""

    AUTHENTIC = 0
    FINDING = 1
    UNAUTHENTICATED = 3


class Kind(StrEnum):
    """The three things that have a folder, a plan and a journal of their own."""

    ATTEMPT = "attempt"
    REPLAY = "replay"
    SCORING = "score"


ENDINGS: Mapping[Kind, frozenset[str]] = MappingProxyType(
    {
        Kind.ATTEMPT: frozenset({"submitted", "declined", "infrastructure", "operator"}),
        Kind.REPLAY: frozenset(
            {
                "validated",
                "no_checkpoint",
                "none_valid",
                "invalid_patch",
                "infrastructure",
                "operator",
            }
        ),
        Kind.SCORING: frozenset({"scored", "invalid", "unscorable", "infrastructure", "operator"}),
    }
)
"""The events after which a journal has no other."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """One receipt as it was read."""

    path: Path
    number: int
    envelope: Envelope
    statement: Statement

    @property
    def digest(self) -> str:
        """What the next receipt names as ``prev``."""
        return f"sha256:{sha256_hex(self.envelope.payload)}"

    @property
    def phase(self) -> PhaseName:
        """The phase it is about."""
        return self.statement.predicate.phase

    @property
    def materials(self) -> dict[str, str]:
        """What the phase took in, by name."""
        return self.statement.predicate.materials

    def subjects(self) -> dict[str, str]:
        """What the phase gave out: name to sha256 in hexadecimal digits."""
        return {subject.name: subject.digest.sha256 for subject in self.statement.subject}


@dataclass(slots=True)
class Run:
    """An attempt, a replay or a scoring as it lies on disk.

    ``plan`` is None when there is none (``bare``) or it does not parse; ``parent`` when the run it
    belongs to does not lie above it.
    """

    folder: Path
    kind: Kind
    number: int
    parent: "Run | None"
    plan: PlanBase | None = None
    plan_digest: str = ""
    bare: bool = False
    journal: Journal | None = None
    receipts: list[Receipt] = field(default_factory=list)

    @property
    def ending(self) -> Line | None:
        """The line that ended it; None while it goes on."""
        last = self.journal.lines[-1] if self.journal and self.journal.lines else None
        return last if last is not None and last.event in ENDINGS[self.kind] else None

    @property
    def going_on(self) -> bool:
        """Whether its journal, as far as it holds together, has not ended."""
        return self.journal is not None and not self.journal.fault and self.ending is None

    def receipt(self, phase: PhaseName) -> Receipt | None:
        """Its receipt of ``phase``."""
        return next((r for r in self.receipts if r.phase is phase), None)

    def line(self) -> "tuple[Run, ...]":
        """The attempt it belongs to, then the replay, down to itself."""
        return (*(self.parent.line() if self.parent else ()), self)

    def attempt_plan(self) -> AttemptPlan | None:
        """The plan of the attempt it belongs to."""
        plan = self.line()[0].plan
        return plan if isinstance(plan, AttemptPlan) else None

    def replay_plan(self) -> ReplayPlan | None:
        """The plan of the replay it is or belongs to."""
        plans = (run.plan for run in self.line())
        return next((plan for plan in plans if isinstance(plan, ReplayPlan)), None)

    def scoring_plan(self) -> ScoringPlan | None:
        """Its plan, when it is a scoring."""
        return self.plan if isinstance(self.plan, ScoringPlan) else None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the caller knows from elsewhere, and how much is to be checked.

    Attributes:
        keys: public halves that are trusted; without any, those beside the runs are used.
        task: the digest of the task that was to be measured.
        campaign_head: a published head of the campaign log.
        whole_campaign: check everything that was registered, not only what lies under the folder.
        deep: hash the assets again, where they are.
    """

    keys: tuple[VerifyingKey, ...] = ()
    task: str | None = None
    campaign_head: str | None = None
    whole_campaign: bool = False
    deep: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that does not hold, and the step that found it."""

    step: Step
    where: Path
    what: str


@dataclass(slots=True)
class Report:
    """What was checked and what was found. ``notes`` are no faults."""

    authenticated: bool
    receipts: int = 0
    runs: int = 0
    going_on: int = 0
    selection: str = ""
    faults: list[Fault] = field(default_factory=list)
    more_faults: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        """Any fault is a finding; without a key from elsewhere nothing is authenticated."""
        if self.faults:
            return Verdict.FINDING
        known = self.authenticated and self.receipts > 0
        return Verdict.AUTHENTIC if known else Verdict.UNAUTHENTICATED

    def fault(self, step: Step, where: Path, what: str) -> None:
        """Add a finding; beyond ``MAX_FAULTS`` they are only counted."""
        if len(self.faults) >= MAX_FAULTS:
            self.more_faults += 1
        else:
            self.faults.append(Fault(step, where, what[:_MAX_TEXT]))

    def note(self, where: Path, what: str) -> None:
        """Add something worth knowing that is no fault."""
        if len(self.notes) < MAX_FAULTS:
            self.notes.append(f"{where}: {what[:_MAX_TEXT]}")
