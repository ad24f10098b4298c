"""Which published folders are checkpoints, in which order they are judged, and how many count.

Protocol: progress is ``[0-9]{1,12}`` in ASCII and is ordered as a number; equal
progress is ordered by the bytes of the name. Links are never checkpoints. Judged from the greatest
down, at most ``MAX_EXAMINED``, until three are valid.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

MAX_EXAMINED = 16
_NAME = re.compile(rb"checkpoint-([0-9]{1,12})")


class EntryKind(StrEnum):
    """What lies at a name in ``/out/checkpoints``, seen without following links."""

    FOLDER = "folder"
    LINK = "link"
    OTHER = "other"


class ArtifactStatus(StrEnum):
    """How a published checkpoint was judged."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    IGNORED = "ignored"


@dataclass(frozen=True, slots=True)
class Published:
    """One entry of ``/out/checkpoints`` as it was found; ``changed_ns`` is its newest ctime."""

    name: bytes
    kind: EntryKind
    changed_ns: int


@dataclass(frozen=True, slots=True)
class Numbered:
    """A checkpoint with its progress."""

    progress: int
    name: bytes


@dataclass(frozen=True, slots=True)
class Passed:
    """An entry that will not be judged, and why."""

    name: bytes
    reason: str


def select(
    entries: Iterable[Published], *, deadline_ns: int | None = None
) -> tuple[tuple[Numbered, ...], tuple[Passed, ...]]:
    """Split entries into checkpoints, greatest progress first, and entries passed over.

    Args:
        entries: what was found, in any order.
        deadline_ns: wall-clock nanoseconds; what changed later is passed over.
    """
    numbered: list[Numbered] = []
    passed: list[Passed] = []
    for entry in entries:
        match = _NAME.fullmatch(entry.name)
        if match is None:
            passed.append(Passed(entry.name, "not_a_checkpoint_name"))
        elif entry.kind is EntryKind.LINK:
            passed.append(Passed(entry.name, "symlink"))
        elif entry.kind is EntryKind.OTHER:
            passed.append(Passed(entry.name, "not_a_folder"))
        elif deadline_ns is not None and entry.changed_ns > deadline_ns:
            passed.append(Passed(entry.name, "changed_after_deadline"))
        else:
            numbered.append(Numbered(int(match.group(1)), entry.name))
    numbered.sort(key=lambda found: (-found.progress, found.name))
    passed.sort(key=lambda found: found.name)
    return tuple(numbered), tuple(passed)
