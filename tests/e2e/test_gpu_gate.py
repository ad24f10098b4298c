"""Whole runs on a GPU proven idle and owned: a stand-in driver, a real engine of our own."""

import json
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.adapters.system_clock import SystemClock
from orchestrator.domain.roles import Phase
from orchestrator.storage.device_locks import DeviceLock, Lease
from orchestrator.storage.ledger import Capacity, Ledger
from receipts.envelope import parse_envelope
from receipts.statement import parse_statement
from tests.e2e.rig import PUBLISH, Rig, final, has, kill_group, last, until
from tests.nvml.stand_in import GIB, Code, Process, StandIn
from tests.private_engine import PrivateEngine, private_engine, require_private_engine

A, B = "GPU-aaaaaaaa-0000-4000-8000-000000000000", "GPU-bbbbbbbb-0000-4000-8000-000000000000"
SEEN = PUBLISH + "publish 10 0.1\nnvidia-smi -L > /out/checkpoints/checkpoint-10/gpus.txt\n"
UNTIL_TOLD = PUBLISH + "until [ -e /logs/go ]; do sleep 0.05; done\npublish 10 0.1\n"
QUICK = {"idle_for": "300ms"}


@pytest.fixture(scope="module")
def engine() -> Iterator[PrivateEngine]:
    require_private_engine()
    with private_engine(gpus=True) as made:
        yield made


@dataclass
class Bench:
    """A rig on an engine that grants GPUs, and the hands that move them."""

    rig: Rig
    gpus: StandIn
    engine: PrivateEngine

    def attempt(self, run: str = SEEN, **changes: Any) -> Path:
        """Enter a patch for a task that asks for a GPU in its replay alone."""
        wanted = {"gate": QUICK, "replay": {"gpus": 1}, **changes}
        return self.rig.enter(self.rig.pack(run, **wanted))

    def refused(self, attempt: Path, reason: str, remedy: str) -> Path:
        """Replay; it is refused in one line and a remedy, and nothing but evidence is there."""
        done = self.rig.orch("replay", attempt)
        assert done.code == 75, done.err
        replay: Path = max(attempt.glob("replay-*"))
        registered, said, *what_to_do = done.err.splitlines()
        assert registered.startswith(replay.name)
        assert said.startswith(f"orch: {reason}: ")
        assert len(what_to_do) <= 1
        assert remedy in " ".join((said, *what_to_do))
        assert final(replay) == "infrastructure"
        assert last(replay, "infrastructure")["message"].startswith(f"{reason}: ")
        assert not has(replay, "run_started")
        names = {path.name for path in replay.iterdir() if not path.name.startswith(".")}
        assert names == {"plan.json", "gate.json", "lifecycle.jsonl", "receipts"}
        gate = json.loads((replay / "gate.json").read_text())
        assert (gate["passed"], gate["gpus"]) == (False, [])
        assert gate["reason"].startswith(f"{reason}: ")
        self.rig.nothing_left()
        return replay

    @property
    def ledger(self) -> Ledger:
        """This host's ledger, as another run sees it."""
        found = Ledger(self.rig.settings().host, Capacity(2, 1 << 34), SystemClock())
        found.make_folder()
        return found

    def lease(self) -> DeviceLock:
        """Be another run that has the device."""
        lock = self.ledger.devices.take(A, "another-run", Phase.SCORE)
        assert isinstance(lock, DeviceLock)
        return lock


@pytest.fixture
def bench(tmp_path: Path, engine: PrivateEngine, monkeypatch: pytest.MonkeyPatch) -> Bench:
    gpus = StandIn(tmp_path)
    gpus.gpu(A)
    gpus.enter(monkeypatch)
    monkeypatch.setenv("DOCKER_HOST", engine.address)
    return Bench(Rig(tmp_path), gpus, engine)


def receipts(run: Path) -> list[Any]:
    """The predicates of a run's receipts, in order."""
    files = sorted((run / "receipts").glob("*.json"))
    payloads = (parse_envelope(file.read_bytes()).payload for file in files)
    return [parse_statement(payload).predicate for payload in payloads]


def test_GP_09_every_phase_has_the_device_that_was_asked_for_by_its_uuid(bench: Bench) -> None:
    bench.gpus.gpu(B)
    pack = bench.rig.pack(SEEN, gate=QUICK, defaults={"gpus": 1})
    explored = bench.rig.orch("explore", pack, "--gpu", "1", "--json")
    assert explored.code == 0, explored.err
    attempt = Path(explored.json()[-1]["path"])
    bench.gpus.order(B, A)
    done = bench.rig.orch("replay", attempt, "--gpu", B, "--json")
    assert done.code == 0, done.err
    replay, score = attempt / "replay-001", attempt / "replay-001" / "score-001"
    for run in (attempt, replay, score):
        assert json.loads((run / "plan.json").read_text())["gpu"]["asked"] == [B]
        gate = json.loads((run / "gate.json").read_text())
        assert gate["gpus"] == [B]
        assert {row["uuid"] for row in gate["devices"]["samples"]} == {B}
        assert gate["devices"]["library"]["official"] is False
        for predicate in receipts(run):
            used = [device.uuid for device in predicate.devices]
            assert used == ([] if predicate.phase == "submit" else [B]), predicate.phase
            assert "the GPU driver's library is a stand-in" in predicate.relaxations
    assert last(replay, "gate_passed")["gpus"] == [B]
    # The engine itself has told the container.
    seen = (replay / "checkpoints" / "checkpoint-10" / "gpus.txt").read_text()
    assert B in seen
    assert A not in seen
    assert bench.ledger.devices.holder(B) is None
    bench.rig.nothing_left()


def test_GP_01_memory_held_without_a_process(bench: Bench) -> None:
    bench.gpus.gpu(A, used=11 * GIB)
    replay = bench.refused(bench.attempt(), "gpu_memory_in_use", "fuser")
    message = last(replay, "infrastructure")["message"]
    assert A in message
    assert f"{11 * GIB} bytes" in message


def test_GP_03_a_driver_that_was_updated_while_it_ran(bench: Bench) -> None:
    bench.gpus.error("nvmlInitWithFlags", Code.LIB_RM_VERSION_MISMATCH)
    attempt = bench.attempt()
    replay = bench.refused(attempt, "gpu_unreadable", "reboot")
    message = last(replay, "infrastructure")["message"]
    assert "LibRmVersionMismatch" in message
    bench.gpus.heal()
    assert bench.rig.orch("replay", attempt, "--through", "validate").code == 0
    assert final(attempt / "replay-002") == "validated"


def test_a_stranger_on_the_device_is_named(bench: Bench) -> None:
    bench.gpus.gpu(A, used=GIB, processes=[Process(1, memory=GIB)])
    replay = bench.refused(bench.attempt(), "gpu_process", "--wait")
    (holder,) = json.loads((replay / "gate.json").read_text())["devices"]["holders"]
    assert holder["pid"] == 1
    assert holder["command"]
    assert holder["user"]


def test_a_container_that_was_given_any_gpu_keeps_them_all(bench: Bench) -> None:
    attempt = bench.attempt()
    stranger = bench.engine.stranger("--gpus", "1")
    try:
        replay = bench.refused(attempt, "gpu_reserved", "stop that container")
    finally:
        bench.engine.docker("rm", "--force", stranger)
    assert stranger[:12] in last(replay, "infrastructure")["message"]


def test_explorations_are_gated_too(bench: Bench) -> None:
    bench.gpus.gpu(A, utilization=50)
    pack = bench.rig.pack(SEEN, gate=QUICK, explore={"gpus": 1})
    done = bench.rig.orch("explore", pack)
    assert done.code == 75
    assert "gpu_utilized: " in done.err
    (attempt,) = bench.rig.runs.glob("*/attempt-*")
    assert final(attempt) == "infrastructure"
    assert json.loads((attempt / "gate.json").read_text())["passed"] is False
    bench.rig.nothing_left()


def test_a_stand_in_is_never_official(bench: Bench) -> None:
    pack = bench.rig.pack(SEEN, gate=QUICK, explore={"gpus": 1})
    done = bench.rig.orch("explore", pack, "--official")
    assert done.code == 64
    assert "the GPU driver's library is a stand-in" in done.err


def test_the_device_stays_ours_until_the_container_is_gone(bench: Bench) -> None:
    attempt = bench.attempt(UNTIL_TOLD, validate={"gpus": 1})
    replaying = bench.rig.start("replay", attempt, "--through", "validate")
    replay = attempt / "replay-001"
    until(lambda: has(replay, "run_started"))
    holder = bench.ledger.devices.holder(A)
    assert holder is not None
    run_id = json.loads((replay / "plan.json").read_text())["run_id"]
    assert holder.run_id == run_id
    other = Rig(bench.rig.root, {"ORCH_RUNS": str(bench.rig.root / "other-runs")})
    second = other.enter(bench.rig.root / "pack")
    done = other.orch("replay", second)
    assert done.code == 75
    assert f"gpu_leased: {A} is held by run {run_id}" in done.err
    (replay / "logs" / "host" / "go").touch()
    _, err = replaying.communicate(timeout=120)
    assert replaying.returncode == 0, err.decode()
    phases = {predicate.phase: predicate for predicate in receipts(replay)}
    assert [device.uuid for device in phases["validate"].devices] == [A]
    assert bench.ledger.devices.holder(A) is None


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "left running"])
def test_the_device_stays_ours_when_the_supervisor_is_gone(bench: Bench, killed: bool) -> None:
    attempt = bench.attempt(UNTIL_TOLD)
    replaying = bench.rig.start("replay", attempt, "--through", "validate")
    replay = attempt / "replay-001"
    until(lambda: has(replay, "run_started") and _runs(bench))
    before = bench.ledger.devices.holder(A)
    assert before is not None
    if killed:
        kill_group(replaying)
    else:
        bench.rig.leave(replaying)
    replaying.communicate(timeout=60)
    now = until(lambda: _held_by_another(bench, before.pid))
    assert now is not None
    assert now.run_id == before.run_id
    (replay / "logs" / "host" / "go").touch()
    until(lambda: has(replay, "validated"))
    until(lambda: bench.ledger.devices.holder(A) is None)
    until(lambda: not bench.rig.keepers(replay))
    assert [device.uuid for device in receipts(replay)[1].devices] == [A]
    bench.rig.nothing_left()


def _runs(bench: Bench) -> bool:
    """Tell whether the replay's container has been started."""
    return bool(bench.engine.docker("ps", "--quiet", "--filter", "name=orch-replay-"))


def _held_by_another(bench: Bench, pid: int) -> Lease | None:
    """Return who has the device once that is another process; there is always somebody."""
    holder = bench.ledger.devices.holder(A)
    assert holder is not None
    return None if holder.pid == pid else holder


def _until_it_waits(process: "subprocess.Popen[bytes]") -> None:
    lines = process.stderr
    assert lines is not None
    until(lambda: b"waiting: gpu_leased: " in lines.readline())


def test_waiting_for_a_device_that_another_run_has(bench: Bench) -> None:
    attempt, lease = bench.attempt(), bench.lease()
    waiting = bench.rig.start("replay", attempt, "--wait", "5m", "--through", "validate")
    _until_it_waits(waiting)
    lease.release()
    _, err = waiting.communicate(timeout=120)
    assert waiting.returncode == 0, err.decode()
    assert json.loads((attempt / "replay-001" / "gate.json").read_text())["devices"]["tries"] > 1


def test_ctrl_c_ends_the_waiting_as_the_persons_doing(bench: Bench) -> None:
    attempt, lease = bench.attempt(), bench.lease()
    waiting = bench.rig.start("replay", attempt, "--wait", "5m")
    _until_it_waits(waiting)
    kill_group(waiting, signal.SIGINT)
    waiting.communicate(timeout=60)
    lease.release()
    assert waiting.returncode == 130
    assert final(attempt / "replay-001") == "operator"
    bench.rig.nothing_left()


def test_an_engine_that_grants_no_gpu_is_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DOCKER_HOST")
    replay = bench.refused(bench.attempt(), "gpu_not_seen", "NVIDIA Container Toolkit")
    assert "could not select device driver" in last(replay, "infrastructure")["message"]


def test_podman_which_ignores_the_request_is_refused(
    bench: Bench, podman: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", podman)
    replay = bench.refused(bench.attempt(), "gpu_not_seen", "NVIDIA Container Toolkit")
    assert "sees no GPU" in last(replay, "infrastructure")["message"]
