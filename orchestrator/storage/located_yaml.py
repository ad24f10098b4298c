"""Read YAML strictly, remembering on which line each value stands.

A subset that cannot surprise: one document, text keys, no duplicate key, no alias, no merge, no
tag beyond the standard ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from typing_extensions import override
from yaml.error import Mark
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 32
_BLANK = " \t\r\n"
"""What YAML takes for white space; Python knows more kinds."""

Loc = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class YamlFault:
    """What is wrong with the text itself, and on which line."""

    line: int
    loc: Loc
    message: str


@dataclass(frozen=True)
class Document:
    """A parsed file: its plain data, and the node behind each value by its location."""

    text: str
    data: Any
    nodes: Mapping[Loc, Node]
    key_lines: Mapping[Loc, int]

    def line(self, *loc: str | int) -> int:
        """Return the line (from 1) of ``loc``, or of its nearest enclosing value."""
        for length in range(len(loc), 0, -1):
            if (line := self.key_lines.get(loc[:length])) is not None:
                return line
        return 1


class _Loader(yaml.SafeLoader):
    """SafeLoader without aliases: they let a small text stand for a huge one."""

    @override
    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases are not supported", mark)
        return super().compose_node(parent, index)


class _Walk:
    """Turns nodes into plain data, collecting every fault on the way."""

    def __init__(self, loader: _Loader) -> None:
        self.loader = loader
        self.nodes: dict[Loc, Node] = {}
        self.lines: dict[Loc, int] = {}
        self.faults: list[YamlFault] = []

    def value(self, node: Node, loc: Loc) -> Any:
        self.nodes[loc] = node
        if len(loc) > MAX_DEPTH:
            return self._fault(node, loc, "nested too deeply")
        match node:
            case MappingNode(tag="tag:yaml.org,2002:map"):
                return self._mapping(node, loc)
            case SequenceNode(tag="tag:yaml.org,2002:seq"):
                for index, item in enumerate(node.value):
                    self.lines[(*loc, index)] = _line(item.start_mark)
                return [self.value(item, (*loc, i)) for i, item in enumerate(node.value)]
            case ScalarNode():
                try:
                    return self.loader.construct_object(node)
                except (yaml.YAMLError, ValueError) as error:
                    return self._fault(node, loc, _problem(error))
            case _:
                return self._fault(node, loc, f"tag {node.tag} is not supported")

    def _mapping(self, node: MappingNode, loc: Loc) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode) or key_node.tag != "tag:yaml.org,2002:str":
                self._fault(key_node, loc, "keys must be plain text")
                continue
            key = str(key_node.value)
            if key in data:
                first = self.lines[(*loc, key)]
                message = f"duplicate key (first on line {first})"
                self._fault(key_node, (*loc, key), message)
                continue
            self.lines[(*loc, key)] = _line(key_node.start_mark)
            data[key] = self.value(value_node, (*loc, key))
        return data

    def _fault(self, node: Node, loc: Loc, message: str) -> None:
        self.faults.append(YamlFault(_line(node.start_mark), loc, message))


def read(path: Path) -> tuple[Document | None, tuple[YamlFault, ...]]:
    """Read one YAML file. With a fault in its syntax there is no document.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        return None, (YamlFault(1, (), f"larger than {MAX_BYTES} bytes"),)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        return None, (YamlFault(line, (), "not UTF-8"),)
    return parse(text)


def parse(text: str) -> tuple[Document | None, tuple[YamlFault, ...]]:
    """Parse YAML text; see ``read``."""
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        return None, (YamlFault(line, (), f"character {error.character!r} is not allowed"),)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        return None, (YamlFault(_line(mark) if mark else 1, (), _problem(error)),)
    except RecursionError:
        return None, (YamlFault(1, (), "nested too deeply"),)
    if root is None:
        return None, (YamlFault(1, (), "empty"),)
    walk = _Walk(loader)
    data = walk.value(root, ())
    document = Document(text, data, MappingProxyType(walk.nodes), MappingProxyType(walk.lines))
    return document, tuple(walk.faults)


def set_in_mapping(document: Document, loc: Loc, key: str, value: str) -> str:
    """Return the text with ``key: "value"`` in the mapping at ``loc``; all else stays as it was.

    Raises:
        KeyError: there is no mapping at ``loc``.
    """
    text, quoted = document.text, f'"{value}"'
    present = document.nodes.get((*loc, key))
    if present is not None:
        start, end = present.start_mark.index, present.end_mark.index
        space = " " if start == end else ""  # an empty value stands right behind its colon
        return text[:start] + space + quoted + text[end:]
    mapping = document.nodes[loc]
    if not isinstance(mapping, MappingNode):
        raise KeyError(loc)
    start = mapping.start_mark.index
    if mapping.flow_style:
        rest = text[start + 1 :].lstrip(_BLANK)
        return f"{text[: start + 1]}{key}: {quoted}, {rest}"
    indent = " " * mapping.start_mark.column
    return f"{text[:start]}{key}: {quoted}\n{indent}{text[start:]}"


def _line(mark: Mark) -> int:
    return mark.line + 1


def _problem(error: Exception) -> str:
    if not isinstance(error, yaml.MarkedYAMLError):
        return str(error)
    begun = f" (from line {_line(error.context_mark)})" if error.context_mark else ""
    return " ".join(part for part in (error.problem, error.context) if part) + begun
