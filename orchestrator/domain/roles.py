"""Which phase may see which data: the one table the whole product's promise rests on."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class Phase(StrEnum):
    """A kind of container that works on a run."""

    EXPLORE = "explore"
    REPLAY = "replay"
    VALIDATE = "validate"
    SCORE = "score"


class DataRole(StrEnum):
    """What an asset is for."""

    ANCHOR = "anchor"
    TRAIN = "train"
    PROXY = "proxy"
    REFERENCE = "reference"
    FINAL = "final"


VISIBLE_ROLES: Mapping[Phase, frozenset[DataRole]] = MappingProxyType(
    {
        Phase.EXPLORE: frozenset({DataRole.ANCHOR, DataRole.TRAIN, DataRole.PROXY}),
        Phase.REPLAY: frozenset({DataRole.ANCHOR, DataRole.TRAIN}),
        Phase.VALIDATE: frozenset({DataRole.ANCHOR}),
        Phase.SCORE: frozenset({DataRole.REFERENCE, DataRole.FINAL}),
    }
)

WIDENABLE: Mapping[Phase, frozenset[DataRole]] = MappingProxyType(
    {
        Phase.SCORE: frozenset({DataRole.ANCHOR, DataRole.TRAIN}),
        Phase.VALIDATE: frozenset({DataRole.TRAIN}),
    }
)
"""What a task's ``also:`` may add to a phase, nothing that a candidate does not see anyway."""


def is_visible(role: DataRole, phase: Phase, also: frozenset[Phase] = frozenset()) -> bool:
    """Tell whether an asset of ``role`` is mounted in ``phase``.

    ``also`` is the asset's own widening; it counts only where ``WIDENABLE`` allows it.
    """
    if role in VISIBLE_ROLES[phase]:
        return True
    return phase in also and role in WIDENABLE.get(phase, frozenset())
