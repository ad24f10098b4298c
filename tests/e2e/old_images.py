"""Images that tests make up, so that those of this host stay."""

from orchestrator.domain.image import OldImage
from orchestrator.ports import OldImages


class Images(OldImages):
    """Old images that a test made up, so that those of this host stay."""

    def __init__(self, *found: OldImage) -> None:
        self.found = list(found)

    def all(self) -> tuple[OldImage, ...]:
        return tuple(self.found)

    def remove(self, image: OldImage) -> None:
        self.found.remove(image)

    def close(self) -> None:
        """Nothing is open."""
