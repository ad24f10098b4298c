"""What an agent without a shell may change: files as numbered lines, some of them editable.

Pure: nothing here touches a workspace. The interface is MLS-Bench's: every edit names a file whose
first part must be an allowed package, stays inside an editable range, and moves that range and the
ones below it. What an agent got wrong is an answer that it can read.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

MAX_FILE = 256 * 1024
"""Characters that an edited file may hold."""
MOST_CREATED = 100
_REMEMBERED = 100
_AROUND = 5
_MOST_LINES = 400
_LONGEST_NAME, _LONGEST_PATH = 255, 1000
_DIGITS = 10


@dataclass(frozen=True, slots=True)
class Span:
    """Editable lines, from 1, both ends in; an empty one ends right before it starts."""

    start: int
    end: int

    def moved(self, by: int) -> "Span":
        """Return the same lines further down, or up."""
        return Span(self.start + by, self.end + by)


@dataclass(frozen=True, slots=True)
class Source:
    """A file: its text, and which of its lines may change, from the top down."""

    text: str
    spans: tuple[Span, ...] = ()

    @property
    def lines(self) -> list[str]:
        """Its lines without their ends."""
        return _lines(self.text)

    def spliced(self, number: int, start: int, end: int, content: list[str]) -> "Source":
        """Put ``content`` in place of the lines from ``start`` to ``end`` of span ``number``."""
        lines = self.lines
        lines[start - 1 : end] = content
        by = len(content) - (end - start + 1)
        own = self.spans[number]
        below = tuple(span.moved(by) for span in self.spans[number + 1 :])
        spans = (*self.spans[:number], Span(own.start, own.end + by), *below)
        ended = not self.text or self.text.endswith("\n")
        return Source(_joined(lines, ended=ended), spans)

    def numbered(self, first: int, last: int) -> str:
        """Show lines with their numbers: ``|`` behind the number of one that may not change."""
        lines = self.lines
        first, last = max(1, first), min(last, len(lines))
        shown = range(first, min(last, first + _MOST_LINES - 1) + 1)
        rows = [f"{n:6d}{self._mark(n)} {lines[n - 1]}" for n in shown]
        if len(shown) < last - first + 1:
            rows.append(f"({last - shown[-1]} more lines up to {last}: view them)")
        return "\n".join(rows)

    def _mark(self, number: int) -> str:
        return " " if any(span.start <= number <= span.end for span in self.spans) else "|"

    def editable(self) -> str:
        """Name the editable lines in words."""
        named = (
            f"{span.start}-{span.end}" if span.end >= span.start else f"after {span.start - 1}"
            for span in self.spans
        )
        return ", ".join(named) or "none"


class _Refused(Exception):  # noqa: N818 - a value for the agent
    """What was asked for cannot be done; the text says why."""


@dataclass(slots=True)
class Editing:
    """The files of the allowed packages, and every change to them.

    Attributes:
        packages: what the first part of a name must be.
        files: the text files that are there, by path.
        taken: paths in the packages that are there and are no text.
    """

    packages: tuple[str, ...]
    files: dict[str, Source]
    taken: frozenset[str] = frozenset()
    edits: int = 0
    _shipped: dict[str, Source] = field(init=False)
    _before: list[tuple[str, Source | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._shipped = dict(self.files)

    def changed(self) -> dict[str, str]:
        """Return the whole text of every file that is not as it was shipped."""
        return {
            path: source.text
            for path, source in sorted(self.files.items())
            if path not in self._shipped or self._shipped[path].text != source.text
        }

    def edit(self, wanted: Mapping[str, Any]) -> str:
        """Do one edit by ``op``; arguments that the operation has no use for are ignored."""

        def do() -> str:
            path = self._path(wanted)
            operation = _OPERATIONS.get(str(wanted.get("op")))
            if operation is None:
                raise _Refused(f"op must be one of {', '.join(_OPERATIONS)}")
            return operation(self, path, wanted)

        return _answered(do)

    def view(self, wanted: Mapping[str, Any]) -> str:
        """Show a file, from ``start_line`` to ``end_line`` where these are given."""

        def do() -> str:
            path = self._path(wanted)
            source = self._source(path)
            first = _line(wanted, "start_line", 1)
            last = _line(wanted, "end_line", len(source.lines))
            return f"{path}, editable: {source.editable()}\n{source.numbered(first, last)}"

        return _answered(do)

    def undo(self, wanted: Mapping[str, Any]) -> str:
        """Take back the last ``n`` edits; 1 by default."""

        def do() -> str:
            count, known = _line(wanted, "n", 1), len(self._before)
            if not 1 <= count <= known:
                raise _Refused(f"n must be from 1 to {known}" if known else "nothing to undo")
            paths: dict[str, None] = {}
            for _ in range(count):
                path, source = self._before.pop()
                paths[path] = None
                if source is None:
                    del self.files[path]
                else:
                    self.files[path] = source
            told = [f"Undid {count} edit{'s' if count > 1 else ''}."]
            for path in paths:
                left = self.files.get(path)
                now = "is gone" if left is None else f"is editable in {left.editable()}"
                told.append(f"{path} {now}.")
            return "\n".join(told)

        return _answered(do)

    def listing(self) -> str:
        """Name every file, and the lines of it that may change."""
        return "\n".join(
            f"{path}: {len(source.lines)} lines, editable: {source.editable()}"
            for path, source in sorted(self.files.items())
        )

    def replace(self, path: str, wanted: Mapping[str, Any]) -> str:
        """Put ``content`` in place of lines; an empty one deletes them."""
        source = self._source(path)
        start, end = _line(wanted, "start_line"), _line(wanted, "end_line")
        if start > end:
            raise _Refused(f"start_line {start} is after end_line {end}")
        for number, span in enumerate(source.spans):
            if span.start <= start and end <= span.end:
                content = _content(wanted)
                done = f"Replaced lines {start}-{end} by {len(content)}"
                return self._splice(path, (number, start, end), content, done)
        raise _Refused(
            f"lines {start}-{end} of {path} are not editable; editable: {source.editable()}"
        )

    def insert(self, path: str, wanted: Mapping[str, Any]) -> str:
        """Put ``content`` after a line: one that is editable, or the one right above such."""
        source = self._source(path)
        after = _line(wanted, "after_line")
        for number, span in enumerate(source.spans):
            if span.start - 1 <= after <= span.end:
                content = _content(wanted)
                done = f"Inserted {len(content)} lines after {after}"
                return self._splice(path, (number, after + 1, after), content, done)
        raise _Refused(
            f"nothing may be inserted after line {after} of {path}; editable: {source.editable()}"
        )

    def create(self, path: str, wanted: Mapping[str, Any]) -> str:
        """Make a new file, all of it editable."""
        above = {str(parent) for parent in PurePosixPath(path).parents}
        if path in self.files or path in self.taken:
            raise _Refused(f"{path} is there already; use replace or insert")
        if any(known.startswith(f"{path}/") for known in self.files.keys() | self.taken):
            raise _Refused(f"{path} is a folder")
        if above & (self.files.keys() | self.taken):
            raise _Refused(f"{path} lies below something that is no folder")
        if len(self.files) - len(self._shipped) >= MOST_CREATED:
            raise _Refused(f"no more than {MOST_CREATED} files may be created")
        content = _content(wanted)
        source = Source(_joined(content, ended=True), (Span(1, len(content)),))
        self._keep(path, source)
        return self._told(path, f"Created {path} with {len(content)} lines", 1, len(content))

    def _splice(self, path: str, place: tuple[int, int, int], content: list[str], done: str) -> str:
        number, start, end = place
        self._keep(path, self.files[path].spliced(number, start, end, content))
        return self._told(path, done, start, start + len(content) - 1)

    def _keep(self, path: str, source: Source) -> None:
        if len(source.text) > MAX_FILE:
            raise _Refused(f"{path} would be larger than {MAX_FILE} characters")
        self._before.append((path, self.files.get(path)))
        del self._before[:-_REMEMBERED]
        self.files[path] = source
        self.edits += 1

    def _told(self, path: str, done: str, first: int, last: int) -> str:
        source = self.files[path]
        around = source.numbered(first - _AROUND, last + _AROUND)
        return f"{done}. Editable lines of {path} now: {source.editable()}\n{around}"

    def _path(self, wanted: Mapping[str, Any]) -> str:
        """Read the name of a file; its package is checked before anything else is."""
        filename = wanted.get("filename")
        named = PurePosixPath(filename if isinstance(filename, str) else "")
        if not named.parts or named.parts[0] not in self.packages:
            allowed = ", ".join(self.packages)
            raise _Refused(f"filename must lie in an allowed package: {allowed}")
        if not _is_plain(named):
            raise _Refused(f"{_text(str(named))!r} is no name of a file")
        return str(named)

    def _source(self, path: str) -> Source:
        if path not in self.files:
            what = "is no text" if path in self.taken else "is not there"
            raise _Refused(f"{path} {what}; the files are:\n{self.listing()}")
        return self.files[path]


_OPERATIONS: Mapping[str, Callable[[Editing, str, Mapping[str, Any]], str]] = {
    "replace": Editing.replace,
    "insert": Editing.insert,
    "create": Editing.create,
}


def spans_of(ranges: Iterable[str]) -> tuple[Span, ...]:
    """Read a task's ranges, which are known to be well written: ``9-24``."""
    ends = (one.split("-") for one in ranges)
    return tuple(Span(int(start), int(end)) for start, end in ends)


def _answered(do: Callable[[], str]) -> str:
    try:
        return do()
    except _Refused as refused:
        return f"Error: {refused}."


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return lines


def _joined(lines: list[str], *, ended: bool) -> str:
    """Undo ``_lines``; a last line that is empty is one only if it is ended."""
    ended = ended or lines[-1:] == [""]
    return "\n".join(lines) + ("\n" if ended and lines else "")


def _content(wanted: Mapping[str, Any]) -> list[str]:
    content = wanted.get("content")
    if content is not None and not isinstance(content, str):
        raise _Refused("content must be text")
    return _lines(_text(content or ""))


def _text(text: str) -> str:
    """Make marks of what no file could hold: halves of characters."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _is_plain(path: PurePosixPath) -> bool:
    text = str(path)
    return (
        text.isprintable()
        and ".." not in path.parts
        and ".git" not in map(str.lower, path.parts)
        and len(text.encode()) <= _LONGEST_PATH
        and all(len(part.encode()) <= _LONGEST_NAME for part in path.parts)
    )


def _line(wanted: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Read a number, also where a model wrote it as text or as 3.0."""
    found = wanted.get(name)
    if found is None and default is not None:
        return default
    if isinstance(found, float) and found.is_integer():
        return int(found)
    if isinstance(found, str) and found.strip().isdecimal() and len(found) < _DIGITS:
        return int(found)
    if isinstance(found, int) and not isinstance(found, bool):
        return found
    raise _Refused(f"{name} must be a number")
