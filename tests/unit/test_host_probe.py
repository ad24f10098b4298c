"""What ``orch doctor`` finds, and what it makes of a host that lacks something."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from typing_extensions import override

from orchestrator.adapters.host_probe import CHECKS, HostProbe
from orchestrator.adapters.in_memory import FakeClock, InMemoryEngine
from orchestrator.adapters.in_memory_devices import InMemoryDevices
from orchestrator.config import Settings, bundled
from orchestrator.domain.container import HostAbilities
from orchestrator.domain.device import Device, DeviceLibrary
from orchestrator.domain.host import Ability, Level
from orchestrator.domain.task import TaskSpec
from orchestrator.errors import Exit
from orchestrator.ports import DeviceProbe
from orchestrator.storage import probe as storage_probe
from orchestrator.storage.pack import load_pack

DIGITS = load_pack(bundled("tasks") / "digits_class0").spec


def settings_in(folder: Path) -> Settings:
    return Settings(
        runs=folder / "runs", home=folder / "home", assets=folder / "assets", host=folder / "host"
    )


def look(
    folder: Path,
    engine: InMemoryEngine,
    devices: DeviceProbe | None = None,
    tasks: tuple[TaskSpec, ...] = (DIGITS,),
) -> dict[str, Ability]:
    devices = devices or InMemoryDevices(FakeClock())
    probe = HostProbe(settings_in(folder), engine, devices, FakeClock())
    vars(probe)["tasks"] = tasks
    return {ability.name: ability for ability in probe.abilities()}


IMAGES = {"orch/cpu-numpy:1": {}, "orch/prepare-sklearn:1": {}}


class Engine(InMemoryEngine):
    """An engine in memory that lacks what a test takes from it."""

    def __init__(self, **lacks: object) -> None:
        super().__init__(images=IMAGES, clock=FakeClock())
        self.lacks = lacks

    @override
    def abilities(self) -> HostAbilities:
        return replace(super().abilities(), **self.lacks)


def test_every_check_is_reported_and_only_what_is_not_ok_has_a_remedy(tmp_path: Path) -> None:
    found = look(tmp_path, Engine())
    assert tuple(found) == tuple(check.name for check in CHECKS)
    for ability in found.values():
        assert bool(ability.remedy) is (ability.level is not Level.OK), ability
        assert ability.fact


def test_no_engine_is_one_problem_with_one_remedy(tmp_path: Path) -> None:
    engine = Engine()
    engine.go_down()
    found = look(tmp_path, engine)
    assert found["engine"].level is Level.MISSING
    assert found["engine"].remedy
    assert found["engine"].exit_code is Exit.ENGINE_UNAVAILABLE
    unknown = [a for a in found.values() if a.fact == "unknown: no container engine answers"]
    assert {a.name for a in unknown} == {
        "engine rights",
        "engine kind",
        "limits",
        "runtime",
        "images",
        "size",
    }
    assert not any(a.remedy for a in unknown)
    assert found["git"].level is Level.OK


@pytest.mark.parametrize(
    ("lack", "check", "fact"),
    [
        ({"rootless": True}, "engine rights", "without root"),
        ({"lacks": ("engine cannot sing",)}, "engine kind", "cannot sing"),
        ({"cpuset": False}, "limits", "cpuset"),
        ({"pids_limit": False}, "limits", "pids"),
        ({"swap_limit": False}, "limits", "swap"),
        ({"seccomp": False}, "limits", "seccomp"),
        ({"runtimes": ("runsc",)}, "runtime", "runsc"),
        ({"memory": 1024}, "size", "too small for digits_class0"),
    ],
)
def test_what_an_engine_cannot_hold_limits_but_never_stops(
    tmp_path: Path, lack: dict[str, object], check: str, fact: str
) -> None:
    assert look(tmp_path, Engine())[check].level is Level.OK
    found = look(tmp_path, Engine(**lack))[check]
    assert found.level is Level.LIMITED
    assert fact in found.fact


def test_an_absent_image_names_itself_and_the_command_that_makes_it(tmp_path: Path) -> None:
    found = look(tmp_path, InMemoryEngine(images={}, clock=FakeClock()))["images"]
    assert found.level is Level.MISSING
    assert "orch/cpu-numpy:1" in found.fact
    assert "orch/prepare-sklearn:1" in found.fact
    assert found.remedy == "orch images build NAME"


def test_an_image_that_only_some_tasks_need_is_no_more_than_a_limit(tmp_path: Path) -> None:
    larger = DIGITS.defaults.model_copy(update={"image": "hf-cpu"})
    other = DIGITS.model_copy(update={"name": "other", "defaults": larger})
    found = look(tmp_path, Engine(), tasks=(DIGITS, other))["images"]
    assert found.level is Level.LIMITED
    assert found.fact == "not present: orch/hf-cpu:1; needed by other"


def test_a_runs_folder_whose_file_system_fails_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_probe, "_PROBES", (("flock", lambda _: "nobody is locked out"),))
    found = look(tmp_path, Engine())["runs folder"]
    assert found.level is Level.MISSING
    assert "flock: nobody is locked out" in found.fact
    assert not (tmp_path / "runs").exists()


def test_a_runs_folder_without_room_names_the_tasks_it_is_too_small_for(tmp_path: Path) -> None:
    need = 2 * shutil.disk_usage(tmp_path).total
    larger = DIGITS.model_copy(
        update={"name": "huge", "defaults": DIGITS.defaults.model_copy(update={"disk": need})}
    )
    found = look(tmp_path, Engine(), tasks=(DIGITS, larger))["runs folder"]
    assert found.level is Level.LIMITED
    assert found.fact.endswith("; too little for huge")
    assert "room" in found.remedy


def test_programs_that_are_not_installed_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    found = look(tmp_path, Engine())
    assert found["git"].level is Level.MISSING
    assert found["size-limited volumes"].level is Level.LIMITED
    assert "mkfs.ext4" in found["size-limited volumes"].fact


class Installed(InMemoryDevices):
    """Devices whose library is a real one."""

    @override
    def library(self) -> DeviceLibrary | None:
        found = super().library()
        return found and replace(found, path="/usr/lib/libnvidia-ml.so.1", official=True)


def test_gpus_are_counted_with_driver_and_library(tmp_path: Path) -> None:
    devices = Installed(FakeClock())
    for uuid in ("GPU-a", "GPU-b"):
        devices.put(Device(uuid, "NVIDIA H100", 80 << 30, "570.86.15"))
    gpus = look(tmp_path, Engine(), devices)["GPUs"]
    assert (gpus.level, gpus.remedy) == (Level.OK, "")
    assert gpus.fact == "2 of driver 570.86.15, /usr/lib/libnvidia-ml.so.1"


def test_a_stand_in_library_is_a_limit(tmp_path: Path) -> None:
    devices = InMemoryDevices(FakeClock())
    devices.put(Device("GPU-a", "NVIDIA H100", 80 << 30, "570.86.15"))
    gpus = look(tmp_path, Engine(), devices)["GPUs"]
    assert gpus.level is Level.LIMITED
    assert gpus.fact.endswith("(a stand-in: never official)")


@pytest.mark.parametrize("refusal", ["", "NVML says DriverNotLoaded (9, nvmlInit)"])
def test_gpus_that_cannot_be_had_are_a_limit(tmp_path: Path, refusal: str) -> None:
    devices = InMemoryDevices(FakeClock())
    devices.refuse(refusal)
    gpus = look(tmp_path, Engine(), devices)["GPUs"]
    assert (gpus.level, gpus.fact) == (Level.LIMITED, refusal or "no NVIDIA driver")
    assert "docs/gpus.md" in gpus.remedy
