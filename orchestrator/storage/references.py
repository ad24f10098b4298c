"""Write reference points into a ``task.yaml``; every other byte of it stays."""

import shlex
import stat
from collections.abc import Iterable, Mapping
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, SequenceNode

from orchestrator.domain.task import ReferencePoint
from orchestrator.errors import TaskPackError
from orchestrator.storage.durable import write_file
from orchestrator.storage.located_yaml import Document, parse
from orchestrator.storage.pack import Pack, task_digest

_KEY = "reference"
_WIDTH = 96


def with_references(pack: Pack, points: Iterable[ReferencePoint]) -> str:
    """Return the pack's ``task.yaml`` with points in ``reference``, each in place of its namesake.

    Raises:
        TaskPackError: the file is not one that can be edited so.
    """
    document, expected = pack.document, dict(pack.document.data)
    for point in points:
        data = point.model_dump(exclude_defaults=True)
        there = [dict(item) for item in expected.get(_KEY) or ()]
        at = next((i for i, item in enumerate(there) if item["name"] == point.name), len(there))
        expected[_KEY] = [*there[:at], data, *there[at + 1 :]]
        found, _ = parse(_with(document, at, data))
        if found is None or found.data != expected:
            raise TaskPackError(f"{pack.source}: no reference can be written into this file")
        document = found
    return document.text


def write_references(pack: Pack, points: Iterable[ReferencePoint]) -> None:
    """Write points into the pack, of whose digest they were measured.

    Raises:
        TaskPackError: it was changed meanwhile, or is not one that can be edited.
        StorageFullError: no space; the file is as it was.
    """
    text = with_references(pack, points)
    if task_digest(pack.source) != pack.digest:
        raise TaskPackError(
            f"{pack.folder} was changed while it was measured; nothing was written",
            remedy=f"measure it again: orch task baseline {shlex.quote(str(pack.argument))}",
        )
    mode = stat.S_IMODE(pack.source.stat().st_mode)
    write_file(pack.source, text.encode(), replace=True, mode=mode)


def _with(document: Document, at: int, data: Mapping[str, Any]) -> str:
    """Return the text with ``data`` as item ``at`` of the list, which may be its next one."""
    text, node = document.text, document.nodes.get((_KEY,))
    if isinstance(node, SequenceNode) and node.value:
        near = node.value[min(at, len(node.value) - 1)]
        start, end = near.start_mark, _end(near, text)
        if at < len(node.value):
            item = _in_brackets(data) if node.flow_style else _item(data, start.column)
            return text[: start.index] + item + text[end:]
        if node.flow_style:
            return f"{text[:end]}, {_in_brackets(data)}{text[end:]}"
        dash, end = node.start_mark.column, _line_end(text, end)
        return f"{text[:end]}\n{' ' * dash}- {_item(data, dash + 2)}{text[end:]}"
    first = f"\n  - {_item(data, 4)}"
    if node is not None:  # an empty list
        return text[: node.start_mark.index] + first + text[node.end_mark.index :]
    return f"{text.rstrip()}\n\n{_KEY}:{first}\n"


def _item(data: Mapping[str, Any], column: int) -> str:
    """Write one point on lines of its own, the first of which begins at ``column``."""
    return _dump(data, flow=None).replace("\n", "\n" + " " * column)


def _in_brackets(data: Mapping[str, Any]) -> str:
    """Write one point for a list in brackets."""
    return _dump(data, flow=True).replace("\n", "\n    ")


def _dump(data: Mapping[str, Any], *, flow: bool | None) -> str:
    return yaml.safe_dump(
        dict(data), default_flow_style=flow, sort_keys=False, width=_WIDTH, allow_unicode=True
    ).strip()


def _end(node: Node, text: str) -> int:
    """Where a value really ends: a block's own mark lies behind the comments that follow it."""
    if isinstance(node, MappingNode) and not node.flow_style and node.value:
        return _end(node.value[-1][1], text)
    if isinstance(node, SequenceNode) and not node.flow_style and node.value:
        return _end(node.value[-1], text)
    return len(text[: node.end_mark.index].rstrip())


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end
