"""Images that our builder made and that a newer build has replaced: they have no name any more."""

from typing_extensions import override

from orchestrator.adapters.docker_api import DockerApi
from orchestrator.domain.image import RECIPE_LABEL, OldImage
from orchestrator.ports import OldImages


class ReplacedImages(OldImages):
    """The nameless images of the engine at ``address`` that carry our builder's label."""

    def __init__(self, address: str | None) -> None:
        self._api = DockerApi(address)

    @override
    def all(self) -> tuple[OldImage, ...]:
        filters = {"dangling": ["true"], "label": [RECIPE_LABEL]}
        found = self._api.call("GET", "/images/json", query={"filters": filters})
        return tuple(OldImage(it["Id"], it["Size"], float(it["Created"])) for it in found)

    @override
    def remove(self, image: OldImage) -> None:
        # Without force: what a container or another image builds on, the engine keeps.
        self._api.call("DELETE", f"/images/{image.id}")

    @override
    def close(self) -> None:
        self._api.close()
