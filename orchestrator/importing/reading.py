"""Find out whose format a task's folder has, and read it."""

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from orchestrator.errors import TaskPackError, UsageError
from orchestrator.importing import ai4ai, harbor
from orchestrator.importing.model import Imported, text_of

_TASK_FILE = "task.toml"
_READERS: tuple[tuple[Callable[[Mapping[str, Any]], bool], Callable[..., Imported]], ...] = (
    (ai4ai.is_one, ai4ai.read),
    (harbor.is_one, harbor.read),
)


def read_task(source: Path, *, score_image: str | None = None) -> Imported:
    """Read a task from elsewhere; nothing of it is run.

    Args:
        source: its folder, or the ``task.toml`` in it.
        score_image: the image that scores, where the task does not say which.

    Raises:
        UsageError: there is no such task.
        TaskPackError: something of it cannot be kept; all that is named, one line each.
    """
    folder = source.parent if source.name == _TASK_FILE else source
    file = folder / _TASK_FILE
    try:
        document = tomllib.loads(text_of(file))
    except (FileNotFoundError, NotADirectoryError) as absent:
        raise UsageError(f"{folder} has no {_TASK_FILE}", remedy="name a task's folder") from absent
    except OSError as fault:
        raise UsageError(f"{file}: {fault.strerror}") from fault
    except RecursionError as deep:
        raise TaskPackError(f"{_TASK_FILE}: nested too deeply") from deep
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as broken:
        raise TaskPackError(f"{_TASK_FILE}: not TOML: {broken}") from broken
    for is_one, read in _READERS:
        if is_one(document):
            return read(folder, score_image=score_image)
    raise TaskPackError(
        f"{_TASK_FILE}: neither AI4AI-Bench's nor Harbor's: no [x-ai4ai], no [environment]",
        remedy="see docs/importing.md for what can be imported",
    )
