"""Harbor tasks of one step, with a prebuilt image and a verifier in a container of its own.

What an agent leaves as the task's artifacts, below ``/workspace``, is what its patch makes: a run
script of the pack publishes it, and the task's tests, which become data of the final role, judge
it in the verifier's image. Everything else that such a task may ask for is refused by its name.
"""

import json
import re
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from orchestrator.config import bundled
from orchestrator.errors import TaskPackError
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
WORKSPACE = PurePosixPath("/workspace")
_TESTS = "data/tests"
_NO_NETWORK = "containers of orch have no network, and no other policy is kept"
_NOT_BUILT = "orch builds no image of a task: name a prebuilt one"
_NO_DEFAULT = "is missing, and orch gives no container without such a limit"
_WORDS = {
    "steps": "only tasks of one step are kept",
    "multi_step_reward_strategy": "only tasks of one step are kept",
    "verifier.environment_mode": "only a verifier in a container of its own is kept ('separate')",
    "verifier.collect": "commands after an agent's end are not kept",
    "environment.docker_image": _NOT_BUILT,
    "environment.healthcheck": "health checks are not kept",
    "environment.mcp_servers": "servers beside an agent are not kept",
    "environment.skills_dir": "skills for an agent are not kept",
    "environment.tpu": "TPUs are not kept",
    "agent.user": "orch chooses the users of its containers",
    "verifier.user": "orch chooses the users of its containers",
    "agent.timeout_sec": _NO_DEFAULT,
    **{
        f"{table}.{key}": _NO_NETWORK
        for table in ("environment", "agent", "verifier", "verifier.environment")
        for key in ("network_mode", "allowed_hosts", "allow_internet")
    },
    **{
        f"{table}.{key}": _NO_DEFAULT
        for table in ("environment", "verifier.environment")
        for key in ("cpus", "memory_mb", "storage_mb")
    },
}
_COMPOSE = ("docker-compose.yaml", "docker-compose.yml")


class _Environment(Foreign):
    docker_image: str | None = None
    cpus: float = Field(gt=0)
    memory_mb: int = Field(gt=0)
    storage_mb: int = Field(gt=0)
    gpus: int | None = Field(default=None, ge=0)
    gpu_types: tuple[str, ...] | None = None
    network_mode: Literal["no-network"] | None = None
    allow_internet: Literal[False] | None = None
    env: dict[str, str] = Field(default_factory=dict)
    workdir: str | None = None
    os: Literal["linux"] = "linux"
    build_timeout_sec: float = 0.0


class _Work(_Environment):
    docker_image: str


class _Agent(Foreign):
    timeout_sec: float = Field(gt=0)
    network_mode: Literal["no-network"] | None = None


class _Verifier(Foreign):
    timeout_sec: float = Field(default=600.0, gt=0)
    env: dict[str, str] = Field(default_factory=dict)
    environment_mode: Literal["separate"] | None = None
    environment: _Environment | None = None
    network_mode: Literal["no-network"] | None = None


class _Artifact(Foreign):
    source: str
    destination: str | None = None


def _as_table(entry: Any) -> Any:
    """Spell an artifact that is named by its path alone as the table it stands for."""
    return {"source": entry} if isinstance(entry, str) else entry


class _About(Foreign):
    name: str
    version: str | None = None
    description: str = ""
    authors: tuple[Any, ...] = ()
    keywords: tuple[str, ...] = ()


class HarborToml(Foreign):
    """``task.toml`` as far as it is kept; format 1.0 and later."""

    schema_version: str = Field(default="1.0", pattern=r"^1\.\d+$")
    version: str = Field(default="1.0", pattern=r"^1\.\d+$")
    task: _About | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    agent: _Agent
    verifier: _Verifier
    environment: _Work
    solution: dict[str, Any] = Field(default_factory=dict)
    source: str | None = None
    artifacts: tuple[Annotated[_Artifact, BeforeValidator(_as_table)], ...] = ()


def is_one(document: Mapping[str, Any]) -> bool:
    """Tell whether a ``task.toml`` is Harbor's."""
    return "environment" in document or "steps" in document


def read(folder: Path, *, score_image: str | None) -> Imported:
    """Read a task folder and make a pack of it.

    Args:
        score_image: the verifier's image, in place of the one the task names.

    Raises:
        TaskPackError: something of it cannot be kept; every such thing is named.
    """
    findings = Findings()
    toml = _task(folder / TASK_FILE, findings)
    instruction = _instruction(folder / "instruction.md", findings)
    _check_files(folder, findings)
    images = artifacts = None
    if toml is not None:
        _check_network(toml, findings)
        _check_variables(toml, findings)
        images = _images(folder, toml, score_image, findings)
        artifacts = _artifacts(toml, findings)
    findings.settle()
    if toml is None or images is None or artifacts is None:
        raise AssertionError("what is missing was refused")
    return _imported(folder, toml, images, artifacts, instruction)


def _task(path: Path, findings: Findings) -> HarborToml | None:
    try:
        return HarborToml.model_validate(tomllib.loads(text_of(path)))
    except ValidationError as faults:
        findings.refuse_faults(TASK_FILE, faults, _WORDS)
    return None


def _instruction(path: Path, findings: Findings) -> str:
    try:
        text = template(text_of(path))
    except (OSError, UnicodeDecodeError, TaskPackError):
        findings.refuse(path.name, "is no text file in the task's folder")
        return ""
    if text is None:
        findings.refuse(path.name, "holds template marks and 'endraw', and cannot be kept")
    return text or ""


def _check_files(folder: Path, findings: Findings) -> None:
    for place in ("environment", "tests"):
        for name in _COMPOSE:
            if (folder / place / name).exists():
                findings.refuse(f"{place}/{name}", "services beside the container are not kept")
    if (folder / "steps").exists():
        findings.refuse("steps/", "only tasks of one step are kept")
    if (folder / "trajectory.json").exists():
        findings.refuse("trajectory.json", "what an agent did before is not kept")
    if not (folder / "tests" / "test.sh").is_file():
        findings.refuse("tests/test.sh", "no such file in the task's folder")


def _check_network(toml: HarborToml, findings: Findings) -> None:
    """Refuse a task that says nothing of its network: Harbor's default is an open one."""
    if toml.environment.network_mode is None and toml.environment.allow_internet is None:
        findings.refuse(
            f"{TASK_FILE}: environment.network_mode", f"is 'public' unless said; {_NO_NETWORK}"
        )
    own = toml.verifier.environment
    said = own is None or own.network_mode or own.allow_internet is not None
    if not said and toml.verifier.network_mode is None:
        findings.refuse(
            f"{TASK_FILE}: verifier.environment.network_mode",
            f"is 'public' unless said; {_NO_NETWORK}",
        )


def _check_variables(toml: HarborToml, findings: Findings) -> None:
    verifier = toml.verifier
    tables = {
        "environment.env": toml.environment.env,
        "verifier.env": verifier.env,
        "verifier.environment.env": {}
        if verifier.environment is None
        else verifier.environment.env,
    }
    for where, env in tables.items():
        for name, value in env.items():
            if "${" in value:
                findings.refuse(
                    f"{TASK_FILE}: {where}.{name}", "variables of the host do not enter containers"
                )


def _images(
    folder: Path, toml: HarborToml, score_image: str | None, findings: Findings
) -> tuple[str, str]:
    """Say which images an agent and the verifier work in."""
    verifier, own = toml.verifier, toml.verifier.environment
    if own is None and verifier.environment_mode is None:
        findings.refuse(
            f"{TASK_FILE}: verifier.environment_mode",
            "is 'shared' unless said; only a verifier in a container of its own is kept",
        )
    named = score_image or (None if own is None else own.docker_image)
    if named is None and (folder / "tests" / "Dockerfile").exists():
        findings.refuse("tests/Dockerfile", f"{_NOT_BUILT}: --score-image IMAGE")
    image = toml.environment.docker_image
    for where, place in (("environment", toml.environment), ("verifier.environment", own)):
        workdir = None if place is None else place.workdir
        if workdir not in {None, str(WORKSPACE)}:
            findings.refuse(
                f"{TASK_FILE}: {where}.workdir = {workdir!r}", f"only {WORKSPACE} is kept"
            )
    return image, named or image


def _artifacts(toml: HarborToml, findings: Findings) -> list[str] | None:
    """Return what is to be published, by its path below ``/workspace``."""
    found = []
    for entry in toml.artifacts:
        source, path = entry.source, PurePosixPath(entry.source)
        below = path.is_relative_to(WORKSPACE) and path != WORKSPACE
        if not below or ".." in path.parts or not source.isprintable():
            findings.refuse(
                f"{TASK_FILE}: artifacts: {source!r}", f"only what lies below {WORKSPACE} crosses"
            )
        else:
            found.append(str(path.relative_to(WORKSPACE)))
    if not toml.artifacts:
        findings.refuse(
            f"{TASK_FILE}: artifacts", f"are missing: only what lies below {WORKSPACE} crosses"
        )
    return found or None


def _imported(
    folder: Path, toml: HarborToml, images: tuple[str, str], artifacts: list[str], instruction: str
) -> Imported:
    name = toml.task.name.rpartition("/")[2] if toml.task else folder.resolve().name
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)
    run = _template("harbor_run.sh").replace(b"@ARTIFACTS@", shlex.join(artifacts).encode())
    about = toml.task
    title = name if about is None else about.description or about.name
    return Imported(
        name=name,
        origin=f"{about.name if about else name} of Harbor",
        task=_pack(name, title, toml, images),
        files={
            SCRIPT: SHIPPED_AS_IT_IS,
            "instruction.md": instruction.encode(),
            "workspace/run.sh": run,
            "evaluator/evaluate.py": _template("harbor_evaluate.py"),
            "evaluator/source.json": (json.dumps({"workdir": str(WORKSPACE)}) + "\n").encode(),
            "validator/validate.py": _template("harbor_validate.py"),
        },
        differences=(
            "score: the tests run as an ordinary user, without a network",
            f"replay: what crosses is the patch of {WORKSPACE}; run.sh publishes the artifacts",
            *(
                f"score: the tests find {one.source!r} there, and nothing at its destination"
                f" {one.destination!r}"
                for one in toml.artifacts
                if one.destination not in {None, one.source}
            ),
        ),
        brought={"tests": f"of the task itself, so DIR is {folder.resolve()}"},
    )


def _pack(name: str, title: str, toml: HarborToml, images: tuple[str, str]) -> dict[str, Any]:
    image, scorer = images
    agent, verifier = toml.agent, toml.verifier
    own = verifier.environment
    place = own or toml.environment
    score_env = {**({} if own is None else own.env), **verifier.env}
    return {
        "schema": "orch.task/1",
        "name": name,
        "title": title,
        "workspace": {"from": "image", "add": "workspace"},
        "assets": {_TESTS: {"role": "final", "source": {"local": "tests"}}},
        "defaults": {
            **_resources(toml.environment),
            "image": image,
            **({"env": dict(toml.environment.env)} if toml.environment.env else {}),
            "read_only": False,
        },
        "explore": {
            "wall": duration(agent.timeout_sec),
            "command_wall": duration(agent.timeout_sec),
        },
        "replay": {"wall": duration(agent.timeout_sec), "reserve": duration(0)},
        "validate": {"validator": {"command": "validator/validate.py"}, "gpus": 0},
        "score": {
            "wall": duration(verifier.timeout_sec),
            **({} if own is None else _resources(own)),
            **({} if scorer == image else {"image": scorer}),
            "command": "evaluator/evaluate.py",
            "metric": "reward",
            "direction": "max",
            "scratch": ["/logs/verifier", "/tests", str(WORKSPACE)],
            "disk": mebibytes(place.storage_mb),
            **({"env": score_env} if score_env else {}),
        },
        "patch": "off",
        "checkpoints": {"keep": 1},
        "script": SCRIPT,
        **({"gpu": {"models": list(place.gpu_types)}} if place.gpus and place.gpu_types else {}),
    }


def _resources(place: _Environment) -> dict[str, Any]:
    return {
        "cpus": int(place.cpus) if place.cpus.is_integer() else place.cpus,
        "memory": mebibytes(place.memory_mb),
        "disk": mebibytes(place.storage_mb),
        "gpus": place.gpus or 0,
    }


def _template(name: str) -> bytes:
    return (bundled("templates") / "import" / name).read_bytes()
