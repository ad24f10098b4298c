"""What every device probe does: NVML's over the stand-in library, and the one in memory."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest

from orchestrator.adapters.in_memory_devices import InMemoryDevices
from orchestrator.adapters.nvml import NvmlProbe
from orchestrator.adapters.system_clock import SystemClock
from orchestrator.domain.device import (
    MIG_QUERIES,
    Device,
    DeviceProcess,
    DeviceUse,
    Need,
    Query,
)
from orchestrator.errors import DeviceLostError, DeviceUnreadableError
from orchestrator.ports import DeviceProbe
from tests.nvml.stand_in import GIB, INSTANCE, Code, Gpu, Process, StandIn

DRIVER = "570.86.15"
BOTH = ("GPU-a", "GPU-b")


class Host(Protocol):
    """A host whose GPUs do what a test says. Facts are fields of ``DeviceSample``."""

    probe: DeviceProbe

    def gpu(self, uuid: str) -> None: ...
    def cut(self, uuid: str, *instances: str) -> None: ...
    def change(self, uuid: str, **facts: Any) -> None: ...
    def hide_power(self, uuid: str) -> None: ...
    def report(self, uuid: str, xid: int) -> None: ...
    def lose(self, uuid: str) -> None: ...
    def remove(self, uuid: str) -> None: ...
    def order(self, *uuids: str) -> None: ...
    def refuse(self) -> None: ...
    def mend(self) -> None: ...


class InMemory:
    def __init__(self) -> None:
        self.probe = self.hands = InMemoryDevices(SystemClock())
        self.change, self.report = self.hands.change, self.hands.report
        self.lose, self.remove = self.hands.lose, self.hands.remove
        self.order, self.mend = self.hands.order, self.hands.mend

    def gpu(self, uuid: str) -> None:
        minor = len(self.hands.devices())
        self.hands.put(Device(uuid, Gpu.name, 80 * GIB, DRIVER, minor=minor))

    def cut(self, uuid: str, *instances: str) -> None:
        (whole,) = (device for device in self.hands.devices() if device.uuid == uuid)
        self.hands.remove(uuid)
        part = replace(whole, model=INSTANCE["name"], memory=10 * GIB, parent=uuid)
        for name in instances:
            self.hands.put(replace(part, uuid=name))

    def hide_power(self, uuid: str) -> None:
        self.hands.change(uuid, power=None, unsupported=frozenset({Query.POWER}))

    def refuse(self) -> None:
        self.hands.refuse("NVML says NoPermission")


class Nvml:
    def __init__(self, folder: Path) -> None:
        self.probe = NvmlProbe(SystemClock())
        self.hands = StandIn(folder)
        self.report, self.lose = self.hands.xid, self.hands.lose
        self.remove, self.order, self.mend = self.hands.remove, self.hands.order, self.hands.heal

    def gpu(self, uuid: str) -> None:
        self.hands.gpu(uuid)

    def cut(self, uuid: str, *instances: str) -> None:
        self.hands.gpu(uuid, mig=True, utilization=None)
        for number, name in enumerate(instances):
            self.hands.instance(name, of=uuid, number=number)

    def change(self, uuid: str, **facts: Any) -> None:
        names = {"memory_used": "used", "pending_remap": "remap_pending", "ecc_errors": "ecc"}
        told = {names.get(name, name): value for name, value in facts.items()}
        if "processes" in told:
            told["processes"] = [Process(p.pid, p.memory, p.use) for p in told["processes"]]
        self.hands.gpu(uuid, **told)

    def hide_power(self, uuid: str) -> None:
        self.hands.gpu(uuid, power=None)

    def refuse(self) -> None:
        self.hands.error("nvmlDeviceGetUtilizationRates", Code.NO_PERMISSION)
        self.hands.error("nvmlDeviceGetCount_v2", Code.NO_PERMISSION)
        self.hands.error("nvmlSystemGetDriverVersion", Code.NO_PERMISSION)


@pytest.fixture(params=["in memory", "nvml"])
def bare(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Host]:
    """A host with a driver (where there is one to have) and no GPU."""
    host: Host
    if request.param == "nvml":
        host = nvml = Nvml(tmp_path)
        nvml.hands.enter(monkeypatch)
    else:
        host = InMemory()
    yield host
    host.probe.close()


@pytest.fixture
def host(bare: Host) -> Host:
    """A host with two idle GPUs."""
    for uuid in BOTH:
        bare.gpu(uuid)
    return bare


def listed(host: Host) -> tuple[str, ...]:
    return tuple(device.uuid for device in host.probe.devices())


def test_a_host_without_a_gpu_lists_none(bare: Host) -> None:
    assert bare.probe.devices() == ()


def test_a_device_is_listed_with_its_model_memory_and_driver(host: Host) -> None:
    first, second = host.probe.devices()
    assert first == Device("GPU-a", Gpu.name, 80 * GIB, DRIVER, minor=0, index=0)
    assert (second.uuid, second.minor, second.index) == ("GPU-b", 1, 1)


def test_the_library_is_named_and_is_never_official(host: Host) -> None:
    found = host.probe.library()
    assert found is not None
    assert found.driver == DRIVER
    assert found.digest.startswith("sha256:")
    assert not found.official


def test_an_idle_device_is_seen_idle(host: Host) -> None:
    clock = SystemClock()
    before = clock.boottime_ns()
    seen = host.probe.sample("GPU-a")
    assert before <= seen.boottime_ns <= clock.boottime_ns()
    assert (seen.uuid, seen.memory_used, seen.memory_total) == ("GPU-a", 0, 80 * GIB)
    assert (seen.utilization, seen.processes, seen.xids) == (0, (), ())
    assert (seen.pending_remap, seen.failed_remap, seen.ecc_errors) == (False, False, 0)
    assert (seen.mig, seen.persistence) == (False, True)
    assert (seen.power, seen.temperature) == (70.0, 31)
    assert seen.unsupported == frozenset()


def test_each_look_sees_what_is_there_now(host: Host) -> None:
    host.probe.sample("GPU-a")
    work = (
        DeviceProcess(101, DeviceUse.COMPUTE, 3 * GIB),
        DeviceProcess(102, DeviceUse.COMPUTE, None),
        DeviceProcess(103, DeviceUse.GRAPHICS, GIB),
        DeviceProcess(104, DeviceUse.MPS, GIB),
    )
    host.change("GPU-a", memory_used=5 * GIB, utilization=97, processes=work)
    seen = host.probe.sample("GPU-a")
    assert (seen.memory_used, seen.utilization) == (5 * GIB, 97)
    assert seen.processes == work
    assert host.probe.sample("GPU-b").processes == ()


def test_memory_that_no_process_holds_is_seen(host: Host) -> None:
    host.change("GPU-a", memory_used=11 * GIB)
    seen = host.probe.sample("GPU-a")
    assert (seen.memory_used, seen.utilization, seen.processes) == (11 * GIB, 0, ())


@pytest.mark.parametrize(
    "fact",
    [{"pending_remap": True}, {"ecc_errors": 2}, {"persistence": False}, {"temperature": 88}],
    ids=str,
)
def test_the_state_of_the_board_is_seen(host: Host, fact: dict[str, Any]) -> None:
    host.change("GPU-a", **fact)
    seen = host.probe.sample("GPU-a")
    assert all(getattr(seen, name) == value for name, value in fact.items())


def test_what_a_device_cannot_tell_is_none_and_named(host: Host) -> None:
    host.hide_power("GPU-a")
    seen = host.probe.sample("GPU-a")
    assert seen.power is None
    assert seen.unsupported == {Query.POWER}


def test_an_error_is_told_once_and_of_its_own_device(host: Host) -> None:
    assert host.probe.sample("GPU-a").xids == ()
    host.report("GPU-a", 31)
    host.report("GPU-a", 48)
    host.report("GPU-a", 31)
    assert host.probe.sample("GPU-b").xids == ()
    assert host.probe.sample("GPU-a").xids == (31, 48)
    assert host.probe.sample("GPU-a").xids == ()


def test_a_lost_device_is_lost_and_the_others_stay(host: Host) -> None:
    host.probe.sample("GPU-a")
    host.lose("GPU-a")
    with pytest.raises(DeviceLostError, match="lost GPU-a"):
        host.probe.sample("GPU-a")
    assert host.probe.sample("GPU-b").utilization == 0
    (left,) = host.probe.devices()
    assert (left.uuid, left.index) == ("GPU-b", 1)


def test_a_host_that_has_lost_every_device_is_unreadable(host: Host) -> None:
    for uuid in BOTH:
        host.lose(uuid)
    with pytest.raises(DeviceUnreadableError, match="GpuIsLost"):
        host.probe.devices()


def test_a_device_that_is_gone_is_lost(host: Host) -> None:
    host.remove("GPU-a")
    with pytest.raises(DeviceLostError, match="GPU-a"):
        host.probe.sample("GPU-a")
    assert listed(host) == ("GPU-b",)


def test_GP_09_a_device_is_its_uuid_whatever_its_number(host: Host) -> None:
    host.change("GPU-b", utilization=50)
    assert listed(host) == BOTH
    assert host.probe.sample("GPU-b").utilization == 50
    host.order("GPU-b", "GPU-a")
    assert listed(host) == ("GPU-b", "GPU-a")
    for uuid, busy in (("GPU-b", 50), ("GPU-a", 0)):
        seen = host.probe.sample(uuid)
        assert (seen.uuid, seen.utilization) == (uuid, busy)


def test_instances_are_listed_in_place_of_their_gpu(host: Host) -> None:
    host.cut("GPU-a", "MIG-1", "MIG-2")
    found = {device.uuid: device for device in host.probe.devices()}
    assert found.keys() == {"MIG-1", "MIG-2", "GPU-b"}
    whole = Device("GPU-a", INSTANCE["name"], 10 * GIB, DRIVER, minor=0)
    part = replace(found["MIG-1"], index=None)
    assert part == replace(whole, uuid="MIG-1", parent="GPU-a")
    seen = host.probe.sample("MIG-1")
    assert (seen.memory_used, seen.memory_total, seen.utilization) == (0, 10 * GIB, None)
    assert seen.mig
    assert all(MIG_QUERIES[query] is Need.RECORDED for query in seen.unsupported)
    assert Query.UTILIZATION in seen.unsupported


def test_an_instance_is_lost_with_its_gpu(host: Host) -> None:
    host.cut("GPU-a", "MIG-1")
    host.probe.sample("MIG-1")
    host.lose("GPU-a")
    with pytest.raises(DeviceLostError, match="MIG-1"):
        host.probe.sample("MIG-1")
    assert listed(host) == ("GPU-b",)


def test_a_driver_that_refuses_is_unreadable_until_it_is_mended(host: Host) -> None:
    host.refuse()
    for question in (host.probe.devices, lambda: host.probe.sample("GPU-a")):
        with pytest.raises(DeviceUnreadableError, match="NoPermission"):
            question()
    host.mend()
    assert listed(host) == BOTH
    assert host.probe.sample("GPU-a").utilization == 0


def test_many_devices_with_many_processes_are_told_whole(bare: Host) -> None:
    uuids = [f"GPU-{number:02d}" for number in range(16)]
    crowd = tuple(DeviceProcess(1000 + n, DeviceUse.COMPUTE, n) for n in range(60))
    for uuid in uuids:
        bare.gpu(uuid)
        bare.change(uuid, processes=crowd)
    assert listed(bare) == tuple(uuids)
    assert bare.probe.sample("GPU-15").processes == crowd


def test_closing_twice_is_fine_and_asking_again_opens_it(host: Host) -> None:
    before = listed(host)
    host.probe.close()
    host.probe.close()
    assert listed(host) == before
