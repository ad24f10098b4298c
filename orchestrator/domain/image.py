"""How an image is named in a task, and which image that is."""

_OURS = "orch/{name}:1"


def image_reference(name: str) -> str:
    """Return the engine's reference for an image named in a task or on the command line.

    A bare name (``cpu-numpy``) is one of the images made from ``containers/``; whatever holds a
    ``/``, ``:`` or ``@`` is a reference already and is taken as it is.
    """
    if any(mark in name for mark in "/:@"):
        return name
    return _OURS.format(name=name)
