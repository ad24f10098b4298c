"""Read a patch as git writes it, strictly, before git is let near it.

The grammar is that of ``git diff`` (gitformat, "Generating patch text with -p"), with the plain
``---``/``+++`` form of ``diff -u``. Whatever belongs to no file, is cut short, or names what a tree
of ours cannot hold is a fault: a patch is applied as a whole or refused as a whole, so nothing in
it may be skipped.
"""

import base64
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from orchestrator.evidence.tree import encode_path, is_dotgit
from orchestrator.evidence.walk import NAME_LIMIT, PATH_LIMIT

_MODES = frozenset({b"100644", b"100755", b"120000"})
_HEADER = re.compile(
    rb"(old mode|new mode|deleted file mode|new file mode|rename from|rename to|copy from|copy to|"
    rb"similarity index|dissimilarity index|index) (.*)",
    re.DOTALL,
)
_MODE_LINES = frozenset({b"old mode", b"new mode", b"deleted file mode", b"new file mode"})
_NAME_LINES = frozenset({b"rename from", b"rename to", b"copy from", b"copy to"})
_COPYING = frozenset({b"rename from", b"copy from"})
_CREATING = frozenset({b"new file mode", b"rename to", b"copy to"})
_INDEX = re.compile(rb"[0-9a-f]+\.\.[0-9a-f]+(?: ([0-7]{6}))?")
_HUNK = re.compile(rb"@@ -[0-9]+(?:,([0-9]{1,12}))? \+[0-9]+(?:,([0-9]{1,12}))? @@.*", re.DOTALL)
_BINARY = re.compile(rb"(literal|delta) ([0-9]{1,12})")
_BASE85 = re.compile(rb"[A-Za-z][0-9A-Za-z!#$%&()*+\-;<=>?@^_`{|}~]+")
_ESCAPE = re.compile(rb"\\([abtnvfr\"\\]|[0-3][0-7]{2})")
_ESCAPED = dict(zip(b'abtnvfr"\\', b'\a\b\t\n\v\f\r"\\', strict=True))
_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_CONTEXT = frozenset({b" ", b""})
"""An empty line is an empty line of context that lost its blank on the way; git takes it so too."""

_DELTA_HEADER = 24


@dataclass(slots=True)
class Section:
    """What a patch does to one file.

    ``added`` holds the content of its ``+`` lines, one or more in each piece; ``binary_size`` the
    deflated and ``binary_result`` the expanded bytes of a binary change. ``copied`` is the file
    that its content comes from, where that is another.
    """

    line: int
    paths: set[bytes] = field(default_factory=set)
    creates: bool = False
    copied: bytes | None = None
    added: list[bytes] = field(default_factory=list)
    binary_size: int = 0
    binary_result: int = 0


class PatchFault(Exception):  # noqa: N818 - it says what is wrong with a patch, not with us
    """A patch cannot be used; the text says why, with the line."""


def parse(data: bytes) -> tuple[Section, ...]:
    """Read a patch; no bytes are a patch that changes nothing.

    Raises:
        PatchFault: it is not a whole and harmless patch.
    """
    if not data:
        return ()
    if not data.endswith(b"\n"):
        raise PatchFault("its last line has no newline: the patch was cut short or stripped")
    return tuple(_Parser(data.split(b"\n")[:-1]).sections())


class _Parser:
    """Goes over the lines once; ``_at`` is the next line to read."""

    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines
        self._at = 0

    def sections(self) -> Iterator[Section]:
        while self._at < len(self._lines):
            line = self._peek()
            if line.startswith(b"diff --git "):
                section = self._git_section()
            elif line.startswith(b"--- "):
                section = Section(self._at + 1)
                self._names_and_hunks(section)
            else:
                raise self._fault("belongs to no file")
            if not section.paths:
                raise PatchFault(f"line {section.line}: no file is named")
            yield section

    def _git_section(self) -> Section:
        section = Section(self._at + 1)
        self._no_return()
        for path in _git_names(self._next()[len(b"diff --git ") :]):
            self._name(section, path)
        while self._header_line(section):
            pass
        line = self._peek()
        if line.startswith(b"--- "):
            self._names_and_hunks(section)
        elif line == b"GIT binary patch":
            self._next()
            self._binary(section)
        elif line.startswith(b"Binary files "):
            raise self._fault("a binary file without its content (git diff --binary gives it)")
        return section

    def _header_line(self, section: Section) -> bool:
        """Take one extended header line; tell whether there was one."""
        match = _HEADER.fullmatch(self._peek())
        if match is None:
            return False
        key, value = match.groups()
        if key in _MODE_LINES:
            self._mode(value)
        elif key in _NAME_LINES:
            self._name(section, path := _unquoted(value))
            section.copied = path if key in _COPYING else section.copied
        elif key == b"index":
            index = _INDEX.fullmatch(value)
            if index is None:
                raise self._fault("not an index line")
            if index.group(1):
                self._mode(index.group(1))
        section.creates |= key in _CREATING
        self._next()
        return True

    def _names_and_hunks(self, section: Section) -> None:
        for mark in (b"--- ", b"+++ "):
            line = self._peek()
            if not line.startswith(mark):
                raise self._fault(f"{mark.decode()}is missing")
            self._no_return()
            name = line[len(mark) :]
            name = _unquoted(name) if name.startswith(b'"') else name.split(b"\t")[0]
            if name == b"/dev/null":
                section.creates |= mark == b"--- "
            else:
                self._name(section, _stripped(name))
            self._next()
        if not self._peek().startswith(b"@@ "):
            raise self._fault("a hunk is missing")
        while self._peek().startswith(b"@@ "):
            self._hunk(section)

    def _hunk(self, section: Section) -> None:
        match = _HUNK.fullmatch(self._peek())
        if match is None:
            raise self._fault("not a hunk header")
        old, new = (1 if count is None else int(count) for count in match.groups())
        self._next()
        if old == 0:
            section.added.append(self._added(new))
        else:
            self._mixed(section, old, new)
        if self._peek().startswith(b"\\ "):
            self._next()

    def _added(self, count: int) -> bytes:
        """Take ``count`` lines that all add; most of a large patch is that, so no loop."""
        block = self._lines[self._at : self._at + count]
        text = b"\n" + b"\n".join(block)
        if len(block) < count:
            raise PatchFault("it ends in the middle of a hunk: the patch was cut short")
        if text.count(b"\n+") < count:
            raise self._fault("not all lines of the hunk are what its header says")
        self._at += count
        return text.replace(b"\n+", b"\n")[1:]

    def _mixed(self, section: Section, old: int, new: int) -> None:
        lines, at, added = self._lines, self._at, section.added
        while old > 0 or new > 0:
            if at == len(lines):
                raise PatchFault("it ends in the middle of a hunk: the patch was cut short")
            line = lines[at]
            at += 1
            kind = line[:1]
            if kind == b"+":
                added.append(line[1:])
                new -= 1
            elif kind == b"-":
                old -= 1
            elif kind in _CONTEXT:
                old -= 1
                new -= 1
            elif kind != b"\\":
                raise PatchFault(f"line {at}: not a line of the hunk it stands in")
        if old < 0 or new < 0:
            raise PatchFault(f"line {at}: the hunk holds more lines than its header says")
        self._at = at

    def _binary(self, section: Section) -> None:
        section.binary_size, section.binary_result = self._binary_hunk()
        if _BINARY.fullmatch(self._peek()):
            self._binary_hunk()

    def _binary_hunk(self) -> tuple[int, int]:
        """Return deflated and expanded size of what one binary hunk makes."""
        match = _BINARY.fullmatch(self._peek())
        if match is None:
            raise self._fault("a binary hunk is missing")
        self._next()
        deflated = 0
        rows: list[bytes] = []
        while line := self._next():
            count = _base85_count(line)
            if count is None:
                raise self._fault("not base85", back=1)
            deflated += count
            rows.append(line)
        if match.group(1) == b"literal":
            return deflated, int(match.group(2))
        result = _delta_result(rows)
        if result is None:
            raise self._fault("not a binary delta", back=1)
        return deflated, max(result, int(match.group(2)))

    def _mode(self, mode: bytes) -> None:
        if mode not in _MODES:
            raise self._fault(f"mode {mode[:20]!r} is none of 100644, 100755, 120000")

    def _no_return(self) -> None:
        if self._peek().endswith(b"\r"):  # git quotes one that belongs to a name
            raise self._fault("ends in a carriage return: the patch went through a text filter")

    def _name(self, section: Section, path: bytes) -> None:
        if path in section.paths:
            return
        if fault := path_fault(path):
            raise self._fault(fault)
        section.paths.add(path)

    def _peek(self) -> bytes:
        return self._lines[self._at] if self._at < len(self._lines) else b""

    def _next(self) -> bytes:
        if self._at >= len(self._lines):
            raise PatchFault("it ends in the middle of a change: the patch was cut short")
        self._at += 1
        return self._lines[self._at - 1]

    def _fault(self, text: str, *, back: int = 0) -> PatchFault:
        return PatchFault(f"line {self._at + 1 - back}: {text}")


def path_fault(path: bytes) -> str | None:
    """Say why no file of this path may be written, or None."""
    parts = path.split(b"/")
    if path.startswith(b"/"):
        return f"absolute path {_shown(path)}"
    if b".." in parts:
        return f"path {_shown(path)} leaves the tree"
    if b"" in parts or b"." in parts or b"\0" in path or len(path) > PATH_LIMIT:
        return f"{_shown(path)} is not the path of a file"
    if max(map(len, parts)) > NAME_LIMIT:
        return f"{_shown(path)} has a name of more than {NAME_LIMIT} bytes"
    if any(map(is_dotgit, parts)):
        return f"path {_shown(path)} lies in a repository's own folder"
    return None


def _shown(path: bytes) -> str:
    return encode_path(path[:100])


def _stripped(name: bytes) -> bytes:
    """Drop the first part (``a/``), as ``git apply -p1`` does."""
    return name.partition(b"/")[2] if not name.startswith(b"/") else name


def _git_names(text: bytes) -> Iterator[bytes]:
    """Find the two names of a ``diff --git`` line; nothing where blanks leave it open."""
    first, second = b"", b""
    if match := _QUOTED.match(text):
        first, second = match.group(), text[match.end() + 1 :]
    elif text.endswith(b'"') and b' "' in text:
        first, _, second = text.partition(b' "')
        second = b'"' + second
    else:
        middle = len(text) // 2
        first, second = text[:middle], text[middle + 1 :]
        if text[middle : middle + 1] != b" " or _stripped(first) != _stripped(second):
            return
    yield _stripped(_unquoted(first))
    yield _stripped(_unquoted(second))


def _unquoted(name: bytes) -> bytes:
    match = _QUOTED.fullmatch(name)
    return _ESCAPE.sub(_unescaped, match.group(1)) if match else name


def _unescaped(match: re.Match[bytes]) -> bytes:
    code = match.group(1)
    return bytes([int(code, 8) if len(code) > 1 else _ESCAPED[code[0]]])


def _base85_count(line: bytes) -> int | None:
    """Return how many bytes a base85 line holds, or None if it is damaged."""
    if not _BASE85.fullmatch(line):
        return None
    letter = line[0]
    count = letter - ord("A") + 1 if letter <= ord("Z") else letter - ord("a") + 27
    return count if len(line) - 1 == (count + 3) // 4 * 5 else None


def _delta_result(rows: list[bytes]) -> int | None:
    """Read the result's size from the head of a git delta: source size, then result size."""
    inflate = zlib.decompressobj()
    head = b""
    try:
        for row in rows:
            data = base64.b85decode(row[1:])[: _base85_count(row)]
            head += inflate.decompress(data, _DELTA_HEADER)
            if len(head) >= _DELTA_HEADER or inflate.eof:
                break
    except (ValueError, zlib.error):
        return None
    sizes: list[int] = []
    value = shift = 0
    for byte in head:
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            sizes.append(value)
            value = shift = 0
    return sizes[1] if len(sizes) > 1 else None
