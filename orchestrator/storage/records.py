"""Read our own records back, strictly, and say so when another version wrote them."""

from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from orchestrator.domain.records import FORMAT
from orchestrator.domain.schema import Strict
from orchestrator.errors import TaskPackError
from orchestrator.storage.durable import read_json

R = TypeVar("R", bound=Strict)


def load(path: Path, model: type[R]) -> R:
    """Read one record.

    Raises:
        TaskPackError: it is missing, damaged, or of another version of orch.
    """
    try:
        raw = read_json(path)
    except FileNotFoundError as missing:
        raise TaskPackError(
            f"{path} is missing", remedy="the run folder is incomplete"
        ) from missing
    version = raw.get("format") if isinstance(raw, dict) else None
    if version != FORMAT:
        raise _of_another_version(path, version)
    try:
        return model.model_validate(raw)
    except ValidationError as fault:
        first = fault.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise TaskPackError(f"{path}: {where}: {first['msg']}") from fault


def require_format(path: Path) -> None:
    """Refuse a record of another version; one that is missing or damaged is not known to be one.

    Raises:
        TaskPackError: it says that it has another format.
    """
    try:
        raw = read_json(path)
    except (FileNotFoundError, TaskPackError):
        return
    version = raw.get("format", FORMAT) if isinstance(raw, dict) else FORMAT
    if version != FORMAT:
        raise _of_another_version(path, version)


def _of_another_version(path: Path, version: object) -> TaskPackError:
    return TaskPackError(
        f"{path} has format {version!r}, this orch reads format {FORMAT}",
        remedy="open it with the orch that wrote it; nothing was touched",
    )
