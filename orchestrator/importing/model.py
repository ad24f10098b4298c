"""What an importer makes of a task from elsewhere, before anything of it is written."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from orchestrator.errors import TaskPackError
from orchestrator.storage.durable import read_bytes

SCRIPT = "demo.yaml"
SHIPPED_AS_IT_IS = b"""\
# What the scripted agent does: it hands in the shipped solution as it is, for a baseline.
- run: /opt/harness/submit.sh --allow-empty
"""


_MOST_TEXT = 4 * 1024**2


def text_of(path: Path) -> str:
    """Read a text of the source: a file of its own, for a link may lead to the host's.

    Raises:
        TaskPackError: it is a link or anything else that is no file, or larger than 4 MiB.
        OSError: it is not there, or cannot be read.
        UnicodeDecodeError: it is not UTF-8.
    """
    return read_bytes(path, max_bytes=_MOST_TEXT).decode()


class Foreign(BaseModel):
    """Base of what is read from elsewhere: exact, and a key that is not known is a fault."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


@dataclass(slots=True)
class Findings:
    """What an importer has to tell: what it refuses, and what it keeps in another way."""

    refused: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    def refuse(self, where: str, what: str) -> None:
        """Note something that cannot be kept, by its name in the source."""
        self.refused.append(f"{where}: {what}")

    def refuse_faults(self, file: str, error: ValidationError, known: Mapping[str, str]) -> None:
        """Note every fault of a file's content.

        Args:
            known: what to say of a key, instead of what pydantic does.
        """
        for item in error.errors(include_url=False):
            where = ".".join(str(part) for part in item["loc"])
            said = known.get(where)
            if said is None and item["type"] == "extra_forbidden":
                said = "not a key that is kept"
            elif said is None:
                said = item["msg"][:1].lower() + item["msg"][1:]
            shown = "" if item["type"] == "missing" else f" = {_short(item['input'])}"
            self.refuse(f"{file}: {where}{shown}", said)

    def settle(self) -> None:
        """Stop where anything was refused.

        Raises:
            TaskPackError: something was; one line each.
        """
        if self.refused:
            raise TaskPackError(
                "\n".join(dict.fromkeys(self.refused)),
                remedy="nothing was written: what cannot be kept is not weakened",
            )


@dataclass(frozen=True, slots=True)
class Imported:
    """A pack to write.

    Attributes:
        name: of the task.
        origin: where it comes from, in words.
        task: what ``task.yaml`` says.
        files: the pack's other files by their paths; executable where they end in ``.sh``.
        differences: what is kept in another way than in the source, a sentence each.
        brought: what the operator brings, by its path there: in words, what that is.
    """

    name: str
    origin: str
    task: Mapping[str, Any]
    files: Mapping[str, bytes]
    differences: tuple[str, ...] = ()
    brought: Mapping[str, str] = field(default_factory=dict)


def mebibytes(number: int) -> str:
    """Write a size as ``task.yaml`` does."""
    return f"{number // 1024}GiB" if number % 1024 == 0 else f"{number}MiB"


def duration(seconds: float) -> str:
    """Write a time as ``task.yaml`` does, in the largest unit that it is a whole number of."""
    for unit, name in ((3600, "h"), (60, "m")):
        if seconds % unit == 0 and seconds:
            return f"{seconds // unit:g}{name}"
    return f"{seconds:g}s"


def template(text: str) -> str | None:
    """Return a text as an instruction that renders to itself; None where there is no such."""
    if not any(mark in text for mark in ("{{", "{%", "{#")):
        return text
    if "endraw" in text:
        return None
    return "{% raw %}" + text + "{% endraw %}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."  # noqa: PLR2004 - a line to read
