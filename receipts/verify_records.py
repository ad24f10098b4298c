"""The parts of our other records that verification reads; what it does not need is passed over.

Their bytes are named in receipts, so their form is not what protects them. Their meaning is orch's:
``orchestrator/domain/records.py``.
"""

from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from receipts.errors import MalformedError
from receipts.model import faults
from receipts.reading import parse_json, read_file

FORMAT = 1
MAX_RECORD = 64 * 1024**2
R = TypeVar("R", bound="Record")


class Record(BaseModel):
    """Frozen, of exact types; unknown fields are passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, allow_inf_nan=False)


class Material(Record):
    """An asset of a plan. ``source`` is its folder on the host that made the plan."""

    role: str
    digest: str
    source: str
    also: tuple[str, ...] = ()


class Image(Record):
    """An image of a plan."""

    reference: str
    digest: str


class PlanBase(Record):
    """What every ``plan.json`` holds."""

    format: Literal[1]
    run_id: str
    number: int
    version: str
    official: bool
    relaxations: tuple[str, ...]
    image: Image
    runtime: str
    seccomp: str
    resources: dict[str, JsonValue]
    materials: dict[str, Material]
    harness_digest: str
    wall: float


class Asset(Record):
    """An asset as the task declares it; ``digest`` is None while it is not locked."""

    role: str
    digest: str | None = None
    also: tuple[str, ...] = ()


class Keep(Record):
    """How many valid checkpoints the task accepts."""

    keep: int = 3


class Task(Record):
    """The task as it is frozen into an attempt's plan."""

    name: str
    assets: dict[str, Asset]
    checkpoints: Keep = Keep()
    defaults: dict[str, JsonValue]
    explore: dict[str, JsonValue]
    replay: dict[str, JsonValue]
    validate_: dict[str, JsonValue] = Field(alias="validate")
    score: dict[str, JsonValue]


class AttemptPlan(PlanBase):
    """``attempt-NNN/plan.json``."""

    entry: Literal["explore", "patch", "checkpoint"]
    config: str
    task_digest: str
    task: Task
    workspace: str = ""
    agent_digest: str


class ReplayPlan(PlanBase):
    """``replay-NNN/plan.json``."""

    attempt_id: str
    validator_image: Image
    candidate: str
    series: str
    argv: tuple[str, ...]
    patch_sha256: str | None
    manifest_digest: str | None
    base_digest: str | None


class PlannedCheckpoint(Record):
    """A checkpoint that a scoring is to score."""

    name: str
    progress: int
    digest: str


class ScoringPlan(PlanBase):
    """``score-NNN/plan.json``."""

    replay_id: str
    task_digest: str
    evaluator_digest: str
    metric: str
    direction: Literal["max", "min"]
    checkpoints: tuple[PlannedCheckpoint, ...]


class Submission(Record):
    """``candidate/submission.json``."""

    format: Literal[1]
    patch_sha256: str
    patch_size: int
    manifest_digest: str
    base_digest: str


class Manifest(Record):
    """``candidate/manifest.json``: the tree that the candidate's workspace is to become."""

    digest: str
    entries: list[dict[str, str | int]]


class GateCheck(Record):
    """One check of the gate."""

    name: str
    passed: bool
    detail: str


class Gate(Record):
    """``gate.json``."""

    format: Literal[1]
    passed: bool
    checks: tuple[GateCheck, ...]
    gpus: tuple[str, ...] = ()


class Artifact(Record):
    """One checkpoint as it was judged."""

    name: str
    progress: int | None
    status: Literal["accepted", "rejected", "ignored"]
    digest: str | None
    size: int | None
    files: int | None


class Artifacts(Record):
    """``artifacts.json``."""

    format: Literal[1]
    artifacts: tuple[Artifact, ...]


class Number(Record):
    """A measured number; None where it was not finite."""

    value: float | None


class Summary(Record):
    """A checkpoint's ``out/summary.json``."""

    format: Literal[1]
    checkpoint: str
    progress: int
    checkpoint_digest: str
    status: Literal["scored", "invalid"]
    metric: str
    direction: str
    value: float | None
    metrics: dict[str, Number | tuple[Number, ...]]


class OfficialReceipt(Record):
    """A checkpoint's ``out/official-eval-receipt.json``."""

    format: Literal[1]
    passed: bool
    checkpoint: str
    checkpoint_digest: str
    evaluator_digest: str
    image: str
    materials: dict[str, str]
    summary_sha256: str


class Scored(Record):
    """One line of an aggregate."""

    checkpoint: str
    progress: int
    status: Literal["scored", "invalid", "unscorable"]
    value: float | None
    summary_sha256: str | None


class Aggregate(Record):
    """``score-NNN/summary.json``."""

    format: Literal[1]
    status: Literal["scored", "invalid", "unscorable"]
    metric: str
    direction: Literal["max", "min"]
    best: Scored | None
    checkpoints: tuple[Scored, ...]
    official: bool
    relaxations: tuple[str, ...]


def read_record(path: Path, model: type[R]) -> R:
    """Read one record.

    Raises:
        FileNotFoundError: it is not there.
        MalformedError: it is no regular file, too large, damaged, or of another version.
    """
    return parse_record(read_file(path, max_bytes=MAX_RECORD), model)


def parse_record(data: bytes, model: type[R]) -> R:
    """Parse one record.

    Raises:
        MalformedError: it is damaged or of another version.
    """
    raw: Any = parse_json(data)
    version = raw.get("format", FORMAT) if isinstance(raw, dict) else FORMAT
    if version != FORMAT:
        raise MalformedError(f"has format {version!r}; this verifier knows format {FORMAT} alone")
    try:
        return model.model_validate_json(data, by_alias=True)
    except ValidationError as error:
        raise MalformedError(f"not what it should be: {faults(error)}") from error
