"""A task with AI4AI-Bench's layout, made here: its folder, its images, and what an operator has.

Its declaration is run only as the oracle that the import is held against.
"""

import hashlib
import io
import json
import shutil
import sys
import tarfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import docker

SOURCE = Path(__file__).parent / "data" / "ai4ai_task"
BASE = "orch/debian:1"
GIVEN = {
    "models/start/guess.txt": "1.0\n",
    "models/bounds/most.txt": "6.0\n",
    "data/rows.jsonl": '{"value": 9.0}\n{"value": 11.0}\n',
    "data/open/open.txt": "somewhere below twenty\n",
    "data/peek/hint.txt": "5.0\n",
    "data/answer/answer.txt": "7.0\n",
}
DOCKERFILE = f"""\
FROM {BASE}
ENV HOME=/tmp WANDB_MODE=disabled
COPY solution /workspace
COPY harness /opt/harness
"""


def task_folder(folder: Path, image: str) -> Path:
    """Write the task as its authors would publish it."""
    shutil.copytree(SOURCE, folder)
    task = folder / "task.toml"
    task.write_text(task.read_text().replace("IMAGE", image))
    lock = folder / "environment/assets.lock.yaml"
    rows = GIVEN["data/rows.jsonl"].encode()
    text = lock.read_text().replace("ROWS_SHA256", hashlib.sha256(rows).hexdigest())
    lock.write_text(text.replace("START_SHA256", _tree({"guess.txt": "1.0\n"})))
    return folder


def given_folder(folder: Path) -> Path:
    """Write the assets as an operator has them."""
    for name, text in GIVEN.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@contextmanager
def images() -> Iterator[tuple[str, str]]:
    """Build the image that works and the one that scores, workspace and harness in layers."""
    name = f"orch-test/ai4ai-{uuid.uuid4().hex[:12]}"
    made = (f"{name}:work", f"{name}:score")
    client = docker.from_env()
    try:
        _build(client, DOCKERFILE, made[0])
        _build(client, f"FROM {made[0]}\nENV SCORER='an image of its own'\n", made[1])
        yield made
    finally:
        for tag in reversed(made):
            client.images.remove(tag)
        client.close()


@contextmanager
def image(*dockerfile: str) -> Iterator[str]:
    """Build one image of further lines for the base."""
    tag = f"orch-test/plain-{uuid.uuid4().hex[:12]}:1"
    client = docker.from_env()
    try:
        _build(client, "\n".join((f"FROM {BASE}", *dockerfile)), tag)
        yield tag
    finally:
        client.images.remove(tag)
        client.close()


def _build(client: docker.DockerClient, dockerfile: str, tag: str) -> None:
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        for name in ("solution", "harness"):
            tar.add(SOURCE / name, name)
        info = tarfile.TarInfo("Dockerfile")
        info.size = len(dockerfile)
        tar.addfile(info, io.BytesIO(dockerfile.encode()))
    context.seek(0)
    client.images.build(fileobj=context, custom_context=True, tag=tag, rm=True, network_mode="none")


def _tree(files: Mapping[str, str]) -> str:
    rows = [
        {
            "path": path,
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
            "size_bytes": len(text.encode()),
        }
        for path, text in sorted(files.items())
    ]
    text = json.dumps(rows, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Phase:
    """What AI4AI-Bench's own class holds, as far as this declaration uses it."""

    name: str
    timeout_sec: int
    command: tuple[str, ...]
    mounts: tuple[tuple[str, str, bool], ...]
    exports: dict[str, str] = field(default_factory=dict)
    hooks: tuple[str, ...] = ()
    read_only_root: bool = False
    apply_patch: bool = False
    reserve_sec: int = 0
    free_gib: int = 0
    checkpoint_glob: str = ""
    checkpoint_payload: str = "."
    artifact_limit: int = 1
    checkpoint_kind: str = "auto"
    pass_image_digest: bool = False

    def assets(self) -> dict[str, str]:
        """Where its assets lie, by their names."""
        return {s.removeprefix("asset:"): t for s, t, _ in self.mounts if s.startswith("asset:")}


def _validation(score: Phase, task: str) -> Phase:
    return replace(score, name="checkpoint-validate", timeout_sec=3600, read_only_root=False)


def declared() -> dict[str, Phase]:
    """Run our own declaration, as AI4AI-Bench runs those of its tasks."""
    stub: Any = ModuleType("container")
    stub.Phase, stub.checkpoint_validation_phase = Phase, _validation
    scope: dict[str, Any] = {}
    with patch.dict(sys.modules, {"container": stub}):
        exec((SOURCE / "declaration.py").read_text(), scope)  # noqa: S102 - our own file
    phases: dict[str, Phase] = scope["PHASES"]
    return phases
