"""When a container is looked at, and that looking holds nobody up and costs no run."""

import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typing_extensions import override

from orchestrator.adapters.fake_clock import FakeClock
from orchestrator.adapters.in_memory import InMemoryEngine, Inside, Program, run_until_killed
from orchestrator.adapters.in_memory_devices import InMemoryDevices
from orchestrator.adapters.in_memory_processes import InMemoryProcesses
from orchestrator.domain.container import ContainerSpec, Limits
from orchestrator.domain.device import Device, DeviceProcess, DeviceSample, DeviceUse
from orchestrator.domain.outcome import HostFact, KilledBy, Sign, StopReason, Verdict, verdict
from orchestrator.domain.process import ProcessFacts
from orchestrator.domain.roles import Phase
from orchestrator.domain.telemetry import AnyRow, Begin, End, Foreign, Gap, GapReason, Sample, Use
from orchestrator.errors import ContainerLeftRunning
from orchestrator.evidence.capped_log import CappedLog
from orchestrator.evidence.observer import Observer, Subject
from orchestrator.evidence.supervise import Ending, StopRequest, Watch
from orchestrator.evidence.telemetry import host_load
from orchestrator.evidence.telemetry_log import read_telemetry
from orchestrator.ports import Container, ContainerUse, DeviceProbe

GPU = "GPU-a"
WALL = 3600


class Hanging(InMemoryDevices):
    """A driver that answers nothing until it is released."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.asked = threading.Event()
        self.uuids: list[str] = []
        self.released = threading.Event()

    @override
    def sample(self, uuid: str) -> DeviceSample:
        self.uuids.append(uuid)
        self.asked.set()
        assert self.released.wait(60)
        return super().sample(uuid)


class Bench:
    """A container on a GPU, the watch over it, and an observer that the watch owns."""

    def __init__(
        self,
        folder: Path,
        program: Program = run_until_killed,
        *,
        clock: FakeClock | None = None,
        devices: DeviceProbe | None = None,
    ) -> None:
        self.clock = clock or FakeClock()
        self.engine = InMemoryEngine(program, images={"image": {}}, clock=self.clock)
        self.container: Container = self.engine.create(
            ContainerSpec(
                name="orch-test",
                image="image",
                argv=("true",),
                user="1:1",
                workdir="/",
                mounts=(),
                tmpfs=(),
                limits=Limits(cpus=1, memory=1 << 20, shm=0, pids=1),
                labels={},
            )
        )
        self.processes = InMemoryProcesses()
        self.devices = InMemoryDevices(self.clock)
        self.devices.put(Device(GPU, "NVIDIA H100", 80 << 30, "570"))
        self.probe: DeviceProbe = devices or self.devices
        self.subject = Subject(
            phase=Phase.REPLAY,
            path=folder / "telemetry.jsonl",
            every=10.0,
            tolerance=60.0,
            gpus=(GPU,),
        )
        self.log = CappedLog(folder / "logs")
        self.stop = StopRequest()
        self.broken: list[tuple[str, str]] = []
        self.observer = self.observe()

    def observe(self) -> Observer:
        return Observer(self.subject, self.container, self.clock, self.processes, self.probe)

    def watch(self) -> Watch:
        return Watch(
            Phase.REPLAY,
            self.container,
            self.clock,
            WALL * 10**9,
            self.stop,
            self.log,
            lambda _: None,
            observer=self.observer,
            on_broken=lambda uuid, reason: self.broken.append((uuid, reason)),
        )

    def run(self, on_tick: Callable[[], bool] = lambda: False) -> Ending:
        watch = self.watch()
        watch.begin()
        self.container.start(self.log)
        try:
            return watch.run(on_tick)
        finally:
            self.log.close()

    def process(self, pid: int, container: str | None = None) -> ProcessFacts:
        return ProcessFacts(
            pid,
            1,
            10**9,
            command=f"program {pid}",
            cgroup="/somewhere",
            container=container,
            foreign_pids=container is not None,
        )

    def hold(self, *pids: int) -> None:
        """Let these be on the GPU from now on."""
        found = tuple(DeviceProcess(pid, DeviceUse.COMPUTE, 1 << 30) for pid in pids)
        self.devices.change(GPU, processes=found)

    def after(self, *seconds: float) -> Callable[[], bool]:
        """Let so much time pass at each tick, with every look done, then go on without end."""
        steps = iter(seconds)

        def tick() -> bool:
            assert self.observer.settle()
            step = next(steps, None)
            if step is None:
                return True
            self.clock.advance(step)
            return False

        return tick

    @property
    def rows(self) -> tuple[AnyRow, ...]:
        return read_telemetry(self.subject.path).rows


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the watch tick as fast as it can; time is the fake clock's."""
    monkeypatch.setattr("orchestrator.evidence.supervise.TICK", 0.0)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.log.close()


def test_even_a_moment_is_looked_at_twice(tmp_path: Path) -> None:
    bench = Bench(tmp_path, lambda _: 0)
    ending = bench.run()
    assert ending.facts.exit_code == 0
    assert ending.contested == frozenset()
    begin, *_, end = bench.rows
    assert isinstance(end, End)
    assert isinstance(begin, Begin)
    assert begin.container == bench.container.id
    assert begin.gpus == (GPU,)


def test_looks_come_often_at_first_and_then_at_the_rate(bench: Bench) -> None:
    bench.run(bench.after(*[0.05] * 10, *[0.5] * 160))
    times = [row.at for row in bench.rows if isinstance(row, Sample)]
    assert times[:6] == [0.05, 0.3, 1.0, 2.0, 4.0, 8.0]
    assert all(9.9 < b - a <= 10.5 for a, b in itertools.pairwise(times[7:]))
    assert times[-1] > 70
    assert bench.rows[-1].kind == "end"


def test_rows_tell_what_the_container_uses_and_keep_the_last_of_it(tmp_path: Path) -> None:
    def busy(inside: Inside) -> int:
        inside.use = ContainerUse(cpu_s=1.2345, memory=5, memory_peak=9, pids=3)
        return inside.until_killed()

    bench = Bench(tmp_path, busy)
    bench.run(bench.after(1, 1))
    samples = [row for row in bench.rows if isinstance(row, Sample)]
    end = bench.rows[-1]
    assert isinstance(end, End)
    assert samples[-1].use == end.use == Use(cpu_s=1.234, memory=5, memory_peak=9, pids=3)
    assert samples[-1].gpus[0].uuid == GPU


def test_a_driver_that_hangs_holds_no_deadline_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    hanging = Hanging(clock)
    bench = Bench(tmp_path, clock=clock, devices=hanging)
    bench.subject = replace(bench.subject, gpus=(GPU, "GPU-b"))
    bench.observer = bench.observe()

    def tick() -> bool:
        if hanging.asked.is_set():
            bench.clock.advance(WALL)
        return False

    monkeypatch.setattr("orchestrator.evidence.observer.LAST_LOOK", 0.05)
    ending = bench.run(tick)
    assert ending.facts.stop_reason is StopReason.DEADLINE
    assert verdict(ending.facts, ending.host_facts) is Verdict.BEHAVIOR
    assert ending.contested == {Sign.OBSERVATION_GAP}
    before = bench.subject.path.read_bytes()
    hanging.released.set()
    assert bench.observer.settle()
    assert hanging.uuids == [GPU]  # nor is anything else asked then
    assert bench.subject.path.read_bytes() == before  # what comes too late is not evidence


def test_GP_12_a_gpu_that_is_lost_just_before_the_end_is_seen_to_be(tmp_path: Path) -> None:
    bench = Bench(tmp_path, lambda _: 1)
    bench.devices.lose(GPU)
    ending = bench.run()
    assert ending.facts.exit_code == 1
    assert ending.facts.stop_reason is StopReason.EXITED
    assert ending.host_facts == {HostFact.DEVICE_LOST}
    assert verdict(ending.facts, ending.host_facts) is Verdict.INFRASTRUCTURE
    assert bench.broken == [(GPU, f"gpu_lost: the driver has lost {GPU}")]


def test_a_gpu_that_is_lost_in_mid_run_ends_it(bench: Bench) -> None:
    def lose() -> bool:
        if bench.clock.boottime_ns() >= 20 * 10**9:
            bench.devices.lose(GPU)
        assert bench.observer.settle()
        bench.clock.advance(5)
        return False

    ending = bench.run(lose)
    assert ending.facts.stop_reason is StopReason.HOST_FACT
    assert ending.facts.killed_by is KilledBy.ORCHESTRATOR
    assert ending.facts.duration_s < 120
    assert ending.host_facts == {HostFact.DEVICE_LOST}


def test_foreign_use_beyond_the_tolerance_ends_the_run(bench: Bench) -> None:
    bench.processes.add(bench.process(7000, "f" * 64))
    bench.hold(7000)
    ending = bench.run(bench.after(*[10.0] * 300))
    assert ending.facts.stop_reason is StopReason.HOST_FACT
    assert ending.host_facts == {HostFact.FOREIGN_GPU_USE}
    assert 60 < ending.facts.duration_s < 120
    assert not bench.broken


def test_foreign_use_below_the_tolerance_leaves_a_contested_result(bench: Bench) -> None:
    bench.processes.add(bench.process(7000, "f" * 64))
    bench.hold(7000)
    step = bench.after(*[5.0] * 30)

    def tick() -> bool:
        if bench.clock.boottime_ns() > 30 * 10**9:
            bench.hold()
        return step()

    ending = bench.run(tick)
    assert ending.facts.stop_reason is StopReason.SUBMITTED
    assert ending.host_facts == frozenset()
    assert ending.contested == {Sign.FOREIGN_GPU_USE}
    last = [row for row in bench.rows if isinstance(row, Foreign)][-1]
    assert 20 <= last.total <= 45


def test_another_supervisor_goes_on_with_the_file_and_the_count(bench: Bench) -> None:
    bench.processes.add(bench.process(7000, "f" * 64))
    bench.hold(7000)
    bench.container.start(bench.log)
    for _ in range(5):
        bench.observer.tick(bench.clock.boottime_ns())
        assert bench.observer.settle()
        bench.clock.advance(10)
    bench.observer.leave()
    assert isinstance(bench.rows[-1], Sample)
    bench.clock.advance(100)
    bench.observer = bench.observe()
    watch = bench.watch()
    watch.resume(bench.clock.utc(), 0)
    ending = watch.run(bench.after(*[10.0] * 300))
    (gap,) = (row for row in bench.rows if isinstance(row, Gap))
    assert (gap.why, gap.seconds) == (GapReason.RESUMED, 120.0)
    assert [row.kind for row in bench.rows].count("begin") == 2
    assert isinstance(bench.rows[-1], End)
    # 40 s were proven before; what was during the gap is not.
    assert ending.host_facts == {HostFact.FOREIGN_GPU_USE}
    last = [row for row in bench.rows if isinstance(row, Foreign)][-1]
    assert last.total <= 80
    assert ending.facts.duration_s <= 200


def test_a_look_that_comes_late_is_said_to(bench: Bench) -> None:
    ending = bench.run(bench.after(1, 100, 1))
    gaps = [row for row in bench.rows if isinstance(row, Gap)]
    assert [(gap.why, gap.seconds > 90) for gap in gaps] == [(GapReason.LATE, True)]
    assert ending.contested == {Sign.OBSERVATION_GAP}  # who was on the GPU meanwhile?


def test_without_a_gpu_a_late_look_is_a_row_alone(bench: Bench) -> None:
    bench.subject = replace(bench.subject, gpus=())
    bench.observer = bench.observe()
    ending = bench.run(bench.after(1, 45, 1))
    assert any(isinstance(row, Gap) for row in bench.rows)
    assert ending.contested == frozenset()


def test_a_run_without_a_gpu_asks_no_driver(tmp_path: Path) -> None:
    clock = FakeClock()
    hanging = Hanging(clock)
    bench = Bench(tmp_path, clock=clock, devices=hanging)
    bench.subject = replace(bench.subject, gpus=())
    bench.observer = bench.observe()
    bench.run(bench.after(1, 10, 10))
    assert not hanging.asked.is_set()


def test_a_container_that_is_left_running_has_no_end_row(bench: Bench) -> None:
    watch = bench.watch()
    watch.begin()
    bench.container.start(bench.log)

    def leave() -> bool:
        bench.stop.ask()
        bench.stop.ask()
        return False

    with pytest.raises(ContainerLeftRunning):
        watch.run(leave)
    assert bench.observer.settle()
    assert "end" not in [row.kind for row in bench.rows]


def test_a_disk_that_is_full_is_the_hosts_doing(bench: Bench) -> None:
    bench.subject = replace(bench.subject, path=Path("/dev/full"))
    bench.observer = bench.observe()
    ending = bench.run(bench.after(*[1.0] * 300))
    assert ending.facts.stop_reason is StopReason.HOST_FACT
    assert ending.host_facts == {HostFact.HOST_DISK_FULL}


def test_what_looking_fails_with_is_logged_and_costs_no_run(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("orch"), "propagate", True)  # a command before turned it

    class Broken(InMemoryProcesses):
        @override
        def of_container(self, container_id: str) -> tuple[ProcessFacts, ...]:
            raise RuntimeError("a bug of ours")

    bench.processes = Broken()
    bench.observer = bench.observe()
    ending = bench.run(bench.after(1, 10, 10))
    assert ending.facts.stop_reason is StopReason.SUBMITTED
    assert ending.host_facts == frozenset()
    assert ending.contested == {Sign.OBSERVATION_GAP}
    assert "a bug of ours" in caplog.text


def test_a_watchful_observer_sees_what_comes_and_goes(bench: Bench) -> None:
    bench.subject = replace(bench.subject, watchful=True, gpus=())
    bench.observer = bench.observe()
    steps: Iterator[int] = iter(range(1, 200))

    def tick() -> bool:
        assert bench.observer.settle()
        bench.clock.advance(0.11)
        number = next(steps)
        bench.processes.end(*range(number))
        bench.processes.add(bench.process(number, bench.container.id))
        return number == 100

    bench.run(tick)
    started = [it.pid for row in bench.rows if row.kind == "processes" for it in row.started]
    assert len(started) >= 95


def test_no_thread_is_left_behind(bench: Bench) -> None:
    bench.run(bench.after(1, 1))
    assert bench.observer.settle()
    for thread in threading.enumerate():
        if thread.name == "telemetry":
            thread.join(10)
            assert not thread.is_alive()


def test_how_the_host_stands(tmp_path: Path) -> None:
    (tmp_path / "pressure").mkdir()
    for name, value in (("cpu", "1.50"), ("memory", "0.25"), ("io", "0.00")):
        text = f"some avg10={value} avg60=9.99 total=1\nfull avg10=8.88 avg60=0 total=1\n"
        (tmp_path / "pressure" / name).write_text(text)
    (tmp_path / "loadavg").write_text("0.52 0.58 0.59 1/597 12345\n")
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable:   50 kB\n")
    found = host_load(tmp_path)
    assert (found.load, found.memory_available) == (0.52, 50 * 1024)
    assert (found.cpu_pressure, found.memory_pressure, found.io_pressure) == (1.5, 0.25, 0.0)
    assert host_load(tmp_path / "nowhere") == type(found)()
