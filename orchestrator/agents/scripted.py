"""The scripted agent: a task's YAML list of steps, run through the path every agent uses."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import override

from orchestrator.domain.quantity import Seconds
from orchestrator.domain.schema import Strict
from orchestrator.errors import TaskPackError, UsageError
from orchestrator.ports import Agent, AgentSession
from orchestrator.storage.pack import Pack
from receipts.model import faults


class ScriptStep(Strict):
    """One step: something to say, a command to run, or both."""

    say: str = ""
    run: str = ""
    timeout: Annotated[Seconds, Field(gt=0)] | None = None


_STEP = "a step is a mapping with say, run or both, and perhaps timeout"
_STEPS: TypeAdapter[tuple[ScriptStep, ...]] = TypeAdapter(tuple[ScriptStep, ...])


def load_script(path: Path) -> tuple[tuple[ScriptStep, ...], str]:
    """Read a script and its digest (``sha256:...``).

    Raises:
        TaskPackError: it cannot be read, or is not a list of steps.
    """
    try:
        data = path.read_bytes()
        raw: Any = yaml.safe_load(data)
        steps = _STEPS.validate_python(raw)
    except OSError as failure:
        raise TaskPackError(f"{path}: {failure.strerror}", remedy="name it in script:") from failure
    except ValidationError as fault:
        raise TaskPackError(
            f"{path} is not a list of steps: {faults(fault)}", remedy=_STEP
        ) from fault
    except (yaml.YAMLError, ValueError, RecursionError) as fault:
        said = " ".join(str(fault).split())
        raise TaskPackError(f"{path} is not YAML: {said}", remedy=_STEP) from fault
    return steps, "sha256:" + hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class ScriptedAgent(Agent):
    """Runs the steps of ``script:`` in order, whatever each one exits with."""

    pack: Pack

    def __post_init__(self) -> None:
        if self.pack.spec.script is None:
            raise UsageError(
                f"task {self.pack.spec.name!r} has no script for the scripted agent",
                remedy="name one in task.yaml under script:, or choose another --agent",
            )

    @property
    def _script(self) -> Path:
        return self.pack.folder / str(self.pack.spec.script)

    @property
    @override
    def name(self) -> str:
        return "scripted"

    @property
    @override
    def digest(self) -> str:
        return load_script(self._script)[1]

    @property
    @override
    def interactive(self) -> bool:
        return False

    @override
    def run(self, session: AgentSession) -> None:
        steps, _ = load_script(self._script)
        for step in steps:
            if session.stopping.is_set():
                return
            if step.say:
                session.say(step.say)
            if step.run:
                session.execute(step.run, timeout=step.timeout)
