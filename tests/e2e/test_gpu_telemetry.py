"""What is seen of a GPU while a run is on it: a stand-in driver, a real engine of our own."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.adapters.process_table import HostProcesses
from orchestrator.domain.telemetry import DeviceNews, Foreign, Owner, Sample, Xid
from orchestrator.evidence.telemetry_log import read_telemetry
from tests.e2e.rig import PUBLISH, Rig, events, final, has, kill_group, last, until
from tests.nvml.stand_in import GIB, Process, StandIn
from tests.private_engine import PrivateEngine, private_engine, require_private_engine

GPU = "GPU-aaaaaaaa-0000-4000-8000-000000000000"
UNTIL_TOLD = PUBLISH + "publish 10 0.1\nuntil [ -e /logs/go ]; do sleep 0.05; done\n"


@pytest.fixture(scope="module")
def engine() -> Iterator[PrivateEngine]:
    require_private_engine()
    with private_engine(gpus=True) as made:
        yield made


@dataclass
class Bench:
    """A rig on an engine that grants GPUs, and a run that is on one until it is told to go on."""

    rig: Rig
    gpus: StandIn
    engine: PrivateEngine
    attempt: Path = Path()

    def begin(self, run: str = UNTIL_TOLD, **changes: Any) -> "subprocess.Popen[bytes]":
        """Start a replay and wait until it has been looked at."""
        wanted: dict[str, Any] = {
            "gate": {"idle_for": "300ms", "foreign_tolerance": "60s"},
            "telemetry": {"every": "1s"},
            "replay": {"gpus": 1, "wall": "60s"},
        }
        for name, change in changes.items():
            wanted[name] = {**wanted.get(name, {}), **change}
        self.attempt = self.rig.enter(self.rig.pack(run, **wanted))
        process = self.rig.start("replay", self.attempt, "--through", "validate")
        until(self.samples, timeout=120)
        return process

    @property
    def replay(self) -> Path:
        return self.attempt / "replay-001"

    @property
    def rows(self) -> tuple[Any, ...]:
        return read_telemetry(self.replay / "telemetry.jsonl").rows

    def samples(self) -> list[Sample]:
        return [row for row in self.rows if isinstance(row, Sample) and row.gpus]

    @property
    def container(self) -> str:
        return str(last(self.replay, "run_started")["container"])

    def go(self) -> None:
        (self.replay / "logs/host/go").touch()

    def end(self, process: "subprocess.Popen[bytes]", code: int = 0) -> str:
        """Wait for the end of the replay; return what it said."""
        _, said = process.communicate(timeout=180)
        assert process.returncode == code, said.decode()
        return said.decode()


@pytest.fixture
def bench(tmp_path: Path, engine: PrivateEngine, monkeypatch: pytest.MonkeyPatch) -> Bench:
    gpus = StandIn(tmp_path)
    gpus.gpu(GPU)
    gpus.enter(monkeypatch)
    monkeypatch.setenv("DOCKER_HOST", engine.address)
    return Bench(Rig(tmp_path), gpus, engine)


def test_GP_07_a_host_pid_of_our_own_container_is_ours(bench: Bench) -> None:
    replaying = bench.begin(gate={"foreign_tolerance": "0s"})
    ours = [
        process
        for process in HostProcesses().of_container(bench.container)
        if process.command == "bash /workspace/run.sh" and process.inner_pid != process.pid
    ]
    assert ours
    shell = ours[0].pid  # the first; another may be a child about to become `sleep`
    bench.gpus.gpu(GPU, used=GIB, processes=[Process(shell, GIB)])

    def seen() -> bool:
        held = [gpu for row in bench.samples() for gpu in row.gpus if gpu.holders]
        return len(held) > 1

    until(seen)
    holders = {holder for row in bench.samples() for gpu in row.gpus for holder in gpu.holders}
    bench.go()
    bench.end(replaying)
    assert final(bench.replay) == "validated"
    assert set(last(bench.replay, "exited")["contested"]) <= {"observation_gap"}
    assert {holder.owner for holder in holders} == {Owner.OURS}
    assert {holder.container for holder in holders} == {bench.container[:12]}
    assert not [row for row in bench.rows if isinstance(row, Foreign)]


def test_GP_12_a_gpu_that_falls_off_the_bus_is_the_machines_doing(bench: Bench) -> None:
    replaying = bench.begin("until [ -e /logs/go ]; do sleep 0.05; done\nexit 1\n")
    bench.gpus.lose(GPU)
    bench.go()
    said = bench.end(replaying, 75)
    assert "gpu_lost" in said
    ended = last(bench.replay, "exited")
    assert ended["exit"]["exit_code"] == 1
    assert ended["exit"]["killed_by"] == "nobody"
    assert ended["host_facts"] == ["gpu_lost"]
    assert last(bench.replay, "infrastructure")["fact"] == "gpu_lost"
    (lost,) = (row for row in bench.rows if isinstance(row, DeviceNews))
    assert (lost.uuid, lost.state) == (GPU, "lost")
    bench.rig.nothing_left()
    bench.gpus.gpu(GPU, lost=False)  # the driver says that all is well again
    again = bench.rig.orch("replay", bench.attempt)
    assert again.code == 75
    assert "gpu_unusable" in again.err
    assert "gpu_lost" in json.loads((bench.attempt / "replay-002/gate.json").read_text())["reason"]


def test_a_run_that_survives_the_loss_of_its_gpu_is_ended(bench: Bench) -> None:
    replaying = bench.begin()
    bench.gpus.xid(GPU, 79)
    bench.end(replaying, 75)
    ended = last(bench.replay, "exited")
    assert ended["host_facts"] == ["gpu_lost"]
    assert (ended["exit"]["stop_reason"], ended["exit"]["killed_by"]) == (
        "host_fact",
        "orchestrator",
    )
    assert [row.codes for row in bench.rows if isinstance(row, Xid)] == [(79,)]


def test_a_stranger_on_the_gpu_in_mid_run_is_named_and_ends_it(bench: Bench) -> None:
    replaying = bench.begin(gate={"foreign_tolerance": "1s"})
    stranger = bench.engine.stranger()
    try:
        pid = int(bench.engine.docker("inspect", "--format", "{{.State.Pid}}", stranger))
        bench.gpus.gpu(GPU, used=GIB, processes=[Process(pid, GIB)])
        said = bench.end(replaying, 75)
    finally:
        bench.engine.docker("rm", "--force", stranger)
    assert "foreign_gpu_use" in said
    ended = last(bench.replay, "exited")
    assert ended["host_facts"] == ["foreign_gpu_use"]
    assert ended["exit"]["stop_reason"] == "host_fact"
    rows = [row for row in bench.rows if isinstance(row, Foreign)]
    assert {(row.pid, row.container) for row in rows} == {(pid, stranger)}
    assert "sleep 600" in str(rows[0].command)
    assert rows[-1].total > 1.0
    shown = bench.rig.orch("show", bench.replay)
    assert f"pid {pid}" in shown.out
    assert stranger in shown.out


def test_a_stranger_for_a_moment_leaves_a_contested_result(bench: Bench) -> None:
    replaying = bench.begin()
    with subprocess.Popen(["sleep", "600"]) as stranger:
        bench.gpus.gpu(GPU, used=GIB, processes=[Process(stranger.pid, GIB)])
        until(lambda: [row for row in bench.rows if isinstance(row, Foreign)])
        bench.gpus.gpu(GPU, used=0, processes=[])
        bench.gpus.xid(GPU, 94)
        until(lambda: [row for row in bench.rows if isinstance(row, Xid)])
        stranger.kill()
    bench.go()
    bench.end(replaying)
    assert final(bench.replay) == "validated"
    contested = set(last(bench.replay, "exited")["contested"])
    assert contested - {"observation_gap"} == {"foreign_gpu_use", "gpu_error"}
    assert last(bench.replay, "exited")["host_facts"] == []


def test_who_is_permitted_on_this_host_is_no_stranger(bench: Bench) -> None:
    program = shutil.which("sleep")
    assert program is not None
    home = bench.rig.root / "home"
    home.mkdir()
    (home / "orch.toml").write_text(
        f'[[gpu.permitted]]\nexecutable = "{Path(program).resolve()}"\nmemory = "2GiB"\n'
    )
    replaying = bench.begin(gate={"foreign_tolerance": "0s"})
    with subprocess.Popen(["sleep", "600"]) as monitor:
        bench.gpus.gpu(GPU, used=GIB, processes=[Process(monitor.pid, GIB)])

        def seen() -> bool:
            held = [gpu for row in bench.samples() for gpu in row.gpus if gpu.holders]
            return len(held) > 1

        until(seen)
        holders = {holder for row in bench.samples() for gpu in row.gpus for holder in gpu.holders}
        bench.go()
        bench.end(replaying)
        monitor.kill()
    assert {holder.owner for holder in holders} == {Owner.PERMITTED}
    assert set(last(bench.replay, "exited")["contested"]) <= {"observation_gap"}


def test_a_driver_that_hangs_in_mid_run_holds_no_deadline_up(bench: Bench) -> None:
    replaying = bench.begin(replay={"gpus": 1, "wall": "15s"})
    bench.gpus.hang("nvmlDeviceGetMemoryInfo_v2")
    bench.end(replaying)
    assert final(bench.replay) == "validated"
    ended = last(bench.replay, "exited")
    assert (ended["exit"]["stop_reason"], ended["exit"]["killed_by"]) == (
        "deadline",
        "orchestrator",
    )
    assert ended["contested"] == ["observation_gap"]
    started, exited = (
        next(line for line in events(bench.replay) if line["event"] == event)
        for event in ("run_started", "exited")
    )
    # The container is down at the deadline; its run is booked when the last look was given up.
    assert int(exited["mono_ns"]) - int(started["mono_ns"]) < 60 * 10**9
    assert has(bench.replay, "collected")


def test_a_slip_in_the_hosts_file_costs_a_run_that_was_begun_nothing(bench: Bench) -> None:
    replaying = bench.begin()
    file = bench.rig.settings().file
    file.parent.mkdir(exist_ok=True)
    file.write_text("no toml at all")
    kill_group(replaying)
    replaying.communicate()
    said = bench.replay / "logs/adopter.log"
    until(lambda: said.exists() and "orch.toml" in said.read_text())
    assert not has(bench.replay, "infrastructure")
    file.unlink()
    bench.go()
    bench.rig.settled(bench.replay)
    assert final(bench.replay) == "validated"
    assert last(bench.replay, "exited")["exit"]["exit_code"] == 0
    bench.rig.nothing_left()


def test_an_explorations_gpu_is_looked_at_too(bench: Bench) -> None:
    pack = bench.rig.pack(
        gate={"idle_for": "300ms"}, telemetry={"every": "1s"}, explore={"gpus": 1}
    )
    done = bench.rig.orch("explore", pack, "--json")
    assert done.code == 0, done.err
    rows = read_telemetry(Path(done.json()[-1]["path"]) / "telemetry.jsonl").rows
    seen = {gpu.uuid for row in rows if isinstance(row, Sample) for gpu in row.gpus}
    assert seen == {GPU}
