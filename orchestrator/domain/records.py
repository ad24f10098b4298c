"""What we write beside a run: plans, the submission, artifacts, gate evidence and summaries.

A plan is on disk before anything starts, so whoever resumes after a crash reads the same plan.
Digests are ``tree:v1:sha256:...`` for trees, ``image:v1:sha256:...`` for images and
``sha256:...`` for files. Sizes are bytes, durations seconds.
"""

import math
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue
from typing_extensions import override

from orchestrator.domain.agent_package import PlannedPackage
from orchestrator.domain.attempt import Entry, SubmissionOrigin, TerminationReason
from orchestrator.domain.checkpoint import ArtifactStatus
from orchestrator.domain.roles import DataRole, Phase
from orchestrator.domain.schema import Strict
from orchestrator.domain.task import Budget, Direction, GateSpec, GpuSpec, Resources, TaskSpec

FileDigest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]

FORMAT = 1
"""Version of every record here. A reader that finds another says so and touches nothing."""


class ImageRecord(Strict):
    """The image a phase runs in."""

    reference: str
    digest: str
    engine_id: str


class EngineRecord(Strict):
    """The engine a phase runs on."""

    kind: str
    engine_id: str
    version: str
    incarnation: str
    boot_id: str


class Material(Strict):
    """One asset as it was found when the plan was made. ``source`` is its folder on this host."""

    role: DataRole
    digest: str
    source: str
    also: tuple[Phase, ...] = ()
    at: str | None = None  # where below /assets, if elsewhere than its name says
    file: str = ""  # the one file of the folder that lies there in its place


class ConfigRecord(Strict):
    """``config.json``: the frozen identity of what is being measured."""

    format: Literal[1] = 1
    agent: str
    agent_digest: str
    task: str
    task_digest: str
    model: str
    effort: str
    auxiliary_models: tuple[str, ...] = ()
    budget: Budget = Budget()
    image: str


class GpuPlan(Strict):
    """Which GPUs a run may have. Devices go by UUID, whatever they were asked for by.

    Attributes:
        counts: how many each of the run's phases gets.
        asked: what was asked for by name; empty where any that qualify will do.
    """

    counts: dict[Phase, int]
    asked: tuple[str, ...] = ()
    qualify: GpuSpec
    gate: GateSpec


class PhasePlan(Strict):
    """What every plan holds."""

    format: Literal[1] = 1
    run_id: str
    number: int
    created: str
    version: str
    official: bool
    relaxations: tuple[str, ...]
    engine: EngineRecord
    image: ImageRecord
    resources: Resources
    materials: dict[str, Material]
    harness_digest: str
    """Identity of what orch mounts at ``/opt/harness``, all of it."""
    runtime: str = "runc"
    """What runs the container, by the engine's own name for it."""
    seccomp: str = ""
    """``sha256:...`` of the system call filter; empty where the engine applies none."""
    gpu: GpuPlan | None = None
    """None where no phase of the run gets a GPU."""
    wall: float

    @property
    def standing(self) -> str:
        """``official``, or ``local``: something was relaxed or official was not asked for."""
        return "official" if self.official else "local"

    @property
    def option(self) -> str:
        """What a command that goes on from here must say, or nothing official follows from it."""
        return " --official" if self.official else ""

    def image_of(self, phase: Phase) -> ImageRecord:  # noqa: ARG002 - a replay has two
        """Return the image that a phase of this run works in."""
        return self.image


class AttemptPlan(PhasePlan):
    """``attempt-NNN/plan.json``. The task is frozen into it whole."""

    entry: Entry
    config: str
    pack: str
    task_digest: str
    task: TaskSpec
    workspace: str = ""  # the shipped solution, by the identity of its tree
    agent: str
    agent_digest: FileDigest
    agent_package: PlannedPackage | None = None
    model: str
    effort: str
    auxiliary_models: tuple[str, ...] = ()
    """Further models that the agent may name; ``model`` answers for them."""
    patch_name: str = ""  # what the file was called that an operator entered


class ReplayPlan(PhasePlan):
    """``replay-NNN/plan.json``: exactly what will run, and over which bytes."""

    attempt_id: str
    validator_image: ImageRecord
    candidate: str
    """``candidate:v1:sha256:...``: the same task, tree and image are the same candidate."""
    series: str
    argv: tuple[str, ...]
    env: dict[str, str]
    patch_sha256: str | None
    manifest_digest: str | None
    base_digest: str | None
    proven: bool
    """True when the patch went through the round-trip proof at submission."""
    again: str | None = None

    @override
    def image_of(self, phase: Phase) -> ImageRecord:
        return self.validator_image if phase is Phase.VALIDATE else self.image


OTHER_TASK = "scored with another version of the task"
"""How the relaxation begins that says so: the evaluator may not be the one that the task names."""


class ScoringPlan(PhasePlan):
    """``score-NNN/plan.json``: over which accepted checkpoints, with which evaluator."""

    replay_id: str
    task_digest: str
    evaluator_digest: str
    metric: str
    direction: Direction
    checkpoints: tuple["PlannedCheckpoint", ...]
    reference_run: bool = False
    supersedes: int | None = None
    """The number of an earlier finished scoring that this one's evaluator corrects."""


class PlannedCheckpoint(Strict):
    """An accepted checkpoint by the digest the validator recorded."""

    name: str
    progress: int
    digest: str


class LeftOutRecord(Strict):
    """Something in the workspace that does not cross, and why. ``path`` is percent-encoded."""

    path: str
    reason: str


class ViolationRecord(Strict):
    """One breach of the patch policy, with its figure and the limit; ``text`` says it in a line."""

    path: str
    rule: str
    figure: int
    limit: int
    text: str = ""


class Submission(Strict):
    """``candidate/submission.json``: what was captured, when, and by whose act."""

    format: Literal[1] = 1
    reason: TerminationReason | None
    origin: SubmissionOrigin
    patch_sha256: str
    patch_size: int
    manifest_digest: str
    base_digest: str
    empty: bool
    changed: dict[str, int]
    figures: dict[str, int] = Field(default_factory=dict)
    """What the patch policy measured: bytes compressed and expanded."""
    left_out: tuple[LeftOutRecord, ...]
    outside_workspace: tuple[str, ...] = ()
    accepted_at: str
    pause_ms: float | None = None


class GateCheck(Strict):
    """One check of the gate and what it found."""

    name: str
    passed: bool
    detail: str


class GateRecord(Strict):
    """``gate.json``: every check made before the start, in order."""

    format: Literal[1] = 1
    passed: bool
    started: str
    ended: str
    checks: tuple[GateCheck, ...]
    cpuset: str = ""
    gpus: tuple[str, ...] = ()
    """UUIDs of the devices that the run has."""
    devices: dict[str, JsonValue] | None = None
    """What was seen of GPUs (``gate_evidence.DeviceEvidence``); None where none is asked for."""
    reason: str = ""


class Artifact(Strict):
    """A published checkpoint as judged. ``name`` is percent-encoded, as it stood in ``/out``.

    Attributes:
        attempts: how often the validator was run on it; 0 where that was not needed.
        seconds: how long that took in all.
        arrays: how many tensors or arrays the validator counted, None where it did not say.
        parameters: how many numbers they hold.
    """

    name: str
    progress: int | None
    status: ArtifactStatus
    reason: str = ""
    detail: str = ""
    digest: str | None = None
    size: int | None = None
    files: int | None = None
    attempts: int = 0
    seconds: float = 0.0
    arrays: int | None = None
    parameters: int | None = None


class Artifacts(Strict):
    """``artifacts.json``: accepted, rejected and ignored, in the order they were judged."""

    format: Literal[1] = 1
    artifacts: tuple[Artifact, ...]

    def accepted(self) -> tuple[Artifact, ...]:
        """The accepted checkpoints, greatest progress first."""
        return tuple(a for a in self.artifacts if a.status is ArtifactStatus.ACCEPTED)


class Nonfinite(StrEnum):
    """What a number was when JSON cannot hold it."""

    NAN = "nan"
    INFINITE = "inf"
    MINUS_INFINITE = "-inf"


class Number(Strict):
    """A measured number; ``value`` is None exactly when ``nonfinite`` says what it was."""

    value: float | None
    nonfinite: Nonfinite | None = None

    @classmethod
    def of(cls, raw: float) -> Self:
        """Wrap a float, whatever it is."""
        if math.isnan(raw):
            return cls(value=None, nonfinite=Nonfinite.NAN)
        if math.isinf(raw):
            sign = Nonfinite.INFINITE if raw > 0 else Nonfinite.MINUS_INFINITE
            return cls(value=None, nonfinite=sign)
        return cls(value=float(raw))


class ScoreStatus(StrEnum):
    """How an evaluation of one checkpoint ended, when it ended by itself."""

    SCORED = "scored"
    INVALID = "invalid"


class Summary(Strict):
    """One checkpoint's ``out/summary.json``, written by us from the evaluator's numbers."""

    format: Literal[1] = 1
    checkpoint: str
    progress: int
    checkpoint_digest: str
    status: ScoreStatus
    reason: str = ""
    metric: str
    direction: Direction
    value: float | None
    metrics: dict[str, Number | tuple[Number, ...]]
    baselines: dict[str, dict[str, Number]]


class OfficialReceipt(Strict):
    """``out/official-eval-receipt.json``: our own word that the evaluation was had properly."""

    format: Literal[1] = 1
    passed: bool
    checkpoint: str
    checkpoint_digest: str
    evaluator_digest: str
    image: str
    materials: dict[str, str]
    exit_code: int
    summary_sha256: str
    local: tuple[str, ...]
    started: str
    ended: str


class AggregateStatus(StrEnum):
    """How a whole scoring came out."""

    SCORED = "scored"
    INVALID = "invalid"
    UNSCORABLE = "unscorable"


class ScoredCheckpoint(Strict):
    """One line of the aggregate."""

    checkpoint: str
    progress: int
    status: ScoreStatus | Literal["unscorable"]
    value: float | None
    reason: str = ""
    summary_sha256: str | None = None


class Aggregate(Strict):
    """``score-NNN/summary.json``: best valid of up to three, ties to the later progress."""

    format: Literal[1] = 1
    status: AggregateStatus
    metric: str
    direction: Direction
    best: ScoredCheckpoint | None
    checkpoints: tuple[ScoredCheckpoint, ...]
    official: bool
    relaxations: tuple[str, ...]


def best_of(scores: tuple[ScoredCheckpoint, ...], direction: Direction) -> ScoredCheckpoint | None:
    """Pick the best valid score; equal values go to the later progress. None when none is valid."""
    valid = [s for s in scores if s.status is ScoreStatus.SCORED and s.value is not None]
    sign = 1.0 if direction is Direction.MAX else -1.0
    return max(valid, key=lambda s: (sign * (s.value or 0.0), s.progress), default=None)
