"""Load a task pack: read ``task.yaml`` strictly, check it against its folder, and identify it.

Every fault is found in one pass and carries its file and line.
"""

import difflib
import hashlib
import os
import re
import shlex
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from typing_extensions import override

from orchestrator.config import bundled
from orchestrator.domain.container import Mount
from orchestrator.domain.task import TaskSpec
from orchestrator.errors import TaskPackError, UsageError
from orchestrator.storage.located_yaml import Document, Loc, read
from orchestrator.storage.pack_rules import FOLDER_RULES, files_of, shown_with

_TASK_FILE = "task.yaml"
_SAYS_SCHEMA = re.compile(rb"^schema: orch\.task/", re.MULTILINE)
_MAPPING = re.compile(r"a valid dictionary( or instance of \w+)?")
_HEX = re.compile(r"String should match pattern '\^\[0-9a-f\]\{(\d+)\}\$'")
"""How pydantic words what a writer of YAML calls otherwise."""
_MESSAGES = {"extra_forbidden": "unknown key", "missing": "missing key"}


class Severity(StrEnum):
    """An error refuses the pack; a warning refuses it only where a rule says so."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One thing wrong with a pack. ``where`` is the path of keys to the value."""

    file: str
    line: int
    where: str
    message: str
    severity: Severity = Severity.ERROR

    @override
    def __str__(self) -> str:
        where = f"{self.where}: " if self.where else ""
        mark = "warning: " if self.severity is Severity.WARNING else ""
        return f"{self.file}:{self.line}: {mark}{where}{self.message}"


@dataclass(frozen=True)
class Pack:
    """A valid task pack.

    Attributes:
        spec: what ``task.yaml`` says.
        folder: the pack's folder, absolute.
        source: the file that was read, absolute.
        digest: ``pack:v1:sha256:...`` over every file of the folder, the locks included, but for
            task files other than ``source``.
        document: the file with its lines.
        pristine: where a shipped solution was put that an image brings; see ``with_workspace``.
    """

    spec: TaskSpec
    folder: Path
    source: Path
    digest: str
    document: Document = field(compare=False, repr=False)
    pristine: Path | None = None

    @property
    def solution(self) -> Path:
        """The shipped solution, from which ``/workspace`` is filled.

        Raises:
            ValueError: it is in an image and was not taken out yet.
        """
        if self.pristine is not None:
            return self.pristine
        if self.spec.workspace.in_image:
            raise ValueError(f"the workspace of {self.source} is still in its image")
        return self.folder / self.spec.workspace.source

    @property
    def argument(self) -> Path:
        """What a command takes for this pack: its folder, or the one of its task files."""
        return self.folder if self.source.name == _TASK_FILE else self.source

    @property
    def exclude(self) -> tuple[str, ...]:
        """Patterns of what never crosses between the solution, a workspace and a replay."""
        return self.spec.workspace.exclude

    def script_mount(self, command: str, target: str) -> Mount:
        """Bind a script of the pack so that it lies in ``target``, with its folder's other files.

        A script at the top of the pack comes alone, for its folder is the whole pack.
        """
        shown = shown_with(self.folder, command)
        inside = target if shown.is_dir() else f"{target}/{shown.name}"
        return Mount(shown, inside)

    def fault(self, *loc: str | int, message: str, severity: Severity = Severity.ERROR) -> Fault:
        """Make a fault that points to a place in ``task.yaml``."""
        return _fault(self.source.name, self.document, loc, message, severity)


def load_pack(path: Path) -> Pack:
    """Load a pack from its ``task.yaml``, its folder, or the name of a bundled task.

    Raises:
        UsageError: there is no such task.
        TaskPackError: the pack is faulty; the message has one fault a line.
    """
    pack, faults = examine(path)
    if pack is None or faults:
        raise TaskPackError(
            "\n".join(map(str, faults)),
            remedy=f"mend these lines, then: orch task check {shlex.quote(str(path))}",
        )
    return pack


def examine(path: Path) -> tuple[Pack | None, tuple[Fault, ...]]:
    """Read a pack and collect its faults; there is none of it where its text has no meaning.

    Raises:
        UsageError: there is no such task, or it cannot be read.
    """
    source = find_pack(path)
    try:
        return _examine(source)
    except OSError as error:
        raise UsageError(f"{error.filename or source}: {error.strerror}") from error


def _examine(source: Path) -> tuple[Pack | None, tuple[Fault, ...]]:
    document, spec, faults = _read_spec(source)
    pack = None
    if spec is not None and document is not None:
        pack = Pack(spec, source.parent, source, task_digest(source), document)
        faults += [
            pack.fault(*loc, message=message)
            for rule in FOLDER_RULES
            for loc, message in rule(source.parent, spec)
        ]
    return pack, tuple(sorted(set(faults)))


def find_pack(path: Path) -> Path:
    """Return the task file that ``path`` means: a ``task.yaml``, or another file by its name.

    Raises:
        UsageError: there is none.
    """
    candidates = [path / _TASK_FILE, path]
    if not path.is_absolute() and ".." not in path.parts:
        candidates += [bundled("tasks") / path / _TASK_FILE, bundled("tasks") / path]
    for candidate in candidates:
        if candidate.is_file():
            return candidate.resolve()
    if path.is_dir():
        raise UsageError(f"{path} has no {_TASK_FILE}", remedy="orch task new NAME makes a pack")
    known = [bundled_name(found) for found in bundled_packs()]
    near = difflib.get_close_matches(str(path), known, n=3)
    remedy = f"did you mean {' or '.join(near)}?" if near else "orch task lists the bundled ones"
    raise UsageError(f"no task at {path}", remedy=remedy)


def bundled_packs() -> tuple[Path, ...]:
    """List the task files that come with the package; of several in a pack, the main one first."""
    packs = (path for path in bundled("tasks").iterdir() if path.is_dir())
    found = (path for pack in packs for path in _task_files(pack))
    return tuple(sorted(found, key=bundled_name))


def bundled_name(source: Path) -> str:
    """Name a bundled task as a command takes it."""
    folder = source.parent.name
    return folder if source.name == _TASK_FILE else f"{folder}/{source.name}"


def task_digest(source: Path) -> str:
    """Identify a task by its pack without the other task files: their locks are not its own."""
    return pack_digest(source.parent, without=frozenset(_task_files(source.parent)) - {source})


def _task_files(folder: Path) -> list[Path]:
    found = (path for path in folder.glob("*.yaml") if path.is_file())
    return sorted(path for path in found if _SAYS_SCHEMA.search(path.read_bytes()))


def pack_digest(folder: Path, without: frozenset[Path] = frozenset()) -> str:
    """Identify a pack by every name, kind, executable bit and byte in its folder.

    Compiled Python, ``.git`` and the files ``without`` do not count.
    """
    digest = hashlib.sha256()
    for path in files_of(folder):
        if path in without:
            continue
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            kind, content = b"l", os.fsencode(path.readlink())
        elif stat.S_ISREG(mode):
            kind, content = (b"x" if mode & stat.S_IXUSR else b"f"), path.read_bytes()
        else:
            kind, content = b"s", b""  # refused by a rule of its own
        name = os.fsencode(path.relative_to(folder))
        digest.update(b"%s %d:%s %s\n" % (kind, len(name), name, _sha256(content)))
    return f"pack:v1:sha256:{digest.hexdigest()}"


def _sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _read_spec(source: Path) -> tuple[Document | None, TaskSpec | None, list[Fault]]:
    """Read and validate the file; every fault of text and of content together."""
    document, text_faults = read(source)
    faults = [
        Fault(source.name, fault.line, _dotted(fault.loc), fault.message) for fault in text_faults
    ]
    if document is None:
        return None, None, faults
    try:
        spec = TaskSpec.model_validate(document.data)
    except ValidationError as error:
        # What could not be read is missing from the data: no second fault for the same place.
        told = {(fault.line, fault.where) for fault in faults}
        found = _model_faults(source.name, document, error)
        faults += [fault for fault in found if (fault.line, fault.where) not in told]
        return document, None, faults
    return document, spec, faults


def _model_faults(file: str, document: Document, error: ValidationError) -> Iterator[Fault]:
    """Map pydantic's errors to lines; of a union's errors those that looked deepest count."""
    messages: dict[Loc, list[str]] = {}
    refused_branches: set[Loc] = set()
    for item in error.errors(include_url=False):
        loc = _place(document, item["loc"])
        message = _MESSAGES.get(item["type"]) or _plain(item["msg"])
        if item["type"] == "missing":
            loc = (*loc, str(item["loc"][-1]))
        elif item["type"] == "extra_forbidden":
            message += _suggestion(item["loc"])
        elif len(loc) < len(item["loc"]):
            refused_branches.add(loc)
        if message not in messages.setdefault(loc, []):
            messages[loc].append(message)
    for loc, found in messages.items():
        deeper = any(other[: len(loc)] == loc and other != loc for other in messages)
        if not (loc in refused_branches and deeper):
            yield _fault(file, document, loc, " or ".join(found), Severity.ERROR)


def _plain(message: str) -> str:
    text = message.removeprefix("Value error, ").replace("Input should be", "must be")
    text = _MAPPING.sub("a mapping of keys", text).replace("a valid tuple", "a list")
    text = _HEX.sub(r"must be \1 hex digits in lower case", text)
    return text[:1].lower() + text[1:]


def _place(document: Document, loc: tuple[int | str, ...]) -> Loc:
    """Follow pydantic's location through the file, leaving out its names of union branches."""
    place: Loc = ()
    for part in loc:
        if (*place, part) in document.nodes:
            place = (*place, part)
    return place


def _suggestion(loc: tuple[int | str, ...]) -> str:
    """Say which key of that mapping is nearest to the unknown one."""
    schema = TaskSpec.model_json_schema()
    here = [schema]
    for part in loc[:-1]:
        below = [child for node in _branches(schema, here) for child in _children(node, part)]
        here = below or here
    known = {key for node in _branches(schema, here) for key in node.get("properties", {})}
    close = difflib.get_close_matches(str(loc[-1]), known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _branches(schema: Mapping[str, Any], nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    flat: list[dict[str, Any]] = []
    rest = list(nodes)
    while rest:
        node = rest.pop()
        if "$ref" in node:
            rest.append(schema["$defs"][node["$ref"].rpartition("/")[2]])
        rest += node.get("anyOf", []) + node.get("oneOf", [])
        flat.append(node)
    return flat


def _children(node: Mapping[str, Any], part: int | str) -> list[dict[str, Any]]:
    found = [
        node.get("properties", {}).get(part),
        node.get("additionalProperties"),
        node.get("items") if isinstance(part, int) else None,
    ]
    return [child for child in found if isinstance(child, dict)]


def _fault(file: str, document: Document, loc: Loc, message: str, severity: Severity) -> Fault:
    return Fault(file, document.line(*loc), _dotted(loc), message, severity)


def _dotted(loc: Loc) -> str:
    return ".".join(str(part) for part in loc)
