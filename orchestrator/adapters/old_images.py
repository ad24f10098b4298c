"""Images that our builder made and that a newer build has replaced: they have no name any more.

A label is inherited by whatever somebody builds on our images; the steps of a build are not. The
last steps of ours set our labels, one each.
"""

import re
from itertools import takewhile

from typing_extensions import override

from orchestrator.adapters.docker_api import DockerApi
from orchestrator.domain.image import RECIPE_LABEL, ROOTFS_LABEL, OldImage
from orchestrator.errors import ContainerLostError
from orchestrator.ports import OldImages

_OURS = re.compile(rf"\bLABEL ({re.escape(RECIPE_LABEL)}|{re.escape(ROOTFS_LABEL)})=")


class ReplacedImages(OldImages):
    """The nameless images of the engine at ``address`` that carry our builder's label."""

    def __init__(self, address: str | None) -> None:
        self._api = DockerApi(address)

    @override
    def all(self) -> tuple[OldImage, ...]:
        filters = {"dangling": ["true"], "label": [RECIPE_LABEL]}
        found = self._api.call("GET", "/images/json", query={"filters": filters})
        made = self._api.call("GET", "/containers/json", query={"all": "1"}) if found else ()
        users = {container["ImageID"]: container["Names"][0].lstrip("/") for container in made}
        return tuple(
            OldImage(it["Id"], it["Size"], float(it["Created"]), users.get(it["Id"], ""))
            for it in found
            if self._is_ours(it["Id"], it["Labels"][RECIPE_LABEL])
        )

    def _is_ours(self, image_id: str, recipe: str) -> bool:
        try:
            steps = self._api.call("GET", f"/images/{image_id}/history")
        except ContainerLostError:  # somebody else has removed it meanwhile
            return False
        last = takewhile(_OURS.search, (step["CreatedBy"] for step in steps))
        return any(f"{RECIPE_LABEL}={recipe}" in step for step in last)

    @override
    def remove(self, image: OldImage) -> None:
        # Without force: what a container or another image builds on, the engine keeps.
        self._api.call("DELETE", f"/images/{image.id}")

    @override
    def close(self) -> None:
        self._api.close()
