"""What a receipt says: an in-toto Statement v1 with our predicate about one phase.

Protocol: https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md. Digests are
``sha256:...``, with a recipe before it where there is one (``tree:v1:sha256:...``); sizes are
bytes, durations seconds, times UTC in RFC 3339. An integer beyond 2^53 is written as a string.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, JsonValue, ValidationError

from receipts.canonical import canonical
from receipts.errors import MalformedError
from receipts.model import Strict, faults
from receipts.reading import parse_json

Digest = Annotated[str, Field(pattern=r"^(?:[a-z]+:v[0-9]+:)?sha256:[0-9a-f]{64}$")]
FileDigest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
PREDICATE = "tag:orch-replay,2026:phase/v1"
_FAMILY = "tag:orch-replay,2026:phase/v"
Scalar = str | int | float | bool | None


class PhaseName(StrEnum):
    """The phases that leave a receipt."""

    EXPLORE = "explore"
    SUBMIT = "submit"
    GATE = "gate"
    REPLAY = "replay"
    COLLECT = "collect"
    VALIDATE = "validate"
    SCORE = "score"


class RunName(Strict):
    """Which run this is about; ``replay`` and ``scoring`` are None where it is none.

    ``task`` is the task's name as it was written; ``config`` is the folder made of it.
    """

    task: str
    config: str
    attempt: int
    replay: int | None = None
    scoring: int | None = None
    series: str | None = None
    run_id: str


class Image(Strict):
    """The image a phase ran in. ``engine_id`` is a note."""

    reference: str
    digest: Digest
    engine_id: str


class Engine(Strict):
    """The container engine that ran it."""

    kind: str
    engine_id: str
    version: str
    incarnation: str
    boot_id: str


class Device(Strict):
    """A GPU that the phase had. ``memory`` in bytes."""

    uuid: str
    model: str
    memory: int
    driver: str


class ExitFacts(Strict):
    """How the phase's container ended; none of the fields is inferred from another."""

    exit_code: int | None
    oom_killed: bool
    killed_by: str
    stop_reason: str
    started_at: str
    finished_at: str
    duration_s: float
    memory_peak: int | None
    memory_limit_reached: bool | None


class Outcome(Strict):
    """How the phase came out. ``contested`` are host signs that did not decide it."""

    event: str
    state: str
    reason: str
    exit: ExitFacts | None = None
    host_facts: tuple[str, ...] = ()
    contested: tuple[str, ...] = ()
    details: dict[str, JsonValue] = Field(default_factory=dict)


class Times(Strict):
    """When. ``duration_s`` is CLOCK_BOOTTIME; ``clock_step`` what the wall clock gained on it."""

    started: str
    ended: str
    duration_s: float
    clock_step: float


class Lifecycle(Strict):
    """The journal's last line when the receipt was made."""

    seq: int
    head: FileDigest


class PhasePredicate(Strict):
    """What one phase took in, under what it ran, and how it came out.

    ``prev`` names the payload of the receipt before; ``relaxations`` is why a result is local.
    """

    phase: PhaseName
    run: RunName
    official: bool = False
    relaxations: tuple[str, ...] = ()
    materials: dict[str, Digest]
    argv: tuple[str, ...] = ()
    limits: dict[str, Scalar] = Field(default_factory=dict)
    image: Image | None = None
    runtime: str | None = None
    engine: Engine | None = None
    devices: tuple[Device, ...] = ()
    outcome: Outcome
    times: Times
    orchestrator: str
    lifecycle: Lifecycle
    prev: FileDigest | None


class SubjectDigest(Strict):
    """in-toto's DigestSet, with the one algorithm we use."""

    sha256: Hex


class Subject(Strict):
    """An output, by its path below the run's folder."""

    name: str
    digest: SubjectDigest


class Statement(Strict):
    """The whole payload of a receipt."""

    type_: Literal["https://in-toto.io/Statement/v1"] = Field(
        default="https://in-toto.io/Statement/v1", alias="_type"
    )
    predicate_type: Literal["tag:orch-replay,2026:phase/v1"] = Field(
        default="tag:orch-replay,2026:phase/v1", alias="predicateType"
    )
    subject: tuple[Subject, ...]
    predicate: PhasePredicate

    def payload(self) -> bytes:
        """Return its canonical bytes: what is signed, and what ``prev`` of the next names.

        Raises:
            CanonicalError: an integer beyond 2^53 is in it.
        """
        return canonical(self.model_dump(mode="json", by_alias=True))


def parse_statement(payload: bytes) -> Statement:
    """Parse a payload strictly.

    Raises:
        MalformedError: not strict JSON, or not our statement; the message names the fields.
    """
    raw = parse_json(payload)
    kind = raw.get("predicateType") if isinstance(raw, dict) else None
    if isinstance(kind, str) and kind != PREDICATE and kind.startswith(_FAMILY):
        version = kind.removeprefix(_FAMILY)[:40]
        raise MalformedError(f"a receipt of version {version}; this verifier knows version 1 alone")
    try:
        return Statement.model_validate_json(payload, by_alias=True, by_name=False)
    except ValidationError as error:
        raise MalformedError(f"not a receipt's statement: {faults(error)}") from error
