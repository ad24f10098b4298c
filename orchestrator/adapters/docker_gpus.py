"""Which GPUs a container was given, read out of the engine's "Inspect a container".

There are four ways: a device request (``docker run --gpus``), a CDI name, a device node, and the
variable that the ``nvidia`` runtime obeys. Whatever cannot be pinned to a device counts as all.
"""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from orchestrator.domain.container import DeviceClaim

_GPU = frozenset({"gpu", "nvidia"})
_CDI = "nvidia.com/gpu="
_NODE = re.compile(r"/dev/nvidia[0-9]+")
_RUNTIME = "nvidia"
_VISIBLE = "NVIDIA_VISIBLE_DEVICES="
_NONE = frozenset({"", "void", "none"})
_ALL = "all"


def device_claim(inspected: Mapping[str, Any]) -> DeviceClaim | None:
    """Return what a container was given of GPUs; None for nothing."""
    named = frozenset(_named(inspected["HostConfig"], inspected["Config"]))
    if not named:
        return None
    return DeviceClaim(
        container=inspected["Id"],
        name=inspected["Name"].removeprefix("/"),
        labels=MappingProxyType(dict(inspected["Config"].get("Labels") or {})),
        every=_ALL in named,
        devices=tuple(sorted(named - {_ALL})),
    )


def _named(host: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[str]:
    for request in host.get("DeviceRequests") or ():
        yield from _requested(request)
    for device in host.get("Devices") or ():
        path = str(device.get("PathOnHost", ""))
        if path.startswith(_CDI):
            yield path.removeprefix(_CDI)
        elif _NODE.fullmatch(path):
            yield path
        elif path in {"/dev", "/dev/"}:
            yield _ALL
    if host.get("Runtime") == _RUNTIME:
        variables = [v for v in config.get("Env") or () if v.startswith(_VISIBLE)]
        value = variables[-1].removeprefix(_VISIBLE) if variables else ""
        if value not in _NONE:
            yield from value.split(",")


def _requested(request: Mapping[str, Any]) -> Iterator[str]:
    """Say what one device request comes to: names, or any number of whatever there is."""
    ids = [str(name) for name in request.get("DeviceIDs") or ()]
    if request.get("Driver") == "cdi":
        yield from (name.removeprefix(_CDI) for name in ids if name.startswith(_CDI))
        return
    wanted = {word for words in request.get("Capabilities") or () for word in words}
    if request.get("Driver") not in {"", None, "nvidia"} or not wanted & _GPU:
        return
    yield from ids or (_ALL,)
