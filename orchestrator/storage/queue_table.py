r"""The text of ``queue.tsv``: a header, then one row a line, each with all of its columns.

What is empty is written ``-``. A value is written as it is, but for these, so that no value can
begin a cell or a line of its own, act on a terminal, or become a formula or a quoted cell of a
spreadsheet:

* a backslash, tab, newline and carriage return are ``\\``, ``\t``, ``\n`` and ``\r``;
* other control characters, what turns the direction of text, and what is no character at all are
  ``\xNN`` or ``\uNNNN``, by number;
* so is a ``"``, ``-``, ``=``, ``+`` or ``@`` that a value begins with.

A line that cannot be such a row is a fault of the file, with its reason, and none of the others'.
"""

import codecs
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from orchestrator.domain.queue import COLUMNS, TAKEN, Job, JobKind, JobStatus
from orchestrator.domain.text import ACTING

HEADER = "\t".join(COLUMNS)
_HEAD = HEADER.encode()
_LEAST = frozenset({b"job", b"kind", b"status"})
_NAME = re.compile(rb"[a-z_]+")

_EMPTY = "-"
_SHORT = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_STRAY = re.compile(f"[{ACTING}]")
_ESCAPED = re.compile(f'[\\\\\t\n{ACTING}]|\\A["=+@-]')
_ESCAPE = re.compile(r"\\(?:([\\tnr])|x([0-9a-f]{2})|u([0-9a-f]{4}))")
_BACK = {"\\": "\\", "t": "\t", "n": "\n", "r": "\r"}

_TEXT = r"[^\t]*"
_NUMBER = r"[0-9]{1,9}|-?"
_TIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z|-?"
_FORMS = {
    "job": r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}",
    "kind": "|".join(JobKind),
    "series": r"-?|official|(?:seed|ablation)-[1-9][0-9]{0,3}",
    "status": "|".join(JobStatus),
    "exit": _NUMBER,
    "tries": r"[0-9]{1,9}",
    "not_before": _TIME,
    "priority": r"-?[0-9]{1,9}",
    "pid": _NUMBER,
    "created": _TIME,
    "updated": _TIME,
}
_KEYS = frozenset({"job", "status", "not_before", "priority", "host", "pid", "created", "updated"})
_ROW = re.compile(
    r"\t".join(f"({'' if name in _KEYS else '?:'}{_FORMS.get(name, _TEXT)})" for name in COLUMNS)
)
_PARTS = tuple(re.compile(_FORMS.get(name, _TEXT)) for name in COLUMNS)
_STATUSES = {status.value: status for status in JobStatus}
_PRIORITY = COLUMNS.index("priority")


class Row(NamedTuple):
    """A sound line, and the part of it that choosing among many needs.

    ``rank`` sorts as jobs are taken: larger priority first, then the older, then by name.
    """

    line: bytes
    job: str
    status: JobStatus
    not_before: str
    rank: tuple[int, str, int, str]
    updated: str
    host: str


@dataclass(frozen=True, slots=True)
class Fault:
    """A line that is no row. ``number`` counts from one."""

    number: int
    line: str
    reason: str


@dataclass(frozen=True, slots=True)
class Table:
    """What a file holds: its rows in their order, and the lines that are none."""

    rows: tuple[Row, ...]
    faults: tuple[Fault, ...]


def has_other_columns(data: bytes) -> bool:
    """Tell whether a file begins with names of columns, and not as this version writes them.

    Another version's table is one, and what a spreadsheet makes of ours: other separators or order,
    quotes, two bytes a letter.
    """
    head = data.partition(b"\n")[0].rstrip(b"\r").removeprefix(codecs.BOM_UTF8)
    names = set(_NAME.findall(head.replace(b"\0", b"")))
    return head != _HEAD and names >= _LEAST


def escape(value: str) -> str:
    """Write a value as a cell."""
    return _ESCAPED.sub(_by_number, value) if value else _EMPTY


def unescape(cell: str) -> str:
    """Read a cell; what looks like an escape and is none stays as it is."""
    if cell == _EMPTY:
        return ""
    return _ESCAPE.sub(_from_number, cell) if "\\" in cell else cell


def line_of(job: Job) -> bytes:
    """Write a job as a line, without its newline."""
    cells = (getattr(job, name) for name in COLUMNS)
    return "\t".join(
        _EMPTY if cell is None else f"{cell}" if isinstance(cell, int) else escape(cell)
        for cell in cells
    ).encode()


def job_of(line: bytes) -> Job:
    """Read the job of a sound line."""
    raw = line.decode().split("\t")
    cells = dict(zip(COLUMNS, map(unescape, raw), strict=True))
    return Job(
        job=cells["job"],
        kind=JobKind(cells["kind"]),
        config=cells["config"],
        attempt=cells["attempt"],
        replay=cells["replay"],
        series=cells["series"],
        status=JobStatus(cells["status"]),
        outcome=cells["outcome"],
        exit=_number(cells["exit"]),
        tries=int(cells["tries"]),
        not_before=cells["not_before"],
        priority=int(raw[_PRIORITY]),
        host=cells["host"],
        gpu=cells["gpu"],
        pid=_number(cells["pid"]),
        created=cells["created"],
        updated=cells["updated"],
        note=cells["note"],
    )


def row_of(job: Job) -> Row:
    """Make the row of a job that is to be written."""
    return Row(
        line_of(job),
        job.job,
        job.status,
        job.not_before,
        (-job.priority, job.created, len(job.job), job.job),
        job.updated,
        escape(job.host),
    )


class Reader:
    """Reads the table again and again; a line that it has seen before costs next to nothing."""

    def __init__(self) -> None:
        self._known: dict[bytes, Row] = {}

    def read(self, data: bytes) -> Table:
        """Read a whole file; one that is empty, or not there yet, holds no row."""
        if not data:
            return Table((), ())
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")  # a spreadsheet has saved it
        lines = data.removesuffix(b"\n").split(b"\n")
        first = 1
        if lines[0] == _HEAD:
            lines, first = lines[1:], 2
        faults: list[Fault] = []
        rows = self._rows(lines, first, faults)
        if len({row.job for row in rows}) < len(rows):
            rows = _distinct(rows, lines, first, faults)
        self._known = {row.line: row for row in rows}
        return Table(tuple(rows), tuple(sorted(faults, key=lambda fault: fault.number)))

    def _rows(self, lines: Sequence[bytes], first: int, faults: list[Fault]) -> list[Row]:
        known = self._known
        rows: list[Row] = []
        for number, line in enumerate(lines, start=first):
            row = known.get(line)
            if row is None:
                found = _parse(line)
                if isinstance(found, str):
                    faults.append(Fault(number, _text(line), found))
                    continue
                row = found
            rows.append(row)
        return rows


def render(rows: Iterable[Row]) -> bytes:
    """Write a whole file."""
    return b"\n".join((_HEAD, *(row.line for row in rows), b""))


def _parse(line: bytes) -> Row | str:
    """Read one line; a text says why it is no row."""
    text = _text(line)
    match = _ROW.fullmatch(text)
    if match is None or not _is_clean(text):
        return _reason(text)
    job, status, not_before, priority, host, pid, created, updated = match.groups()
    row = Row(
        line,
        job,
        _STATUSES[status],
        "" if not_before == _EMPTY else not_before,
        (-int(priority), "" if created == _EMPTY else created, len(job), job),
        "" if updated == _EMPTY else updated,
        host,
    )
    if row.status in TAKEN and (host in {"", _EMPTY} or pid in {"", _EMPTY}):
        return f"it is {status}, and does not say by which host and process"
    return row


def _text(line: bytes) -> str:
    """Decode a line; bytes that are no text become what is never in a row."""
    return line.decode("utf-8", errors="surrogateescape")


def _is_clean(line: str) -> bool:
    """Tell whether a line holds nothing that is always escaped; quick for what is printable."""
    return line.replace("\t", "").isprintable() or _STRAY.search(line) is None


def _reason(line: str) -> str:
    """Say what is wrong with a line that is no row."""
    if not _is_clean(line):
        return "it holds control characters"
    cells = line.split("\t")
    if len(cells) != len(COLUMNS):
        return f"it has {len(cells)} columns, not {len(COLUMNS)}"
    name, wrong = next(
        (name, cell)
        for name, cell, form in zip(COLUMNS, cells, _PARTS, strict=True)
        if not form.fullmatch(cell)
    )
    return f"{name} cannot be {wrong!r}"


def _distinct(
    rows: Sequence[Row], lines: Sequence[bytes], first: int, faults: list[Fault]
) -> list[Row]:
    """Keep one row of each job: the one that was changed last, of equals the first."""
    kept: dict[str, Row] = {}
    for row in rows:
        there = kept.get(row.job)
        if there is None:
            kept[row.job] = row
            continue
        newer, older = (row, there) if row.updated > there.updated else (there, row)
        kept[row.job] = newer
        number = max(n for n, line in enumerate(lines, start=first) if line == older.line)
        faults.append(Fault(number, _text(older.line), f"there is another row of {row.job}"))
    return list(kept.values())


def _number(cell: str) -> int | None:
    return int(cell) if cell else None


def _by_number(match: re.Match[str]) -> str:
    character = match.group()
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")  # noqa: PLR2004


def _from_number(match: re.Match[str]) -> str:
    short, two, four = match.groups()
    return _BACK[short] if short else chr(int(two or four, 16))
