"""AI4AI-Bench tasks of format 1.5: ``task.toml`` and ``declaration.py``, read and never run.

Mounts, budgets, exports and limits are kept as declared; the image's own evaluator, validator and
proxy are what runs, behind two scripts of the pack that turn their results into ours.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from orchestrator.config import bundled
from orchestrator.domain.quantity import Bytes
from orchestrator.errors import TaskPackError
from orchestrator.importing import ai4ai_phases as phases
from orchestrator.importing.ai4ai_assets import Assets, assets_of, read_lock
from orchestrator.importing.declaration import FILE, DeclaredPhase, read_declaration
from orchestrator.importing.model import (
    SCRIPT,
    SHIPPED_AS_IT_IS,
    Findings,
    Foreign,
    Imported,
    duration,
    mebibytes,
    template,
    text_of,
)

TASK_FILE = "task.toml"
_HEADROOM = 1.1
"""How much more memory than was measured a GPU has to have; AI4AI-Bench's own gate asks for it."""
_NO_NETWORK = "containers of orch have no network, and no other policy is kept"
_WORDS = {
    "environment.network_mode": _NO_NETWORK,
    "environment.allowed_hosts": _NO_NETWORK,
    "agent.network_mode": _NO_NETWORK,
    "agent.allowed_hosts": _NO_NETWORK,
    "verifier.network_mode": _NO_NETWORK,
    "verifier.allowed_hosts": _NO_NETWORK,
    "schema_version": "only format 1.5 is read",
}


class _About(Foreign):
    name: str
    version: str = ""
    description: str = ""


class _Agent(Foreign):
    timeout_sec: int = Field(gt=0)


class _Verifier(Foreign):
    timeout_sec: int = Field(gt=0)
    environment_mode: Literal["separate"]


class _Formal(Foreign):
    retrain_budget_sec: int = Field(gt=0)
    artifact_limit: int = Field(ge=1, le=3)
    selection_rule: Literal["best_valid_of_up_to_3"]


class _Container(Foreign):
    shm_size: Bytes
    pids_limit: int = Field(gt=0)


class _Gpu(Foreign):
    type: str
    peak_memory_mib: int = Field(gt=0)


class _Extension(Foreign):
    formal: _Formal
    container: _Container
    gpu: _Gpu | None = None


class _Environment(Foreign):
    """``collective_backend`` and what an image was built from say nothing of how it is run."""

    image: str
    digest: str = ""
    config_digest: str = ""
    cpus: float = Field(gt=0)
    memory_mb: int = Field(gt=0)
    storage_mb: int = Field(gt=0)
    gpus: int = Field(ge=0)
    gpu_types: tuple[str, ...] = ()
    network_mode: Literal["no-network"]
    dockerfile: str = ""
    build_args: dict[str, Any] = Field(default_factory=dict)
    source_sha256: str = ""
    base_image_digest: str = ""
    base_image_config_digest: str = ""
    collective_backend: str = ""


class _Metadata(Foreign):
    """Metrics; what else stands there is words."""

    model_config = ConfigDict(extra="allow", frozen=True)
    fast_metric: str
    fast_direction: Literal["max", "min"]
    final_metric: str
    final_direction: Literal["max", "min"]


class TaskToml(Foreign):
    """``task.toml`` of format 1.5."""

    schema_version: Literal["1.5"]
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=200)
    task: _About
    agent: _Agent
    verifier: _Verifier
    extension: _Extension = Field(alias="x-ai4ai")
    environment: _Environment
    assets: dict[str, str] = Field(default_factory=dict)
    metadata: _Metadata


def is_one(document: Mapping[str, Any]) -> bool:
    """Tell whether a ``task.toml`` is AI4AI-Bench's."""
    return "x-ai4ai" in document


def read(folder: Path, *, score_image: str | None) -> Imported:
    """Read a task folder and make a pack of it.

    Args:
        score_image: the image that scores, where the task does not name it.

    Raises:
        TaskPackError: something of it cannot be kept; every such thing is named.
    """
    findings = Findings()
    toml = _task(folder / TASK_FILE, findings)
    text = _text(folder / FILE, findings)
    wanted = None
    if text is not None:
        declared, faults = read_declaration(text)
        findings.refused += faults
        wanted = phases.check(declared, findings, whole=not faults)
    instruction = template(_text(folder / "instruction.md", findings) or "")
    if instruction is None:
        findings.refuse("instruction.md", "holds template marks and 'endraw', and cannot be kept")
    scorer = None if toml is None else _score_image(folder, toml, score_image, findings)
    if toml is not None and wanted is not None:
        _agree(toml, wanted, findings)
    assets: Assets = {}
    if wanted is not None:
        assets = assets_of(wanted, read_lock(folder / "environment/assets.lock.yaml"), findings)
    findings.settle()
    if toml is None or wanted is None or instruction is None or scorer is None:
        raise AssertionError("what is missing was refused")
    findings.differences += phases.differences(wanted, assets)
    pack = _Pack(toml, wanted, assets, scorer)
    return pack.made(instruction, tuple(dict.fromkeys(findings.differences)))


def _task(path: Path, findings: Findings) -> TaskToml | None:
    try:
        return TaskToml.model_validate(tomllib.loads(_text(path, findings) or ""))
    except tomllib.TOMLDecodeError as broken:
        findings.refuse(TASK_FILE, f"not TOML: {broken}")
    except ValidationError as faults:
        findings.refuse_faults(TASK_FILE, faults, _WORDS)
    return None


def _text(path: Path, findings: Findings) -> str | None:
    try:
        return text_of(path)
    except FileNotFoundError:
        findings.refuse(path.name, "no such file in the task's folder")
    except (OSError, UnicodeDecodeError, TaskPackError) as fault:
        findings.refuse(path.name, f"cannot be read: {fault}")
    return None


def _score_image(folder: Path, toml: TaskToml, given: str | None, findings: Findings) -> str | None:
    """Say which image scores: a task may bring a second one that its ``task.toml`` is silent of."""
    own = toml.environment.image
    if given is not None or not (folder / "environment" / "Dockerfile.eval").is_file():
        return given or own
    note = folder / "environment" / "README-eval-image.md"
    text = (_text(note, findings) or "") if note.exists() else ""
    place, slash, last = own.partition("@")[0].rpartition("/")
    repository = re.escape(place + slash + last.partition(":")[0])
    named = sorted(set(re.findall(rf"`({repository}(?::[\w.-]+|@sha256:[0-9a-f]{{64}}))`", text)))
    if len(named) != 1:
        findings.refuse(
            "environment/Dockerfile.eval",
            "makes a second image that scores, and nothing names it: --score-image IMAGE",
        )
        return None
    findings.differences.append(
        f"score runs in {named[0]}, as environment/{note.name} says; --score-image pins another"
    )
    return str(named[0])


def _agree(toml: TaskToml, wanted: phases.Wanted, findings: Findings) -> None:
    """Hold both files of a task against each other: what is said twice is the same."""
    formal = toml.extension.formal
    spent = wanted.retrain.timeout_sec + formal.artifact_limit * (
        wanted.score.timeout_sec + wanted.validate.timeout_sec
    )
    for key, said, declared in (
        ("agent.timeout_sec", toml.agent.timeout_sec, wanted.explore.timeout_sec),
        (
            "x-ai4ai.formal.retrain_budget_sec",
            formal.retrain_budget_sec,
            wanted.retrain.timeout_sec,
        ),
        ("x-ai4ai.formal.artifact_limit", formal.artifact_limit, wanted.retrain.artifact_limit),
    ):
        if said != declared:
            findings.refuse(f"{TASK_FILE}: {key} = {said}", f"{FILE} says {declared}")
    if toml.verifier.timeout_sec < spent:
        findings.refuse(
            f"{TASK_FILE}: verifier.timeout_sec = {toml.verifier.timeout_sec}",
            f"replay, validation and scoring may take {spent} s by {FILE}; no total is kept",
        )
    gpu = toml.extension.gpu
    if gpu is not None and gpu.type not in toml.environment.gpu_types:
        findings.refuse(
            f"{TASK_FILE}: x-ai4ai.gpu.type = {gpu.type!r}", "is none of environment.gpu_types"
        )
    if wanted.retrain.free_gib * 1024 > toml.environment.storage_mb:
        findings.refuse(
            f"{FILE}: free_gib = {wanted.retrain.free_gib}",
            f"more than environment.storage_mb = {toml.environment.storage_mb}",
        )


@dataclass(frozen=True, slots=True)
class _Pack:
    toml: TaskToml
    wanted: phases.Wanted
    assets: Assets
    scorer: str

    def made(self, instruction: str, differences: tuple[str, ...]) -> Imported:
        """Lay the pack out."""
        toml, wanted = self.toml, self.wanted
        about = toml.task
        return Imported(
            name=toml.name,
            origin=f"{about.name} {about.version}".strip() + " of AI4AI-Bench, format 1.5",
            task=self._task(),
            files={
                SCRIPT: SHIPPED_AS_IT_IS,
                "instruction.md": instruction.encode(),
                "evaluator/evaluate.py": _script("ai4ai_evaluate.py"),
                "evaluator/source.json": _json(
                    {
                        "argv": self._argv(wanted.score),
                        "metric": toml.metadata.final_metric,
                    }
                ),
                "validator/validate.py": _script("ai4ai_validate.py"),
                "validator/source.json": _json(
                    {
                        "argv": self._argv(wanted.validate),
                        "kind": wanted.retrain.checkpoint_kind,
                        "payload": wanted.retrain.checkpoint_payload,
                    }
                ),
            },
            differences=differences,
            brought={name: toml.assets.get(name, "") for name in self.assets},
        )

    def _argv(self, phase: DeclaredPhase) -> list[str]:
        """Return a phase's command, with what AI4AI-Bench fills in: GPUs, and what is judged."""
        payload = self.wanted.retrain.checkpoint_payload
        judged = phases.CHECKPOINT if payload == "." else f"{phases.CHECKPOINT}/{payload}"
        gpus = str(self.toml.environment.gpus)
        argv = [part.replace("$gpus", gpus) for part in phase.command]
        return [judged if part == phases.CHECKPOINT else part for part in argv]

    def _task(self) -> dict[str, Any]:
        toml, wanted = self.toml, self.wanted
        metadata, formal = toml.metadata, toml.extension.formal
        return {
            "schema": "orch.task/1",
            "name": toml.name,
            "title": toml.task.description or toml.name,
            "workspace": {"from": "image"},
            "assets": dict(self.assets),
            "defaults": self._defaults(),
            "explore": {
                "wall": duration(wanted.explore.timeout_sec),
                "command_wall": duration(wanted.explore.timeout_sec),
                **_own(wanted.explore),
            },
            "replay": {
                "wall": duration(wanted.retrain.timeout_sec),
                "reserve": duration(wanted.retrain.reserve_sec),
                **_own(wanted.retrain, phases.wall_exports(wanted.retrain)),
            },
            "validate": {
                "wall": duration(wanted.validate.timeout_sec),
                "total_wall": duration(wanted.validate.timeout_sec * formal.artifact_limit),
                "validator": {"command": "validator/validate.py"},
                "disk": mebibytes(toml.environment.storage_mb),
                **_own(wanted.validate, self._identity(wanted.validate)),
            },
            "score": {
                "wall": duration(wanted.score.timeout_sec),
                **({} if self.scorer == toml.environment.image else {"image": self.scorer}),
                "command": "evaluator/evaluate.py",
                "metric": metadata.final_metric,
                "direction": metadata.final_direction,
                "scratch": [phases.VERIFIER_LOGS],
                "disk": mebibytes(toml.environment.storage_mb),
                **_own(wanted.score, self._identity(wanted.score)),
            },
            "proxy": {
                "command": "/opt/harness/fast_eval.sh",
                "metric": metadata.fast_metric,
                "direction": metadata.fast_direction,
            },
            "checkpoints": {"keep": formal.artifact_limit},
            "script": SCRIPT,
            # As many bytes as AI4AI-Bench takes from outside; kinds, files and rows are its own.
            "patch": {"max_compressed": "64MiB", "max_expanded": "64MiB"},
            **self._gpu(),
        }

    def _defaults(self) -> dict[str, Any]:
        place, container = self.toml.environment, self.toml.extension.container
        devices = ",".join(map(str, range(place.gpus)))
        return {
            "image": place.image,
            "cpus": int(place.cpus) if place.cpus.is_integer() else place.cpus,
            "memory": mebibytes(place.memory_mb),
            "shm": mebibytes(-(-container.shm_size // 1024**2)),
            "tmp": "8GiB",
            "pids": container.pids_limit,
            "disk": mebibytes(place.storage_mb),
            "gpus": place.gpus,
            "read_only": False,
            "env": {
                # What AI4AI-Bench leaves to its images, and the two variables that it sets itself.
                **dict.fromkeys(("HOME", "XDG_CACHE_HOME", "WANDB_MODE", "OUTPUT_DIR")),
                "FLASHINFER_WORKSPACE_BASE": "/out",
                **({"CUDA_VISIBLE_DEVICES": devices} if devices else {}),
            },
        }

    def _gpu(self) -> dict[str, Any]:
        gpu, place = self.toml.extension.gpu, self.toml.environment
        if not place.gpus:
            return {}
        memory = {} if gpu is None else {"min_memory": f"{int(gpu.peak_memory_mib * _HEADROOM)}MiB"}
        return {
            "gpu": {"models": list(place.gpu_types), **memory},
            "gate": {"max_memory_used": "64MiB", "max_utilization": 0},
        }

    def _identity(self, phase: DeclaredPhase) -> dict[str, str | None]:
        """Tell an evaluator which image it runs in, where it is the one whose digest is known."""
        place = self.toml.environment
        if not phase.pass_image_digest or self.scorer != place.image:
            return {}
        known = {"IMAGE_DIGEST": place.digest, "IMAGE_CONFIG_DIGEST": place.config_digest}
        return {name: digest for name, digest in known.items() if digest}


def _own(phase: DeclaredPhase, more: Mapping[str, str | None] | None = None) -> dict[str, Any]:
    """Say in what a phase differs from the defaults."""
    env = {**(more or {}), **phase.exports}
    return {
        **({"read_only": True} if phase.read_only_root else {}),
        **({"env": env} if env else {}),
    }


def _script(name: str) -> bytes:
    return (bundled("templates") / "import" / name).read_bytes()


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
