"""The one way onto the terminal: every line that orch prints is cleaned and written here.

No markup is ever read from what is printed, and nothing in it reaches the terminal as a control.
"""

import errno
import io
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import IO, Any

from rich.cells import cell_len

from orchestrator.report.text import clean, one_line


class Stream(Enum):
    """Where a line goes: results to ``OUT``, everything about the run of orch to ``ERR``."""

    OUT = auto()
    ERR = auto()


def emit(text: str = "", *, to: Stream = Stream.OUT) -> None:
    """Print ``text`` and a newline, cleaned."""
    write(sys.stdout if to is Stream.OUT else sys.stderr, clean(text) + "\n")


def write(stream: IO[str], text: str) -> None:
    """Write ``text`` as it is.

    A reader that went away (``orch status | head``), or a terminal that hung up, ends the printing
    and not the work: what follows goes nowhere.
    """
    try:
        stream.write(text)
        stream.flush()
    except OSError as failure:
        if failure.errno not in {errno.EPIPE, errno.EIO}:
            raise
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - devnull is no path of ours
            os.dup2(nowhere.fileno(), stream.fileno())


def emit_json(document: Mapping[str, Any] | Sequence[Any]) -> None:
    """Print strict JSON, everything beyond printable ASCII escaped."""
    emit(json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False))


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Align ``rows`` under ``headings`` by display width; two spaces between columns."""
    cells = [list(headings), *([one_line(cell) for cell in row] for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(map(_padded, row, widths)).rstrip() for row in cells]


def pairs(facts: Iterable[tuple[str, str]], *, indent: int = 2) -> list[str]:
    """Lay out ``(label, text)`` in two columns; a text of several lines is folded into one."""
    known = [(label, one_line(text)) for label, text in facts]
    width = max((cell_len(label) for label, _ in known), default=0)
    return [f"{' ' * indent}{_padded(label, width)}  {text}".rstrip() for label, text in known]


def forgiving(stream: IO[str]) -> None:
    """Let ``stream`` escape what its encoding cannot hold, where it would raise."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")


def _padded(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))
