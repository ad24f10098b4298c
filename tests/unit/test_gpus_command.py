"""``orch gpus``, over the stand-in library."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator import wiring
from orchestrator.adapters.in_memory import FakeClock, InMemoryEngine
from orchestrator.adapters.in_memory_devices import InMemoryDevices
from orchestrator.adapters.system_clock import SystemClock
from orchestrator.cli.app import run
from orchestrator.domain.container import DeviceClaim
from orchestrator.domain.device import Device, DeviceProcess, DeviceUse
from orchestrator.domain.gate import PermittedHolder
from orchestrator.domain.process import ProcessFacts
from orchestrator.domain.roles import Phase
from orchestrator.ports import ProcessTable
from orchestrator.report.gpus import Host, State, look
from orchestrator.storage.device_locks import DeviceLock
from orchestrator.storage.ledger import Capacity, Ledger
from tests.nvml.stand_in import DESKTOP, GIB, Code, Process, StandIn

CONTAINER = "c0ffee" * 10 + "beef"


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> InMemoryEngine:
    made = InMemoryEngine(images={}, clock=FakeClock())
    monkeypatch.setattr(wiring, "engine", lambda _settings: made)
    return made


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    monkeypatch.setenv("ORCH_HOST", str(tmp_path / "host"))
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))
    made = StandIn(tmp_path)
    made.enter(monkeypatch)
    return made


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "host", Capacity(cpus=1, memory=GIB), SystemClock())
    made.make_folder()
    return made


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(["gpus", *words]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


def documents(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    found = json.loads(shown(capsys, "--json"))["devices"]
    return {device["uuid"]: device for device in found}


def test_a_host_without_a_driver_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    said = shown(capsys)
    if not said.startswith("no GPU"):
        pytest.skip("this host has an NVIDIA driver")
    assert said == "no GPU: there is no NVIDIA driver here (libnvidia-ml.so.1 cannot be loaded)\n"
    said = json.loads(shown(capsys, "--json"))
    assert said == {"library": None, "containers_known": False, "devices": []}


def test_a_driver_without_a_gpu_says_so(
    stand_in: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    said = shown(capsys)
    assert said.startswith("no GPU: the NVIDIA driver knows none\n")
    assert f"NVIDIA driver {stand_in.driver}, {stand_in.library}" in said
    assert "a stand-in: nothing that runs on these devices is official" in said


def test_each_device_has_a_line_and_what_is_not_idle_a_reason(
    stand_in: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in.gpu("GPU-idle")
    stand_in.gpu("GPU-desktop", **DESKTOP)
    stand_in.gpu("GPU-busy", utilization=97, used=3 * GIB, processes=[Process(os.getpid())])
    stand_in.gpu("GPU-held", used=11 * GIB)
    stand_in.gpu("GPU-sick", remap_pending=True)
    stand_in.gpu("GPU-dumb", utilization=None)
    stand_in.gpu("GPU-shut")
    stand_in.error("nvmlDeviceGetPersistenceMode", Code.NO_PERMISSION, "GPU-shut")
    said = shown(capsys)
    rows = {line.split()[1]: line for line in said.partition("why\n")[0].splitlines()[1:8]}
    assert {uuid: row.split()[-1] for uuid, row in rows.items()} == {
        "GPU-idle": "idle",
        "GPU-desktop": "idle",
        "GPU-busy": "busy",
        "GPU-held": "busy",
        "GPU-sick": "unfit",
        "GPU-dumb": "unfit",
        "GPU-shut": "unknown",
    }
    assert "3 GiB of 80 GiB" in rows["GPU-busy"]
    assert "97 %" in rows["GPU-busy"]
    assert "70 W" in rows["GPU-idle"]
    assert "31 °C" in rows["GPU-idle"]
    why = dict(line.split(None, 1) for line in said.partition("why\n")[2].splitlines()[:5])
    assert why["2"].startswith(f"GPU-busy is used by pid {os.getpid()}, ")
    assert "GPU-held are held and no process accounts for them" in why["3"]
    assert why["4"] == "a faulty row of the memory of GPU-sick waits for a reset"
    assert why["5"] == "the driver does not tell utilization of GPU-dumb"
    assert why["6"].startswith("NVML says NoPermission (4, nvmlDeviceGetPersistenceMode)")
    process = next(line for line in said.splitlines() if line.startswith("2  ") and "comp" in line)
    assert process.split()[:4] == ["2", str(os.getpid()), "compute", "-"]


def test_instances_stand_in_place_of_their_gpu(
    stand_in: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in.gpu("GPU-cut", mig=True, utilization=None)
    stand_in.instance("MIG-1", of="GPU-cut", number=1)
    stand_in.instance("MIG-2", of="GPU-cut", number=2, used=GIB, processes=[Process(7, GIB)])
    stand_in.gpu("GPU-whole", mig=True, utilization=None)
    found = documents(capsys)
    assert {uuid: (d["parent"], d["state"]) for uuid, d in found.items()} == {
        "MIG-1": ("GPU-cut", "idle"),
        "MIG-2": ("GPU-cut", "busy"),
        "GPU-whole": (None, "unfit"),
    }
    assert found["GPU-whole"]["why"] == "GPU-whole is in MIG mode: only its instances can be given"


def test_a_device_that_is_lost_between_two_questions_is_unfit(
    stand_in: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in.gpu("GPU-a")
    stand_in.error("nvmlDeviceGetHandleByUUID", Code.GPU_IS_LOST, "GPU-a")
    found = documents(capsys)["GPU-a"]
    assert (found["state"], found["seen"], found["processes"]) == ("unfit", None, [])
    assert "the driver has lost GPU-a: NVML says GpuIsLost (15" in found["why"]


def test_who_has_a_device_by_a_lock_is_named(
    stand_in: StandIn, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in.gpu("GPU-a")
    stand_in.gpu("GPU-b")
    lock = ledger.devices.take("GPU-a", "ab" * 16, Phase.REPLAY)
    assert isinstance(lock, DeviceLock)
    found = documents(capsys)
    assert {uuid: d["state"] for uuid, d in found.items()} == {"GPU-a": "leased", "GPU-b": "idle"}
    assert found["GPU-a"]["lease"]["run_id"] == "ab" * 16
    assert found["GPU-a"]["lease"]["pid"] == os.getpid()
    assert f"{'ab' * 16} (replay, pid {os.getpid()}, user " in found["GPU-a"]["why"]
    lock.release()
    assert documents(capsys)["GPU-a"]["state"] == "idle"


def test_a_device_that_an_earlier_run_lost_is_marked(
    stand_in: StandIn, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in.gpu("GPU-a")
    ledger.devices.mark_unusable("GPU-a", "it fell off the bus", SystemClock().boot_id())
    found = documents(capsys)["GPU-a"]
    assert (found["state"], found["why"]) == (
        "unfit",
        "GPU-a is marked unusable: it fell off the bus",
    )


def test_looking_changes_nothing_on_the_host(
    stand_in: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in.gpu("GPU-a")
    shown(capsys)
    assert not (tmp_path / "host").exists()


def test_holders_that_orch_toml_permits_leave_a_device_idle(
    stand_in: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in.gpu("GPU-a", used=GIB, processes=[Process(os.getpid(), GIB)])
    assert documents(capsys)["GPU-a"]["state"] == "busy"
    holder = f'{{executable = "{sys.executable}", memory = "1g"}}'
    (tmp_path / "orch.toml").write_text(f"[gpu]\npermitted = [{holder}]\n")
    assert documents(capsys)["GPU-a"]["state"] == "idle"


class Table(ProcessTable):
    """The processes of a test."""

    def __init__(self, *known: ProcessFacts) -> None:
        self.known = {facts.pid: facts for facts in known}

    def sees_host(self) -> bool:
        return True

    def facts(self, pid: int) -> ProcessFacts:
        return self.known.get(pid, ProcessFacts(pid))

    def of_container(self, container_id: str) -> tuple[ProcessFacts, ...]:
        return ()


def test_processes_are_named_with_user_and_container_and_permitted_ones_do_no_harm(
    ledger: Ledger,
) -> None:
    clock = SystemClock()
    devices = InMemoryDevices(clock)
    exporter = DeviceProcess(7, DeviceUse.COMPUTE, 20 << 20)
    training = DeviceProcess(8, DeviceUse.COMPUTE, GIB)
    for uuid, processes in (("GPU-a", (exporter,)), ("GPU-b", (exporter, training))):
        devices.put(Device(uuid, "NVIDIA H100", 80 * GIB, "570"), processes=processes)
    table = Table(
        ProcessFacts(7, command="dcgm", executable="/usr/bin/dcgm-exporter", user="root"),
        ProcessFacts(8, command="python run.py", user="ann", container=CONTAINER),
    )
    permitted = (PermittedHolder(executable="/usr/bin/dcgm-exporter", memory=64 << 20),)
    first, second = look(Host(devices, table, ledger.devices, clock, permitted))
    assert (first.state, first.why) == (State.IDLE, "")
    assert second.state is State.BUSY
    assert second.process_cells() == (
        ("1", "7", "compute", "20 MiB", "root", "-", "dcgm"),
        ("1", "8", "compute", "1 GiB", "ann", CONTAINER[:12], "python run.py"),
    )
    assert [p["container"] for p in second.document()["processes"]] == [None, CONTAINER]


def test_a_device_that_a_container_was_given_is_busy(ledger: Ledger) -> None:
    clock = SystemClock()
    devices = InMemoryDevices(clock)
    for uuid in ("GPU-a", "GPU-b"):
        devices.put(Device(uuid, "NVIDIA H100", 80 * GIB, "570"))
    claim = DeviceClaim(CONTAINER, "jupyter", {}, every=False, devices=("1",))
    host = Host(devices, Table(), ledger.devices, clock, claims=(claim,))
    assert [view.state for view in look(host)] == [State.IDLE, State.BUSY]
    assert f"container jupyter ({CONTAINER[:12]}) was given 1" in look(host)[1].why


def test_that_no_engine_was_asked_is_said(
    stand_in: StandIn, engine: InMemoryEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in.gpu("GPU-a")
    assert "no container engine" not in shown(capsys)
    engine.go_down()
    assert "no container engine answers" in shown(capsys)
    assert json.loads(shown(capsys, "--json"))["containers_known"] is False


@pytest.mark.parametrize(
    ("code", "name", "action"),
    [
        (Code.LIB_RM_VERSION_MISMATCH, "LibRmVersionMismatch", "reboot"),
        (Code.DRIVER_NOT_LOADED, "DriverNotLoaded", "modprobe nvidia"),
        (Code.NO_PERMISSION, "NoPermission", "run orch as root"),
    ],
)
def test_GP_03_a_driver_that_cannot_be_opened_is_one_line_and_75(
    stand_in: StandIn, code: Code, name: str, action: str
) -> None:
    stand_in.gpu("GPU-a")
    stand_in.error("nvmlInitWithFlags", code)
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", "gpus"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (75, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"orch: NVML says {name} ({code:d}, nvmlInit); ")
    assert action in line
