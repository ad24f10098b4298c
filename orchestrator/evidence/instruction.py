"""Render a task's instruction for an agent."""

import jinja2
from jinja2.sandbox import SandboxedEnvironment

from orchestrator.domain.task import TaskSpec
from orchestrator.errors import TaskPackError
from orchestrator.storage.pack import Pack

_PATHS = {
    "workspace": "/workspace",
    "assets": "/assets",
    "out": "/out",
    "harness": "/opt/harness",
    "instruction": "/logs/instruction.md",
}
_FAULTY = (
    jinja2.TemplateError,
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
)
"""What a template may end in, its bytes and what it computes included."""


def render(pack: Pack, task: TaskSpec, wall: float) -> str:
    """Fill in budgets, paths and the proxy's name.

    Raises:
        TaskPackError: the file is missing, or the template names something unknown.
    """
    path = pack.folder / task.instructions
    # Plain text for an agent to read, not a page: escaping would change the words.
    # A pack may come from elsewhere: its text reaches nothing of ours but what is given here.
    rules = SandboxedEnvironment(autoescape=False, undefined=jinja2.StrictUndefined)
    try:
        template = rules.from_string(path.read_text(encoding="utf-8"))
        return template.render(
            budgets={
                "explore_wall": int(wall),
                "replay_wall": int(task.replay.wall),
                "reserve": int(task.replay.reserve),
            },
            paths=_PATHS,
            proxy=None if task.proxy is None else task.proxy.metric,
            task={"name": task.name, "title": task.title},
        )
    except OSError as failure:
        raise TaskPackError(f"{path}: {failure.strerror}") from failure
    except _FAULTY as fault:
        raise TaskPackError(f"{path}: {fault}", remedy="see task.yaml, instructions:") from fault
