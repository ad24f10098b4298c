"""The gate and GPUs: which is chosen, what is refused and why, who has it, and what is kept."""

from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import yaml

from orchestrator.adapters.in_memory import Inside
from orchestrator.domain.container import DeviceClaim
from orchestrator.domain.device import Device, DeviceProcess, DeviceUse
from orchestrator.domain.gate import STAND_IN, Asked, PermittedHolder, Refusal
from orchestrator.domain.process import ProcessFacts
from orchestrator.domain.records import GpuPlan, PhasePlan
from orchestrator.domain.roles import Phase
from orchestrator.domain.task import GateSpec, GpuSpec, Resources, TaskSpec
from orchestrator.errors import (
    GateRefusedError,
    InterruptedByOperator,
    ResourcesBusyError,
    UsageError,
)
from orchestrator.evidence.devices import resolve, unqualified
from orchestrator.pipeline.gpus import plan_gpus
from orchestrator.sandbox import RUN_LABEL, container_spec
from orchestrator.storage.device_locks import DeviceLock
from tests.unit.gate_help import Bench
from tests.unit.pack_help import TASK

GIB = 1024**3
A = Device("GPU-a", "NVIDIA H100 80GB HBM3", 80 * GIB, "570.86.15")
B = Device("GPU-b", "NVIDIA H100 80GB HBM3", 80 * GIB, "570.86.15")
SLICE = Device("MIG-1", "NVIDIA H100 MIG 1g.10gb", 10 * GIB, "570.86.15", parent="GPU-a")
TRAINING = DeviceProcess(7, DeviceUse.COMPUTE, GIB)


def spec_of(**changes: Any) -> TaskSpec:
    return TaskSpec.model_validate({**yaml.safe_load(TASK), **changes})


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    made.devices.put(A)
    return made


def plan(bench: Bench, *asked: str, count: int = 1, run: str = "r1", **qualify: Any) -> PhasePlan:
    gpu = GpuPlan(
        counts={Phase.REPLAY: count}, asked=asked, qualify=GpuSpec(**qualify), gate=GateSpec()
    )
    return bench.plan(gpu=gpu, run_id=run, relaxations=(STAND_IN,))


def refused(
    bench: Bench, reason: Refusal, *asked: str, passing: bool = False, **more: Any
) -> dict[str, Any]:
    """Try the gate; nothing may be held afterwards, and the reason comes first."""
    record = bench.refused(plan(bench, *asked, **more), GateRefusedError)
    assert record["reason"].startswith(f"{reason}: ")
    assert bench.ledger.devices.holder("GPU-a") is None
    assert bench.ledger.devices.holder("GPU-b") is None
    with (
        pytest.raises(ResourcesBusyError if passing else GateRefusedError) as refusal,
        bench.open(plan(bench, *asked, **more)),
    ):
        pytest.fail("the gate is open")
    assert isinstance(refusal.value, ResourcesBusyError) == passing
    assert refusal.value.remedy
    return record


def test_an_idle_gpu_is_locked_before_the_first_look_until_the_run_is_over(bench: Bench) -> None:
    looks: list[bool] = []
    sample = bench.devices.sample

    def look(uuid: str) -> Any:
        looks.append(bench.ledger.devices.holder("GPU-a") is not None)
        return sample(uuid)

    bench.devices.sample = look  # type: ignore[method-assign]
    with bench.open(plan(bench)) as held:
        assert held.gpus == ("GPU-a",)
        holder = bench.ledger.devices.holder("GPU-a")
        assert holder is not None
        assert (holder.run_id, holder.phase) == ("r1", Phase.REPLAY)
        assert [reserved.gpus for reserved in bench.ledger.held()] == [("GPU-a",)]
        assert len(held.descriptors) == 2
    assert bench.ledger.devices.holder("GPU-a") is None
    assert all(looks)
    record = bench.record()
    assert record["gpus"] == ["GPU-a"]
    assert [check["name"] for check in record["checks"]] == [
        "engine",
        "image image",
        "GPU driver",
        "asset data/train",
        "reservation",
        "GPUs",
        "GPUs in a container of image",
    ]
    devices = record["devices"]
    assert [device["uuid"] for device in devices["devices"]] == ["GPU-a"]
    (row,) = devices["samples"]
    assert (row["first_s"], row["last_s"], row["count"], row["widest_s"]) == (0, 60, 121, 0.5)
    assert devices["library"]["official"] is False
    assert (devices["refusals"], devices["tries"]) == ([], 1)


def test_a_run_without_a_gpu_asks_no_driver(bench: Bench) -> None:
    bench.devices.refuse("it would have been asked")
    bench.engine.claim_devices()
    with bench.open(bench.plan()) as held:
        assert held.gpus == ()
    assert bench.record()["devices"] is None
    assert bench.clock.boottime_ns() == 0


def test_GP_01_memory_held_without_a_process(bench: Bench) -> None:
    bench.devices.change("GPU-a", memory_used=11 * GIB)
    record = refused(bench, Refusal.MEMORY)
    assert "GPU-a" in record["reason"]
    assert f"{11 * GIB} bytes" in record["reason"]
    assert record["checks"][-1]["name"] == "GPUs"
    assert record["devices"]["samples"][0]["memory_used"] == 11 * GIB
    assert record["devices"]["refusals"][0]["reason"] == "gpu_memory_in_use"
    assert bench.engine.find({RUN_LABEL: "r1"}) == ()


def test_who_held_it_is_kept(bench: Bench) -> None:
    bench.devices.change("GPU-a", processes=(TRAINING,), memory_used=GIB)
    bench.processes.add(ProcessFacts(7, command="python train.py", user="bob", container="c" * 64))
    record = refused(bench, Refusal.PROCESS, passing=True)
    assert "pid 7, python train.py, user bob, container cccccccccccc" in record["reason"]
    (holder,) = record["devices"]["holders"]
    assert (holder["pid"], holder["command"], holder["user"]) == (7, "python train.py", "bob")
    assert (holder["container"], holder["permitted"]) == ("c" * 64, False)


def test_a_permitted_holder_is_let_through_and_kept(bench: Bench) -> None:
    bench.devices.change("GPU-a", processes=(TRAINING,), memory_used=GIB)
    bench.processes.add(ProcessFacts(7, executable="/usr/bin/dcgm-exporter"))
    bench.permitted = (PermittedHolder("/usr/bin/dcgm-exporter", GIB),)
    with bench.open(plan(bench)):
        pass
    evidence = bench.record()["devices"]
    assert evidence["permitted"] == [{"executable": "/usr/bin/dcgm-exporter", "memory": GIB}]
    assert evidence["holders"][0]["permitted"] is True


def test_use_in_the_middle_of_the_window_refuses(bench: Bench) -> None:
    bench.devices.script("GPU-a", *({} for _ in range(100)), {"utilization": 40})
    with pytest.raises(ResourcesBusyError, match="gpu_utilized"), bench.open(plan(bench)):
        pytest.fail("the gate is open")
    assert bench.record()["devices"]["samples"][-1]["utilization"] == 40


def test_a_gpu_that_is_lost_is_marked_for_the_next_gate(bench: Bench) -> None:
    bench.devices.put(B)
    sample, looked = bench.devices.sample, [0]

    def look(uuid: str) -> Any:
        looked[0] += 1
        if looked[0] == 5:
            bench.devices.lose("GPU-a")
        return sample(uuid)

    bench.devices.sample = look  # type: ignore[method-assign]
    record = bench.refused(plan(bench, "GPU-a"), GateRefusedError)
    assert record["reason"].startswith("gpu_lost: ")
    again = bench.refused(plan(bench, "GPU-a"), GateRefusedError)
    assert again["reason"].startswith("gpu_unusable: ")
    with bench.open(plan(bench)) as held:
        assert held.gpus == ("GPU-b",)
    bench.clock.reboot()
    absent = bench.refused(plan(bench, "GPU-a"), GateRefusedError)
    assert absent["reason"].startswith("gpu_absent: ")


def test_GP_03_a_driver_that_does_not_answer_is_refused_with_its_own_error(bench: Bench) -> None:
    bench.devices.refuse("NVML says LibRmVersionMismatch")
    record = bench.refused(plan(bench), GateRefusedError)
    assert record["reason"] == "gpu_unreadable: NVML says LibRmVersionMismatch"


def test_a_driver_that_falls_silent_in_the_window_is_refused(bench: Bench) -> None:
    take = bench.ledger.devices.take

    def silent(*arguments: Any) -> Any:
        bench.devices.refuse("NVML did not answer within 10 s")
        return take(*arguments)

    bench.ledger.devices.take = silent  # type: ignore[method-assign]
    record = bench.refused(plan(bench), GateRefusedError)
    assert record["reason"] == "gpu_unreadable: NVML did not answer within 10 s"
    assert record["devices"]["library"]["path"] == "in memory"


@pytest.mark.parametrize(
    "claim",
    [
        DeviceClaim("d" * 64, "stranger", {}, every=True),
        DeviceClaim("d" * 64, "stranger", {}, every=False, devices=("GPU-a",)),
        DeviceClaim("d" * 64, "stranger", {RUN_LABEL: "r2"}, every=False, devices=("0",)),
    ],
    ids=["count or all", "uuid", "index, another run of ours"],
)
def test_what_another_container_was_given_is_refused(bench: Bench, claim: DeviceClaim) -> None:
    bench.engine.claim_devices(claim)
    record = refused(bench, Refusal.RESERVED, passing=True)
    assert "container stranger" in record["reason"]
    assert record["devices"]["samples"] == []


def test_a_container_that_comes_within_the_window_is_seen(bench: Bench) -> None:
    sample = bench.devices.sample

    def look(uuid: str) -> Any:
        bench.engine.claim_devices(DeviceClaim("d" * 64, "late", {}, every=True))
        return sample(uuid)

    bench.devices.sample = look  # type: ignore[method-assign]
    with pytest.raises(ResourcesBusyError, match="gpu_reserved: container late"):
        bench.open(plan(bench)).__enter__()


def test_GP_09_devices_go_by_uuid_whatever_their_order(bench: Bench) -> None:
    bench.devices.put(B)
    bench.devices.order("GPU-a", "GPU-b")
    assert resolve("1", bench.devices.devices()) == ("GPU-b",)
    asked = plan(bench, "GPU-b")
    bench.devices.order("GPU-b", "GPU-a")
    with bench.open(asked) as held:
        assert held.gpus == ("GPU-b",)
        assert bench.ledger.devices.holder("GPU-a") is None
    (probe,) = [row["uuid"] for row in bench.record()["devices"]["samples"]]
    assert probe == "GPU-b"


def test_auto_passes_over_what_cannot_be_had(bench: Bench) -> None:
    bench.devices.put(B)
    bench.devices.change("GPU-a", utilization=90)
    with bench.open(plan(bench)) as held:
        assert held.gpus == ("GPU-b",)
        with (
            pytest.raises(GateRefusedError) as refusal,
            Bench.open(bench, plan(bench, run="r2")),
        ):
            pytest.fail("the gate is open")
    # CPUs are told first: the bench has one.
    assert "1 CPU (0 free)" in str(refusal.value)


def test_as_many_as_are_asked_for(bench: Bench) -> None:
    bench.devices.put(B)
    with bench.open(plan(bench, count=2)) as held:
        assert held.gpus == ("GPU-a", "GPU-b")
    bench.devices.change("GPU-b", utilization=5)
    record = refused(bench, Refusal.UTILIZED, count=2, passing=True)
    assert {row["uuid"] for row in record["devices"]["samples"]} == {"GPU-a", "GPU-b"}
    bench.devices.change("GPU-b", utilization=0)
    assert "2 GPU(s) here" in refused(bench, Refusal.UNQUALIFIED, count=3)["reason"]


def test_looking_that_takes_long_leaves_no_gap(bench: Bench) -> None:
    sample = bench.devices.sample

    def slow(uuid: str) -> Any:
        bench.clock.advance(0.7)
        return sample(uuid)

    bench.devices.sample = slow  # type: ignore[method-assign]
    with bench.open(plan(bench)):
        pass
    (row,) = bench.record()["devices"]["samples"]
    assert row["widest_s"] == 0.75


def test_what_the_task_asks_of_a_device(bench: Bench) -> None:
    record = bench.refused(plan(bench, models=("B300",)), GateRefusedError)
    assert record["reason"].startswith("gpu_unqualified: 0 GPU(s) here are what the task asks for")
    assert [check["name"] for check in record["checks"]][-1] == "GPU driver"
    record = refused(bench, Refusal.UNQUALIFIED, "GPU-a", models=("B300",))
    assert "GPU-a is a NVIDIA H100 80GB HBM3, the task asks for B300" in record["reason"]


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        ({}, True),
        ({"models": ("H100",)}, True),
        ({"models": ("h100 80GB", "B300")}, True),
        ({"models": ("H10",)}, False),
        ({"min_memory": "80g"}, True),
        ({"min_memory": "81g"}, False),
        ({"min_driver": "570"}, True),
        ({"min_driver": "570.86.15"}, True),
        ({"min_driver": "570.100"}, False),
        ({"min_driver": "580"}, False),
    ],
)
def test_which_devices_qualify(wanted: dict[str, Any], fits: bool) -> None:
    assert (unqualified(A, GpuSpec(**wanted)) == "") == fits


def test_a_mig_instance_is_seen_beside_its_gpu(tmp_path: Path) -> None:
    bench = Bench(tmp_path, lambda inside: inside.stdout(b"GPU-a\nMIG-1\n") or 0)
    bench.devices.put(SLICE)
    with bench.open(plan(bench)) as held:
        assert held.gpus == ("MIG-1",)


def _says(*uuids: str) -> Callable[[Inside], int]:
    def program(inside: Inside) -> int:
        inside.stdout("\n".join(uuids).encode())
        return 0

    return program


@pytest.mark.parametrize("seen", [(), ("GPU-b",), ("GPU-a", "GPU-b"), ("MIG-1", "GPU-a")])
def test_what_a_container_sees_must_be_what_it_was_given(
    tmp_path: Path, seen: tuple[str, ...]
) -> None:
    bench = Bench(tmp_path, _says(*seen))
    bench.devices.put(A)
    record = refused(bench, Refusal.NOT_SEEN)
    assert f"sees {', '.join(sorted(seen)) or 'no GPU'}" in record["reason"]
    assert bench.engine.find({RUN_LABEL: "r1"}) == ()


def test_a_stand_in_that_the_plan_does_not_name_is_refused(bench: Bench) -> None:
    gpu = plan(bench).gpu
    record = bench.refused(bench.plan(gpu=gpu), GateRefusedError)
    assert record["reason"].startswith("gpu_stand_in: ")


def test_a_device_of_another_run_is_leased_and_says_to_whom(bench: Bench) -> None:
    bench.ledger.make_folder()
    other = bench.ledger.devices.take("GPU-a", "r0", Phase.SCORE)
    assert isinstance(other, DeviceLock)
    record = bench.refused(plan(bench), ResourcesBusyError)
    assert record["reason"].startswith("gpu_leased: GPU-a is held by run r0 (score, pid ")
    other.release()
    with bench.open(plan(bench)):
        pass


class Released:
    """Something happens after a number of waits."""

    def __init__(self, bench: Bench, after: int, act: Callable[[], object]) -> None:
        self.waits = 0
        wait = bench.clock.wait

        def counted(event: Event, seconds: float) -> bool:
            self.waits += 1
            if self.waits == after:
                act()
            return wait(event, seconds)

        bench.clock.wait = counted  # type: ignore[method-assign]


def test_waiting_ends_when_the_device_is_free(bench: Bench) -> None:
    bench.ledger.make_folder()
    other = bench.ledger.devices.take("GPU-a", "r0", Phase.SCORE)
    assert isinstance(other, DeviceLock)
    bench.asked = Asked(wait=600)
    Released(bench, 3, other.release)
    with bench.open(plan(bench)) as held:
        assert held.gpus == ("GPU-a",)
    assert len(bench.said) == 1
    assert bench.said[0].startswith("waiting: gpu_leased: GPU-a is held by run r0")
    evidence = bench.record()["devices"]
    assert (evidence["tries"], evidence["waited_s"]) == (4, 6.0)
    names = [check["name"] for check in bench.record()["checks"]]
    assert len(set(names)) == len(names)
    assert len(evidence["samples"]) == 1


def test_waiting_for_memory_that_nobody_accounts_for(bench: Bench) -> None:
    bench.devices.change("GPU-a", memory_used=GIB)
    bench.asked = Asked(wait=600)
    Released(bench, 40, lambda: bench.devices.change("GPU-a", memory_used=0))
    with bench.open(plan(bench)):
        pass
    assert bench.record()["devices"]["tries"] > 1


def test_what_will_not_pass_ends_the_waiting_for_what_may(bench: Bench) -> None:
    bench.devices.change("GPU-a", memory_used=GIB)
    bench.asked = Asked(wait=600)

    def full(_claim: object) -> None:
        raise GateRefusedError("no disk is free")

    # The first try looks for five seconds, then the second finds no disk.
    Released(bench, 11, lambda: setattr(bench.ledger, "reserve", full))
    record = bench.refused(plan(bench), GateRefusedError)
    assert record["reason"] == "no disk is free"
    assert bench.clock.boottime_ns() < 60 * 10**9


def test_waiting_is_over_in_time(bench: Bench) -> None:
    bench.ledger.make_folder()
    bench.ledger.devices.take("GPU-a", "r0", Phase.SCORE)
    bench.asked = Asked(wait=60)
    record = bench.refused(plan(bench), ResourcesBusyError)
    assert record["devices"]["waited_s"] == 60
    assert bench.clock.boottime_ns() == 60 * 10**9


def test_cpus_are_waited_for_likewise(bench: Bench) -> None:
    bench.asked = Asked(wait=60)
    with bench.open(bench.plan()):
        other = bench.plan(run_id="r2")
        with (
            pytest.raises(ResourcesBusyError, match="reserved by r1"),
            bench.open(other),
        ):
            pytest.fail("the gate is open")
    assert bench.clock.boottime_ns() == 60 * 10**9


def test_what_can_never_be_is_not_waited_for(bench: Bench) -> None:
    bench.asked = Asked(wait=600)
    bench.refused(plan(bench, "GPU-none"), GateRefusedError)
    need = bench.plan().resources.model_copy(update={"memory": 1 << 40})
    bench.refused(bench.plan(resources=need), GateRefusedError)
    assert bench.clock.boottime_ns() == 0


@pytest.mark.parametrize("waits", [1, 5])
def test_a_stop_ends_the_waiting_and_the_window(bench: Bench, waits: int) -> None:
    bench.ledger.make_folder()
    if waits == 1:
        bench.ledger.devices.take("GPU-a", "r0", Phase.SCORE)
    bench.asked = Asked(wait=600)
    Released(bench, waits, bench.stop.ask)
    bench.refused(plan(bench), InterruptedByOperator)


def test_another_runs_folder_of_the_host_sees_the_lock(bench: Bench, tmp_path: Path) -> None:
    other = Bench(tmp_path / "other", host=tmp_path / "host")
    other.devices.put(A)
    with bench.open(plan(bench)):
        pass
    held = bench.ledger.devices.take("GPU-a", "r1", Phase.REPLAY)
    assert isinstance(held, DeviceLock)
    record = other.refused(plan(other, run="r9"), ResourcesBusyError)
    assert record["reason"].startswith("gpu_leased: GPU-a is held by run r1")


def test_the_operators_choice_becomes_uuids_at_once(bench: Bench) -> None:
    bench.devices.put(B)
    task = spec_of(defaults={"gpus": 1}, replay={"gpus": 2})
    phases = (Phase.REPLAY, Phase.VALIDATE)
    assert plan_gpus(bench.context, spec_of(), phases) is None
    auto = plan_gpus(bench.context, task, phases)
    assert auto is not None
    assert (auto.asked, auto.counts) == ((), {Phase.REPLAY: 2, Phase.VALIDATE: 1})
    for asked, found in (("1,0", ("GPU-b", "GPU-a")), ("GPU-a,1", ("GPU-a", "GPU-b"))):
        bench.asked = Asked(asked)
        chosen = plan_gpus(bench.context, task, phases)
        assert chosen is not None
        assert chosen.asked == found
    for asked, says in (
        ("1", "names 1 GPU"),
        ("0,2", "there is no GPU 2: 2 are listed"),
        ("0,GPU-a", "twice"),
    ):
        bench.asked = Asked(asked)
        with pytest.raises(UsageError, match=says):
            plan_gpus(bench.context, task, phases)


def test_a_gpu_named_for_a_task_that_asks_for_none_is_refused(bench: Bench) -> None:
    """Of a task that gets one later, or of a shell that names one for all tasks, it is not."""
    bench.asked = Asked("9", typed=True)
    with pytest.raises(UsageError, match=r"--gpu: .* asks for no GPU"):
        plan_gpus(bench.context, spec_of(), (Phase.EXPLORE,))
    assert plan_gpus(bench.context, spec_of(replay={"gpus": 1}), (Phase.EXPLORE,)) is None
    bench.asked = Asked("9")
    assert plan_gpus(bench.context, spec_of(), (Phase.EXPLORE,)) is None


def test_no_task_chooses_the_devices_of_its_container() -> None:
    def visible(*gpus: str, **env: str) -> str:
        spec = container_spec(
            name="name",
            phase=Phase.REPLAY,
            image="image",
            argv=("true",),
            user=(1, 1),
            agent=(1, 1),
            resources=Resources(env=env),
            mounts=(),
            env=env,
            labels={},
            gpus=gpus,
        )
        assert spec.gpu_uuids == gpus
        return spec.env["NVIDIA_VISIBLE_DEVICES"]

    assert visible() == "void"
    assert visible(NVIDIA_VISIBLE_DEVICES="all") == "void"
    assert visible("GPU-a", "GPU-b", NVIDIA_VISIBLE_DEVICES="all") == "GPU-a,GPU-b"
