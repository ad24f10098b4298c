"""What a container was given of GPUs, by every way there is to give them."""

from typing import Any

import pytest

from orchestrator.adapters.docker_gpus import device_claim

GPU = [["gpu"]]


def inspected(**host: Any) -> dict[str, Any]:
    config = {"Labels": {"a": "b"}, "Env": host.pop("env", None)}
    return {"Id": "c" * 64, "Name": "/name", "HostConfig": host, "Config": config}


def request(**fields: Any) -> dict[str, Any]:
    """A device request; engines say null for whatever was not asked for."""
    asked = {"Driver": "", "Count": 0, "DeviceIDs": None, "Capabilities": GPU, "Options": {}}
    return {"DeviceRequests": [{**asked, **fields}]}


@pytest.mark.parametrize(
    ("host", "every", "devices"),
    [
        pytest.param(request(DeviceIDs=["GPU-1", "MIG-2"]), False, ("GPU-1", "MIG-2"), id="ids"),
        pytest.param(request(DeviceIDs=["0"]), False, ("0",), id="index"),
        pytest.param(request(Count=-1), True, (), id="all"),
        pytest.param(request(Count=1), True, (), id="a number of them"),
        pytest.param(request(Count=-1, Driver="nvidia", Capabilities=None), False, None, id="none"),
        pytest.param(
            request(Count=-1, Driver="nvidia", Capabilities=[["nvidia", "compute"]]),
            True,
            (),
            id="driver",
        ),
        pytest.param(
            request(Driver="cdi", DeviceIDs=["nvidia.com/gpu=GPU-1", "amd.com/gpu=0"]),
            False,
            ("GPU-1",),
            id="CDI",
        ),
        pytest.param(
            request(Driver="cdi", DeviceIDs=["nvidia.com/gpu=all"]), True, (), id="CDI all"
        ),
        pytest.param(
            {"Devices": [{"PathOnHost": "nvidia.com/gpu=0"}]}, False, ("0",), id="CDI device"
        ),
        pytest.param(
            {"Devices": [{"PathOnHost": "/dev/nvidia3"}, {"PathOnHost": "/dev/nvidiactl"}]},
            False,
            ("/dev/nvidia3",),
            id="node",
        ),
        pytest.param({"Devices": [{"PathOnHost": "/dev"}]}, True, (), id="every node"),
        pytest.param(
            {"Runtime": "nvidia", "env": ["NVIDIA_VISIBLE_DEVICES=GPU-1,1"]},
            False,
            ("1", "GPU-1"),
            id="runtime",
        ),
        pytest.param(
            {"Runtime": "nvidia", "env": ["NVIDIA_VISIBLE_DEVICES=all"]}, True, (), id="runtime all"
        ),
    ],
)
def test_every_way_counts(
    host: dict[str, Any], every: bool, devices: tuple[str, ...] | None
) -> None:
    claim = device_claim(inspected(**host))
    if devices is None:
        assert claim is None
        return
    assert claim is not None
    assert (claim.every, claim.devices) == (every, devices)
    assert (claim.container, claim.name, dict(claim.labels)) == ("c" * 64, "name", {"a": "b"})


@pytest.mark.parametrize(
    "host",
    [
        {},
        {"DeviceRequests": None, "Devices": None},
        request(Count=-1, Driver="amd"),
        request(Count=-1, Capabilities=[["tpu"]]),
        request(Driver="cdi", DeviceIDs=["vendor.com/net=0"]),
        {"Devices": [{"PathOnHost": "/dev/fuse"}, {"PathOnHost": "/dev/nvidiactl"}]},
        {"Runtime": "nvidia", "env": ["NVIDIA_VISIBLE_DEVICES=void"]},
        {"Runtime": "nvidia", "env": None},
        {"Runtime": "runc", "env": ["NVIDIA_VISIBLE_DEVICES=all"]},
    ],
)
def test_what_gives_no_gpu_is_none(host: dict[str, Any]) -> None:
    assert device_claim(inspected(**host)) is None
