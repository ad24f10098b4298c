"""Hash-chained JSON lines, as journals and the campaign log are: read, never written here.

One entry a line, ``{seq, ts, mono_ns, boot_id, id, event, data, prev}``; ``prev`` is the sha256 of
the bytes of the line before, without its newline. A last line without newline was cut off by a
crash and counts for nothing; any other break is tampering.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from receipts.canonical import sha256_hex
from receipts.errors import MalformedError
from receipts.model import faults
from receipts.reading import parse_json, read_file

START = "sha256:" + "0" * 64
"""What the first line names as the one before it."""

MAX_FILE = 64 * 1024**2
MAX_LINE = 16 * 1024**2


class Line(BaseModel):
    """One line. ``mono_ns`` is CLOCK_BOOTTIME and compares only under the same ``boot_id``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seq: int = Field(ge=1, strict=True)
    ts: str
    mono_ns: int = Field(ge=0)
    boot_id: str
    id: str
    event: str
    data: dict[str, Any]
    prev: str


@dataclass(frozen=True, slots=True)
class Journal:
    """The lines of a file up to its first break.

    Attributes:
        lines: those that hold together, in order.
        digests: what each of them is named by, ``sha256:...``.
        torn: a last line without newline was left out.
        fault: what is wrong with the line after the last of ``lines``; empty when nothing is.
    """

    lines: tuple[Line, ...] = ()
    digests: tuple[str, ...] = ()
    torn: bool = False
    fault: str = ""

    @property
    def head(self) -> str:
        """The name of the last line."""
        return self.digests[-1] if self.digests else START

    def has(self, *events: str) -> bool:
        """Tell whether any of ``events`` happened."""
        return any(line.event in events for line in self.lines)

    def last(self, event: str) -> Line | None:
        """The latest line of ``event``."""
        return next((line for line in reversed(self.lines) if line.event == event), None)


def read_journal(path: Path) -> Journal:
    """Read a whole file and check that its lines hang together.

    Raises:
        FileNotFoundError: it does not exist.
        MalformedError: it is no regular file, or larger than ``MAX_FILE``.
    """
    *whole, rest = read_file(path, max_bytes=MAX_FILE).split(b"\n")
    lines: list[Line] = []
    digests: list[str] = []
    head = START
    for number, raw in enumerate(whole, start=1):
        try:
            line = parse_line(raw, number, head)
        except MalformedError as error:
            fault = f"line {number}: {error}"
            return Journal(tuple(lines), tuple(digests), fault=fault)
        head = f"sha256:{sha256_hex(raw)}"
        lines.append(line)
        digests.append(head)
    return Journal(tuple(lines), tuple(digests), torn=bool(rest))


def parse_line(raw: bytes, seq: int, prev: str) -> Line:
    """Parse the line that is to follow ``prev``.

    Raises:
        MalformedError: it is damaged, or follows another.
    """
    if len(raw) > MAX_LINE:
        raise MalformedError(f"longer than {MAX_LINE} bytes")
    try:
        line = Line.model_validate(parse_json(raw))
    except ValidationError as error:
        raise MalformedError(faults(error)) from error
    if line.seq != seq:
        raise MalformedError(f"its seq is {line.seq}")
    if line.prev != prev:
        raise MalformedError("its prev is not the hash of the line before")
    return line
