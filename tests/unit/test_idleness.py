"""The judge of idleness, over tables of what kinds of devices tell."""

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.domain.container import DeviceClaim
from orchestrator.domain.device import (
    MIG_QUERIES,
    QUERIES,
    Device,
    DeviceProcess,
    DeviceSample,
    DeviceUse,
    Need,
    Query,
)
from orchestrator.domain.gate import PermittedHolder, Refusal
from orchestrator.domain.process import ProcessFacts
from orchestrator.domain.task import GateSpec
from orchestrator.evidence.claims import claimed
from orchestrator.evidence.idleness import MAX_GAP, Rule, Seen, Window, problem
from orchestrator.evidence.sample_log import SampleLog
from orchestrator.sandbox import RUN_LABEL

MIB, GIB, NS = 1024**2, 1024**3, 10**9

H100 = Device("GPU-h100", "NVIDIA H100", 80 * GIB, "570.86.15", minor=0, index=0)
DESKTOP = Device("GPU-desk", "NVIDIA GeForce RTX 3060", 12 * GIB, "570.86.15", minor=1, index=1)
GPU_IN_MIG = Device("GPU-a100", "NVIDIA A100", 40 * GIB, "570.86.15")
INSTANCE = Device("MIG-1", "NVIDIA A100 MIG 1g.5gb", 5 * GIB, "570.86.15", parent="GPU-a100")

IDLE = DeviceSample(
    uuid="GPU-h100",
    boottime_ns=0,
    memory_used=0,
    memory_total=80 * GIB,
    utilization=0,
    processes=(),
    pending_remap=False,
    failed_remap=False,
    ecc_errors=0,
    mig=False,
    persistence=True,
    power=70.0,
    temperature=31,
)
ON_DESKTOP = replace(
    IDLE,
    uuid="GPU-desk",
    pending_remap=None,
    failed_remap=None,
    ecc_errors=None,
    mig=None,
    persistence=False,
    unsupported=frozenset({Query.REMAP, Query.ECC, Query.MIG_MODE, Query.XID, Query.MPS}),
)
ON_INSTANCE = replace(
    IDLE,
    uuid="MIG-1",
    mig=True,
    utilization=None,
    unsupported=frozenset({Query.UTILIZATION, Query.GRAPHICS, Query.MPS}),
)

XORG = PermittedHolder("/usr/lib/xorg/Xorg", 300 * MIB)
DCGM = PermittedHolder("/usr/bin/dcgm-exporter", 100 * MIB)
RULE = Rule(GateSpec(), (XORG, DCGM))


def on(use: DeviceUse, memory: int | None, pid: int = 7) -> DeviceProcess:
    return DeviceProcess(pid, use, memory)


def runs(executable: str | None, pid: int = 7) -> ProcessFacts:
    return ProcessFacts(pid, command=f"{executable} -x", executable=executable, user="bob")


def seen(sample: DeviceSample, *processes: ProcessFacts, **changes: Any) -> Seen:
    return Seen(replace(sample, **changes), {facts.pid: facts for facts in processes})


GRAPHICS = on(DeviceUse.GRAPHICS, 200 * MIB)
COMPUTE = on(DeviceUse.COMPUTE, GIB)


@pytest.mark.parametrize(
    ("device", "look"),
    [
        pytest.param(H100, seen(IDLE), id="data-centre card"),
        pytest.param(H100, seen(IDLE, persistence=False), id="persistence off is recorded only"),
        pytest.param(H100, seen(IDLE, memory_used=64 * MIB), id="memory within the bound"),
        pytest.param(H100, seen(IDLE, xids=(13, 63, 94)), id="Xids that are not fatal"),
        pytest.param(H100, seen(IDLE, ecc_errors=3), id="ECC errors are recorded only"),
        pytest.param(DESKTOP, seen(ON_DESKTOP), id="desktop card that cannot tell most"),
        pytest.param(
            DESKTOP,
            seen(
                ON_DESKTOP,
                runs(XORG.executable),
                processes=(GRAPHICS,),
                memory_used=240 * MIB,
            ),
            id="desktop card with its display",
        ),
        pytest.param(
            DESKTOP,
            seen(
                ON_DESKTOP,
                runs(XORG.executable),
                processes=(on(DeviceUse.GRAPHICS, None),),
                memory_used=360 * MIB,
            ),
            id="a share that is not told is at most what is permitted",
        ),
        pytest.param(
            DESKTOP,
            seen(
                ON_DESKTOP,
                runs(XORG.executable),
                processes=(GRAPHICS, on(DeviceUse.COMPUTE, 200 * MIB)),
                memory_used=264 * MIB,
            ),
            id="one process with two uses holds its memory once",
        ),
        pytest.param(
            H100,
            seen(
                IDLE,
                runs(DCGM.executable),
                processes=(on(DeviceUse.COMPUTE, 90 * MIB),),
                memory_used=100 * MIB,
            ),
            id="monitoring",
        ),
        pytest.param(INSTANCE, seen(ON_INSTANCE), id="MIG instance, whose use nobody tells"),
    ],
)
def test_honest_hosts_are_idle(device: Device, look: Seen) -> None:
    assert problem(device, look, RULE) is None


@pytest.mark.parametrize(
    ("device", "look", "reason", "says"),
    [
        pytest.param(
            H100,
            seen(IDLE, memory_used=11 * GIB),
            Refusal.MEMORY,
            "11811160064 bytes (11 GiB) of GPU-h100 are held and no process accounts for them",
            id="GP-01 memory without a process",
        ),
        pytest.param(
            H100,
            seen(IDLE, processes=(COMPUTE,)),
            Refusal.PROCESS,
            "GPU-h100 is used by pid 7",
            id="a process that nobody knows",
        ),
        pytest.param(
            H100,
            seen(
                IDLE,
                ProcessFacts(7, command="python train.py", user="bob", container="c" * 64),
                processes=(COMPUTE,),
            ),
            Refusal.PROCESS,
            "is used by pid 7, python train.py, user bob, container cccccccccccc",
            id="a stranger's process",
        ),
        pytest.param(
            H100,
            seen(IDLE, runs("/opt/Xorg"), processes=(GRAPHICS,)),
            Refusal.PROCESS,
            "/opt/Xorg",
            id="a name is no executable",
        ),
        pytest.param(
            H100,
            seen(IDLE, processes=(on(DeviceUse.MPS, None),)),
            Refusal.PROCESS,
            "pid 7",
            id="MPS",
        ),
        pytest.param(
            DESKTOP,
            seen(
                ON_DESKTOP,
                runs(XORG.executable),
                processes=(on(DeviceUse.GRAPHICS, 301 * MIB),),
                memory_used=301 * MIB,
            ),
            Refusal.PROCESS,
            "holds 301 MiB of GPU-desk, and is permitted 300 MiB",
            id="a display that holds too much",
        ),
        pytest.param(
            DESKTOP,
            seen(
                ON_DESKTOP,
                runs(XORG.executable),
                processes=(GRAPHICS,),
                memory_used=265 * MIB,
            ),
            Refusal.MEMORY,
            f"{65 * MIB} bytes",
            id="a display does not account for all",
        ),
        pytest.param(H100, seen(IDLE, utilization=1), Refusal.UTILIZED, "by 1 %", id="used"),
        pytest.param(
            H100, seen(IDLE, pending_remap=True), Refusal.REMAP, "waits", id="pending remap"
        ),
        pytest.param(
            H100, seen(IDLE, failed_remap=True), Refusal.REMAP, "could not", id="failed remap"
        ),
        pytest.param(H100, seen(IDLE, xids=(63, 79)), Refusal.XID, "Xid 79", id="fatal Xid"),
        pytest.param(
            GPU_IN_MIG,
            seen(IDLE, uuid="GPU-a100", mig=True),
            Refusal.MIG,
            "only its instances",
            id="a GPU in MIG mode is never given whole",
        ),
        pytest.param(
            H100, seen(IDLE, memory_used=None), Refusal.CANNOT_TELL, "memory", id="no memory told"
        ),
        pytest.param(
            H100,
            seen(IDLE, utilization=None),
            Refusal.CANNOT_TELL,
            "utilization",
            id="a whole GPU must tell its use",
        ),
        pytest.param(
            H100,
            seen(IDLE, unsupported=frozenset({Query.COMPUTE, Query.POWER})),
            Refusal.CANNOT_TELL,
            "compute_processes of",
            id="no process list",
        ),
        pytest.param(
            INSTANCE,
            seen(ON_INSTANCE, memory_used=GIB),
            Refusal.MEMORY,
            "MIG-1",
            id="a MIG instance that is held",
        ),
        pytest.param(
            INSTANCE,
            seen(ON_INSTANCE, unsupported=frozenset({Query.MEMORY}), memory_used=None),
            Refusal.CANNOT_TELL,
            "memory of MIG-1",
            id="a MIG instance that tells nothing",
        ),
    ],
)
def test_whatever_is_not_known_to_be_idle_is_refused(
    device: Device, look: Seen, reason: Refusal, says: str
) -> None:
    found = problem(device, look, RULE)
    assert found is not None
    assert (found.reason, found.uuid) == (reason, device.uuid)
    assert says in str(found)
    assert str(found).startswith(f"{reason}: ")


@pytest.mark.parametrize("table", [QUERIES, MIG_QUERIES])
def test_one_table_says_what_must_be_known(table: dict[Query, Need]) -> None:
    device = H100 if table is QUERIES else INSTANCE
    for query, need in table.items():
        untold = {Query.MEMORY: "memory_used", Query.UTILIZATION: "utilization"}.get(query)
        look = seen(
            ON_INSTANCE if device is INSTANCE else IDLE,
            unsupported=frozenset({query}),
            **({untold: None} if untold else {}),
        )
        found = problem(device, look, RULE)
        assert (found is not None) == (need is Need.REQUIRED), query


class Watcher:
    """Feeds one window."""

    def __init__(self, idle_for: float = 10.0) -> None:
        self.window = Window(H100, Rule(GateSpec(idle_for=idle_for)))
        self.now = 0.0

    def look(self, after: float = 0.5, *, patient: bool = True, **changes: Any) -> str | None:
        self.now += after
        found = self.window.add(
            seen(IDLE, boottime_ns=round(self.now * NS), **changes), patient=patient
        )
        return None if found is None else found.reason

    def idle(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.5)):
            assert self.look() is None


def test_idle_all_through_is_idle() -> None:
    watch = Watcher()
    watch.idle(10)
    assert not watch.window.complete
    watch.idle(0.5)
    assert watch.window.complete


def test_one_busy_look_refuses() -> None:
    watch = Watcher()
    watch.idle(9.5)
    assert watch.look(utilization=3) == Refusal.UTILIZED
    assert not watch.window.complete


def test_what_is_left_of_a_run_before_has_a_moment_to_go() -> None:
    watch = Watcher()
    assert watch.look(utilization=80, memory_used=GIB) is None
    assert watch.look(utilization=80) is None
    watch.idle(10)
    assert not watch.window.complete  # the window began after it
    watch.idle(0.5)
    assert watch.window.complete


def test_a_window_that_had_begun_begins_again_after_what_was_let_pass() -> None:
    watch = Watcher()
    watch.idle(2)
    assert watch.look(utilization=80) is None
    watch.idle(10)
    assert not watch.window.complete
    watch.idle(0.5)
    assert watch.window.complete


def test_the_moment_passes() -> None:
    watch = Watcher()
    for _ in range(10):
        assert watch.look(memory_used=GIB) is None
    assert watch.look(memory_used=GIB) == Refusal.MEMORY


def test_a_moment_is_given_to_what_can_pass_and_only_where_asked() -> None:
    assert Watcher().look(xids=(79,)) == Refusal.XID
    assert Watcher().look(utilization=80, patient=False) == Refusal.UTILIZED


def test_a_gap_begins_the_window_again_and_too_many_refuse() -> None:
    watch = Watcher()
    watch.idle(9)
    watch.look(after=MAX_GAP + 0.001)
    watch.idle(9.5)
    assert not watch.window.complete
    watch.idle(0.5)
    assert watch.window.complete
    slow = Watcher()
    found = [slow.look(after=1.5) for _ in range(30)]
    assert found[-1] == Refusal.GAP
    assert not slow.window.complete


def test_the_log_keeps_every_look_and_joins_what_is_the_same() -> None:
    log = SampleLog(RULE, began_ns=10 * NS)
    for number in range(120):
        used = GIB if number == 60 else 0
        log.add(
            seen(
                IDLE,
                boottime_ns=10 * NS + number * NS // 2,
                power=70.0 + number % 3,
                memory_used=used,
            )
        )
    assert [(r.first_s, r.last_s, r.count, r.memory_used) for r in log.rows] == [
        (0.0, 29.5, 60, 0),
        (30.0, 30.0, 1, GIB),
        (30.5, 59.5, 59, 0),
    ]
    assert log.rows[0].power == (70.0, 72.0)
    assert {row.widest_s for row in log.rows} == {0.5}


def test_the_log_names_who_was_there_as_far_as_it_was_ever_known() -> None:
    log = SampleLog(RULE, began_ns=0)
    log.add(seen(IDLE, runs(DCGM.executable), processes=(on(DeviceUse.COMPUTE, 1),)))
    log.add(
        seen(
            IDLE,
            processes=(on(DeviceUse.GRAPHICS, 5), on(DeviceUse.MPS, None, pid=8)),
            unsupported=frozenset({Query.XID}),
        )
    )
    first, second = log.holders
    assert (first.pid, first.memory, first.user) == (7, 5, "bob")
    assert first.uses == (DeviceUse.COMPUTE, DeviceUse.GRAPHICS)
    assert (second.pid, second.permitted, second.command) == (8, False, None)
    assert log.unsupported == {"GPU-h100": frozenset({Query.XID})}


def claim(*devices: str, every: bool = False, run: str = "another") -> DeviceClaim:
    return DeviceClaim("d" * 64, "stranger", {RUN_LABEL: run}, every=every, devices=devices)


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        (claim(every=True), True),
        (claim("GPU-h100"), True),
        (claim("GPU-desk"), False),
        (claim("0"), True),
        (claim("1"), False),
        (claim("2"), True),
        (claim("/dev/nvidia0"), True),
        (claim("/dev/nvidia1"), False),
        (claim("all-of-them"), True),
        (claim("1", "GPU-h100"), True),
        (claim("GPU-h100", run="mine"), False),
    ],
)
def test_containers_of_others_hold_what_they_name(held: DeviceClaim, expected: bool) -> None:
    found = claimed(H100, (H100, DESKTOP), (held,), "mine")
    assert (found is not None) == expected
    if found is not None:
        assert found.reason is Refusal.RESERVED
        assert "container stranger (dddddddddddd)" in found.sentence


def test_what_an_index_or_a_node_means_is_not_guessed() -> None:
    unknown = replace(H100, minor=None)
    assert claimed(DESKTOP, (unknown, DESKTOP), (claim("/dev/nvidia9"),), "mine")
    assert claimed(INSTANCE, (INSTANCE, H100), (claim("1"),), "mine")
    assert claimed(INSTANCE, (INSTANCE, H100), (claim("GPU-a100"),), "mine")
    assert claimed(INSTANCE, (INSTANCE, H100), (claim("MIG-2"),), "mine") is None


def test_a_gpu_that_is_not_listed_moves_no_number_to_another() -> None:
    third = replace(DESKTOP, uuid="GPU-third", minor=2, index=2)
    left = (DESKTOP, third)
    assert claimed(DESKTOP, left, (claim("1"),), "mine")
    assert claimed(third, left, (claim("1"),), "mine") is None
    assert claimed(third, left, (claim("0"),), "mine")
