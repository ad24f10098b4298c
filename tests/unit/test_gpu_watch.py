"""Whose the processes on a run's GPUs are, and what counts against the host."""

from collections.abc import Collection
from threading import Event

import pytest

from orchestrator.adapters.fake_clock import FakeClock
from orchestrator.adapters.in_memory_devices import InMemoryDevices
from orchestrator.adapters.in_memory_processes import InMemoryProcesses
from orchestrator.domain.device import Device, DeviceProcess, DeviceUse
from orchestrator.domain.gate import PermittedHolder
from orchestrator.domain.outcome import HostFact, Sign
from orchestrator.domain.process import ProcessFacts
from orchestrator.domain.telemetry import DeviceNews, DeviceState, Foreign, Owner, Xid
from orchestrator.evidence.gpu_watch import MAX_HOLDERS, GpuWatch, Ours, Stamp, whose

OURS = "0123456789abcdef" * 4
OTHER = "fedcba9876543210" * 4
A, B = "GPU-a", "GPU-b"


def process(pid: int, container: str | None = None, **more: object) -> ProcessFacts:
    facts: dict[str, object] = {
        "ppid": 1,
        "started_ns": 10**9,
        "command": f"program {pid}",
        "user": "somebody",
        "cgroup": f"/docker/{container}" if container else "/user.slice/session-3.scope",
        "container": container,
        "foreign_pids": container is not None,
        "inner_pid": 8 if container else pid,
        **more,
    }
    return ProcessFacts(pid, **facts)  # type: ignore[arg-type]


def ours(*processes: ProcessFacts, second: Collection[int] = ()) -> Ours:
    return Ours(OURS, processes, lambda: second)


@pytest.mark.parametrize(
    ("facts", "owner"),
    [
        (process(4000, OURS), Owner.OURS),
        (process(4000, OTHER), Owner.FOREIGN),
        (process(4000), Owner.FOREIGN),
        (process(4000, cgroup="/", foreign_pids=False), Owner.FOREIGN),
        (process(4000, cgroup="/", foreign_pids=True), Owner.UNKNOWN),
        (process(4000, cgroup=None, foreign_pids=None), Owner.UNKNOWN),
        (process(4000, OTHER, ended=True), Owner.UNKNOWN),
        (ProcessFacts(4000), Owner.UNKNOWN),
    ],
)
def test_foreign_is_who_is_proven_to_be_elsewhere(facts: ProcessFacts, owner: Owner) -> None:
    assert whose(facts, ours(process(5000, OURS)), sees_host=True) is owner


def test_one_in_our_control_group_is_ours_whatever_its_own_file_says() -> None:
    """The first thread of a process may have ended: version 1 then shows ``/`` for it."""
    facts = process(4000, cgroup="/", foreign_pids=False)
    assert whose(facts, ours(process(4000, OURS)), sees_host=True) is Owner.OURS


def test_the_engine_is_asked_where_the_control_group_says_nothing() -> None:
    facts = process(4000, cgroup="/", foreign_pids=False)
    assert whose(facts, ours(second={4000}), sees_host=True) is Owner.OURS
    assert whose(facts, ours(second={4001}), sees_host=True) is Owner.FOREIGN
    elsewhere = process(4000, OTHER)
    assert whose(elsewhere, ours(second={4000}), sees_host=True) is Owner.FOREIGN


def test_a_pid_of_an_inner_namespace_accuses_nobody() -> None:
    """Where a driver tells those, the process that has it on the host is not the one meant."""
    innocent = process(8)
    assert whose(innocent, ours(process(4000, OURS)), sees_host=True) is Owner.UNKNOWN
    assert whose(innocent, ours(process(4000, OURS, inner_pid=9)), sees_host=True) is Owner.FOREIGN


def test_inside_a_container_pids_prove_nothing_of_others() -> None:
    assert whose(process(4000, OTHER), ours(), sees_host=False) is Owner.UNKNOWN
    assert whose(process(4000, OURS), ours(), sees_host=False) is Owner.OURS


class Bench:
    """Two GPUs, both ours, and a table of processes."""

    def __init__(self, tolerance: float = 60.0, **more: object) -> None:
        self.clock = FakeClock()
        self.devices = InMemoryDevices(self.clock)
        for uuid in (A, B):
            self.devices.put(Device(uuid, "NVIDIA H100", 80 << 30, "570"))
        self.mine = process(4000, OURS)
        self.table = InMemoryProcesses(self.mine)
        self.watch = GpuWatch((A, B), self.devices, self.table, tolerance, Event(), **more)  # type: ignore[arg-type]
        self.news: list[Foreign | Xid | DeviceNews] = []
        self.owners: dict[int, Owner] = {}

    def use(self, uuid: str, *pids: int, memory: int | None = 1 << 30) -> None:
        found = tuple(DeviceProcess(pid, DeviceUse.COMPUTE, memory) for pid in pids)
        self.devices.change(uuid, processes=found)

    def look(self, after: float = 10.0) -> None:
        self.clock.advance(after)
        at = self.clock.boottime_ns() / 1e9
        gpus, news = self.watch.look(ours(self.mine), Stamp("", at, OURS[:12]))
        self.owners = {holder.pid: holder.owner for gpu in gpus for holder in gpu.holders}
        self.news += news

    def foreign(self) -> list[Foreign]:
        return [row for row in self.news if isinstance(row, Foreign)]


def test_GP_07_a_process_that_the_host_shows_in_our_container_is_ours() -> None:
    bench = Bench()
    bench.use(A, 4000)
    for _ in range(20):
        bench.look()
    assert bench.owners == {4000: Owner.OURS}
    assert not bench.news
    assert not bench.watch.host_facts
    assert not bench.watch.signs


def test_foreign_use_within_the_tolerance_is_a_sign_and_a_row_with_its_span() -> None:
    bench = Bench()
    bench.table.add(process(7000, OTHER, command="python steal.py", user="mallory"))
    bench.use(B, 7000)
    bench.look()
    bench.look()
    bench.use(B)
    bench.look()
    assert bench.watch.signs == {Sign.FOREIGN_GPU_USE}
    assert not bench.watch.host_facts
    assert bench.watch.total == 10.0
    last = bench.foreign()[-1]
    assert (last.uuid, last.pid, last.command, last.user) == (B, 7000, "python steal.py", "mallory")
    assert (last.container, last.first, last.last, last.total) == (OTHER, 10.0, 20.0, 10.0)


def test_foreign_use_beyond_the_tolerance_is_the_hosts_doing() -> None:
    bench = Bench(tolerance=30.0)
    bench.table.add(process(7000))
    bench.use(A, 4000, 7000)
    for _ in range(4):
        bench.look()
    assert bench.watch.total == 30.0
    assert not bench.watch.host_facts
    bench.look(0.5)
    assert bench.watch.host_facts == {HostFact.FOREIGN_GPU_USE}
    assert not bench.watch.unusable


def test_spans_add_up_and_two_at_once_count_once() -> None:
    bench = Bench()
    bench.table.add(process(7000), process(7001))
    for uuid in (A, B):
        bench.use(uuid, 7000, 7001)
    bench.look()
    bench.look()
    bench.use(A)
    bench.use(B)
    bench.look()
    bench.use(A, 7000)
    bench.look()
    bench.look()
    assert bench.watch.total == 20.0
    assert bench.foreign()[-1].first == 40.0


def test_two_that_were_each_seen_once_are_proven_for_no_time() -> None:
    bench = Bench(tolerance=5.0)
    bench.table.add(process(7000), process(7001))
    for pid in (7000, 7001, 7000, 7001):
        bench.use(A, pid)
        bench.look()
    assert bench.watch.total == 0.0
    assert bench.watch.signs == {Sign.FOREIGN_GPU_USE}
    assert not bench.watch.host_facts


def test_a_pid_that_is_used_again_is_not_the_same_process() -> None:
    bench = Bench()
    bench.use(A, 7000)
    for started in (1, 2, 3):
        bench.table.add(process(7000, started_ns=started * 10**9))
        bench.look()
    assert bench.watch.total == 0.0


def test_where_nothing_is_tolerated_a_single_sight_is_too_much() -> None:
    bench = Bench(tolerance=0.0)
    bench.look()
    assert not bench.watch.host_facts
    bench.table.add(process(7000))
    bench.use(A, 7000)
    bench.look()
    assert bench.watch.host_facts == {HostFact.FOREIGN_GPU_USE}


def test_what_was_proven_before_counts_on() -> None:
    bench = Bench(tolerance=60.0, total=55.0)
    bench.table.add(process(7000))
    bench.use(A, 7000)
    bench.look()
    assert not bench.watch.host_facts
    bench.look()
    assert bench.watch.host_facts == {HostFact.FOREIGN_GPU_USE}


def test_the_unknown_is_recorded_as_unknown_and_accuses_nobody() -> None:
    bench = Bench(tolerance=0.0)
    bench.use(A, 9999)
    for _ in range(20):
        bench.look()
    assert bench.owners == {9999: Owner.UNKNOWN}
    assert not bench.watch.signs
    assert not bench.watch.host_facts


@pytest.mark.parametrize(
    ("executable", "memory", "owner"),
    [
        ("/usr/bin/dcgm-exporter", 1 << 20, Owner.PERMITTED),
        ("/usr/bin/dcgm-exporter", None, Owner.PERMITTED),
        ("/usr/bin/dcgm-exporter", 1 << 30, Owner.FOREIGN),
        ("/tmp/dcgm-exporter", 1 << 20, Owner.FOREIGN),
        (None, 1 << 20, Owner.FOREIGN),
    ],
)
def test_who_is_permitted_may_be_there_and_hold_so_much(
    executable: str | None, memory: int | None, owner: Owner
) -> None:
    rules = (PermittedHolder(executable="/usr/bin/dcgm-exporter", memory=16 << 20),)
    bench = Bench(tolerance=0.0, permitted=rules)
    bench.table.add(process(7000, executable=executable))
    bench.use(A, 7000, memory=memory)
    bench.look()
    assert bench.owners == {7000: owner}
    assert bool(bench.watch.host_facts) is (owner is Owner.FOREIGN)


def test_a_lost_device_is_the_hosts_doing_and_is_not_asked_again() -> None:
    bench = Bench()
    bench.look()
    bench.devices.lose(A)
    bench.look()
    bench.look()
    assert bench.watch.host_facts == {HostFact.DEVICE_LOST}
    assert dict(bench.watch.unusable) == {A: f"gpu_lost: the driver has lost {A}"}
    (news,) = bench.news
    assert isinstance(news, DeviceNews)
    assert (news.uuid, news.state) == (A, DeviceState.LOST)


def test_a_device_that_comes_back_stays_lost_to_this_run() -> None:
    bench = Bench()
    bench.look()
    bench.devices.remove(A)
    bench.look()
    bench.devices.put(Device(A, "NVIDIA H100", 80 << 30, "570"))
    bench.use(A, 4000)
    bench.look()
    assert bench.owners == {}
    assert [row.kind for row in bench.news] == ["device"]


def test_a_driver_that_does_not_answer_is_a_sign_and_ends_nothing() -> None:
    bench = Bench()
    bench.devices.refuse("NVML says NoPermission")
    bench.look()
    bench.look()
    bench.devices.mend()
    bench.look()
    assert not bench.watch.host_facts
    assert bench.watch.signs == {Sign.OBSERVATION_GAP}
    told = [(it.uuid, it.state) for it in bench.news if isinstance(it, DeviceNews)]
    assert told == [
        (A, DeviceState.UNREADABLE),
        (B, DeviceState.UNREADABLE),
        (A, DeviceState.READABLE),
        (B, DeviceState.READABLE),
    ]


@pytest.mark.parametrize("code", [48, 64, 79, 95])
def test_a_fatal_error_is_the_hosts_doing(code: int) -> None:
    bench = Bench()
    bench.devices.report(B, code)
    bench.look()
    assert bench.watch.host_facts == {HostFact.DEVICE_LOST}
    assert dict(bench.watch.unusable) == {B: f"Xid {code}"}


@pytest.mark.parametrize(("code", "signs"), [(63, {Sign.DEVICE_ERROR}), (94, {Sign.DEVICE_ERROR})])
def test_an_error_that_was_contained_is_a_sign(code: int, signs: set[Sign]) -> None:
    bench = Bench()
    bench.devices.report(A, code)
    bench.look()
    assert bench.watch.signs == signs
    assert not bench.watch.host_facts
    (row,) = bench.news
    assert isinstance(row, Xid)
    assert row.codes == (code,)


@pytest.mark.parametrize("code", [13, 31, 43, 45])
def test_an_error_of_a_program_is_a_row_and_nothing_else(code: int) -> None:
    bench = Bench()
    bench.devices.report(A, code)
    bench.look()
    assert not bench.watch.signs
    assert not bench.watch.host_facts
    assert [row.kind for row in bench.news] == ["xid"]


def test_a_row_lists_so_many_processes() -> None:
    bench = Bench()
    bench.use(A, *range(7000, 7000 + MAX_HOLDERS + 3))
    bench.clock.advance(1)
    gpus, _ = bench.watch.look(ours(bench.mine), Stamp("", 1.0, OURS[:12]))
    assert (len(gpus[0].holders), gpus[0].more) == (MAX_HOLDERS, 3)
