"""How an image is named in a task, and which image that is."""

from dataclasses import dataclass

RECIPE_LABEL = "orch.recipe"
"""On every image that ``orch images build`` makes: the digest of all that went into it."""
ROOTFS_LABEL = "orch.rootfs"
"""On one that builds on no other of them: where its files came from."""
BUILD_LABEL = "orch.build"
"""In a recipe: ``by-name`` where ``orch images build`` makes the image only if it is named."""

_OURS = "orch/{name}:1"


def image_reference(name: str) -> str:
    """Return the engine's reference for an image named in a task or on the command line.

    A bare name (``cpu-numpy``) is one of the images made from ``containers/``; whatever holds a
    ``/``, ``:`` or ``@`` is a reference already and is taken as it is.
    """
    if any(mark in name for mark in "/:@"):
        return name
    return _OURS.format(name=name)


@dataclass(frozen=True, slots=True)
class OldImage:
    """An image of ours without a name.

    ``size`` in bytes of all its layers, those that others share as well; ``created`` in seconds
    since 1970. ``used_by`` names a container that was made of it, ended ones too; empty for none.
    """

    id: str
    size: int
    created: float
    used_by: str = ""
