"""A task pack's ``task.yaml`` (schema ``orch.task/1``) as frozen, strict models.

Reading the file, with the line of every fault, is ``storage.pack``; this module only says what a
valid one holds. Durations are seconds and sizes bytes once parsed.
"""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    model_validator,
)

from orchestrator.domain.interface import AnswerSpec, EditSpec, Interface
from orchestrator.domain.quantity import Bytes, Count, Seconds
from orchestrator.domain.roles import WIDENABLE, DataRole, Phase
from orchestrator.domain.schema import (
    AssetPath,
    Digest,
    ImagePath,
    RelativePath,
    Strict,
    plain_path,
)
from orchestrator.domain.source import Download, DownloadName, Source

SCHEMA = "orch.task/1"


class Direction(StrEnum):
    """Which way a metric is better."""

    MAX = "max"
    MIN = "min"


FROM_IMAGE: Literal["image"] = "image"
"""What ``workspace.from`` says where the replay's image brings ``/workspace`` along."""


class Workspace(Strict):
    """Where the shipped solution comes from, and what never crosses by rule.

    ``source`` (``from`` in the file) is a folder of the pack, or ``image`` for what the replay's
    image has at ``/workspace``; a folder of that name is written ``image/``. ``add`` is a folder of
    the pack whose files are laid over what an image brings.
    """

    source: RelativePath = Field(alias="from")
    add: RelativePath | None = None
    exclude: tuple[str, ...] = ("__pycache__/", "*.pyc", ".cache/", ".git/")

    @property
    def in_image(self) -> bool:
        """Whether it has to be taken out of an image."""
        return self.source == FROM_IMAGE

    @model_validator(mode="after")
    def _only_an_image_is_added_to(self) -> Self:
        if self.add is not None and not self.in_image:
            raise ValueError("'add' goes with from: image, and only with it")
        return self


class Asset(Strict):
    """One data or model folder: its role, how it is made, its locked identity.

    Attributes:
        at: where it lies below ``/assets``, if elsewhere than its name says; two assets that no
            phase sees together may lie at the same place.
        file: it is one file, which lies at that place itself.
    """

    role: DataRole
    source: Source
    digest: Digest | None = None
    also: tuple[Phase, ...] = ()
    at: AssetPath | None = None
    file: bool = False
    overlap: tuple[str, ...] = ()
    """Assets whose rows this one must contain (members of a membership test); see task check."""

    @model_validator(mode="after")
    def _widening_is_allowed(self) -> Self:
        for phase in self.also:
            if self.role not in WIDENABLE.get(phase, frozenset()):
                raise ValueError(f"role {self.role} may not be made visible to phase {phase}")
        return self


class Resources(Strict):
    """What one phase's container gets."""

    image: str = "cpu-numpy"
    cpus: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1
    memory: Bytes = 1024**3
    shm: Bytes = 64 * 1024**2
    tmp: Bytes = 1024**3
    pids: Annotated[int, Field(gt=0)] = 512
    disk: Bytes = 1024**3
    gpus: Annotated[int, Field(ge=0)] = 0
    env: dict[str, str | None] = Field(default_factory=dict)
    """Further variables; null leaves one that orch would set to the image."""
    read_only: bool = True


class PhaseOverride(Strict):
    """Any of ``defaults`` may be set again for one phase; None means the default holds."""

    image: str | None = None
    cpus: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    memory: Bytes | None = None
    shm: Bytes | None = None
    tmp: Bytes | None = None
    pids: Annotated[int, Field(gt=0)] | None = None
    disk: Bytes | None = None
    gpus: Annotated[int, Field(ge=0)] | None = None
    env: dict[str, str | None] | None = None
    read_only: bool | None = None


class Budget(Strict):
    """What an exploration may spend on its model."""

    tokens: Count | None = None
    cost: float | None = None
    requests: Count | None = None


class EarlySubmit(Strict):
    """The rule an audit judges an early submission by."""

    keep_if_left: Literal["longest_experiment"] | Seconds = "longest_experiment"


class ProviderTool(StrEnum):
    """What a provider can do on the model's behalf, beyond answering. Refused unless allowed."""

    WEB = "web"
    CODE = "code"
    COMPUTER = "computer"
    FILES = "files"
    CONNECTORS = "connectors"
    IMAGES = "images"


class ExploreSpec(PhaseOverride):
    """The exploration's budgets. ``command_wall`` limits one command of our own agents.

    ``provider_tools`` is what the model's provider may do beside answering; nothing by default.
    """

    wall: Annotated[Seconds, Field(gt=0)] = 4 * 3600.0
    budget: Budget = Budget()
    max_outage: Seconds = 1800.0
    provider_tools: tuple[ProviderTool, ...] = ()
    command_wall: Annotated[Seconds, Field(gt=0)] = 3600.0
    early_submit: EarlySubmit = EarlySubmit()


class ReplaySpec(PhaseOverride):
    """The formal run. ``reserve`` is what ``run.sh`` is asked to keep back, in seconds."""

    wall: Annotated[Seconds, Field(gt=0)] = 12 * 3600.0
    reserve: Annotated[Seconds, Field(ge=0)] = 900.0
    command: Literal["bash /workspace/run.sh"] = "bash /workspace/run.sh"
    seed_variable: Annotated[str, Field(pattern=r"^[A-Z_][A-Z0-9_]*$")] | None = None


class CommandValidator(Strict):
    """A validator of the task's own: a script of the pack."""

    command: RelativePath


class BuiltinValidator(StrEnum):
    """Validators that come with orch."""

    NUMPY = "numpy"
    TORCH_STATE = "torch-state"
    HF_CAUSAL_LM = "hf-causal-lm"

    @property
    def file(self) -> str:
        """Its file in the harness's ``validators`` folder."""
        return self.value.replace("-", "_") + ".py"

    @property
    def packages(self) -> tuple[str, ...]:
        """The Python packages that the image it runs in must have."""
        return _PACKAGES[self]


_PACKAGES: Mapping[BuiltinValidator, tuple[str, ...]] = {
    BuiltinValidator.NUMPY: ("numpy",),
    BuiltinValidator.TORCH_STATE: ("torch",),
    BuiltinValidator.HF_CAUSAL_LM: ("torch", "transformers"),
}


class ValidateSpec(PhaseOverride):
    """Loading checks. ``wall`` is per checkpoint, ``total_wall`` for all that are examined."""

    wall: Annotated[Seconds, Field(gt=0)] = 1800.0
    total_wall: Annotated[Seconds, Field(gt=0)] = 7200.0
    validator: BuiltinValidator | CommandValidator = BuiltinValidator.NUMPY
    allow_nonfinite: bool = False


_TAKEN = ("/assets", "/ckpt", "/dev", "/etc", "/logs", "/opt/evaluator", "/out", "/proc", "/sys")


def _scratch(value: str) -> str:
    path = PurePosixPath(plain_path(value))
    if ".." in path.parts:
        raise ValueError(f"{value!r} must not lead upwards")
    if path.parent == PurePosixPath("/logs"):
        return value
    for taken in map(PurePosixPath, _TAKEN):
        if path.is_relative_to(taken) or taken.is_relative_to(path):
            raise ValueError(f"{value!r} lies in the way of {taken}")
    return value


class ScoreSpec(PhaseOverride):
    """The final evaluator: a script of the pack that only the scorer's container sees.

    ``note`` is what a reader of the score has to know; it stands in every report. ``scratch`` names
    folders that are empty and writable there besides ``/out``.
    """

    wall: Annotated[Seconds, Field(gt=0)] = 4 * 3600.0
    command: RelativePath
    metric: str
    direction: Direction = Direction.MAX
    components: tuple[str, ...] = ()
    scratch: tuple[Annotated[ImagePath, AfterValidator(_scratch)], ...] = ()
    note: Annotated[str, Field(max_length=1000)] = ""


class ProxySpec(Strict):
    """The evaluator an agent may use while it explores.

    ``command`` is a script of the pack, or, by its absolute path, a program of the image.
    """

    command: RelativePath | ImagePath
    metric: str
    direction: Direction = Direction.MAX

    @property
    def in_image(self) -> bool:
        """Whether it lies in the image."""
        return self.command.startswith("/")


class GpuSpec(Strict):
    """Which devices qualify."""

    models: tuple[str, ...] = ()
    min_memory: Bytes = 0
    min_driver: str = ""


class GateSpec(Strict):
    """When a device counts as idle."""

    idle_for: Seconds = 60.0
    max_memory_used: Bytes = 64 * 1024**2
    max_utilization: Annotated[int, Field(ge=0, le=100)] = 0
    foreign_tolerance: Seconds = 60.0


class TelemetrySpec(Strict):
    """How often a running container is looked at, in seconds."""

    every: Annotated[Seconds, Field(ge=1, le=60)] = 10.0


class CheckpointRule(Strict):
    """How many valid checkpoints are accepted."""

    keep: Annotated[int, Field(ge=1, le=3)] = 3


class RefusedContent(StrEnum):
    """Kinds of content a patch may not add."""

    WEIGHTS = "weights"
    DATA = "data"
    BYTECODE = "bytecode"
    BINARY = "binary"


class PatchPolicy(Strict):
    """What a patch may carry; the limits on files and rows are AI4AI-Bench's.

    Attributes:
        max_compressed: bytes of all that is added, compressed.
        max_expanded: bytes of the same before.
        max_file: bytes of one new file.
        max_rows: lines that may be added to one file of rows (JSON, JSON lines, CSV, TSV).
        refuse: kinds of content that may not be added at all.
    """

    max_compressed: Bytes = 256 * 1024
    max_expanded: Bytes = 64 * 1024**2
    max_file: Bytes = 4 * 1024**2
    max_rows: Annotated[int, Field(ge=0)] = 16
    refuse: tuple[RefusedContent, ...] = tuple(RefusedContent)


def _off(value: Any) -> Any:
    """Take the word ``off`` for itself, which YAML takes for a truth value."""
    return "off" if value is False else value


class ReferencePoint(Strict):
    """A published point to stand beside a result in reports."""

    name: str
    value: float | None = None
    components: dict[str, float] = Field(default_factory=dict)
    note: str = ""


class TaskSpec(Strict):
    """A whole ``task.yaml``. The field ``schema_`` is spelled ``schema`` in the file."""

    schema_: Literal["orch.task/1"] = Field(alias="schema")
    name: Annotated[str, Field(min_length=1, max_length=200)]
    title: str = ""
    instructions: RelativePath = "instruction.md"
    interface: Interface = Interface.SHELL
    workspace: Workspace
    assets: dict[AssetPath, Asset]
    downloads: dict[DownloadName, Download] = Field(default_factory=dict)
    """What scripts read beside the pack, at ``/opt/downloads/NAME``; see ``ScriptSource``."""
    defaults: Resources = Resources()
    explore: ExploreSpec = ExploreSpec()
    replay: ReplaySpec = ReplaySpec()
    validate_: ValidateSpec = Field(default=ValidateSpec(), alias="validate")
    score: ScoreSpec
    gpu: GpuSpec = GpuSpec()
    gate: GateSpec = GateSpec()
    telemetry: TelemetrySpec = TelemetrySpec()
    proxy: ProxySpec | None = None
    checkpoints: CheckpointRule = CheckpointRule()
    patch: Annotated[PatchPolicy | Literal["off"], BeforeValidator(_off)] = PatchPolicy()
    prepare: PhaseOverride = PhaseOverride()
    """The container that makes the assets; by default the image ``prepare-sklearn``."""
    script: RelativePath | None = None
    edit: EditSpec | None = None
    answer: AnswerSpec | None = None
    reference: tuple[ReferencePoint, ...] = ()

    @model_validator(mode="after")
    def _each_interface_has_its_section(self) -> Self:
        if (self.interface is Interface.EDIT_TEST_SUBMIT) != (self.edit is not None):
            raise ValueError("'edit' goes with interface edit-test-submit, and only with it")
        if (self.interface is Interface.ANSWER) != (self.answer is not None):
            raise ValueError("'answer' goes with interface answer, and only with it")
        return self

    def resources(self, phase: Phase) -> Resources:
        """What ``phase``'s container gets: its own settings over the defaults."""
        override: PhaseOverride = {
            Phase.EXPLORE: self.explore,
            Phase.REPLAY: self.replay,
            Phase.VALIDATE: self.validate_,
            Phase.SCORE: self.score,
        }[phase]
        return merge(self.defaults, override)


def merge(defaults: Resources, override: PhaseOverride) -> Resources:
    """Lay one phase's settings over the defaults; ``env`` is merged key by key."""
    chosen = {
        name: getattr(override, name)
        for name in Resources.model_fields
        if getattr(override, name) is not None
    }
    if override.env is not None:
        chosen["env"] = {**defaults.env, **override.env}
    return defaults.model_copy(update=chosen)


def wall_settings(wall: float, reserve: float) -> tuple[int, int]:
    """Return ``(MAX_WALL_TIME_SECONDS, DEADLINE_RESERVE_SECONDS)`` for a replay.

    wall - min(600, 5 % of wall), and min(reserve, 5 % of wall); 42,600 and 900 for 12 h, after
    AI4AI-Bench v1.5.
    """
    return int(wall - min(600.0, 0.05 * wall)), int(min(reserve, 0.05 * wall))
