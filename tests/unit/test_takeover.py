"""What whoever takes a run over finds: signals noted before they were sent, and who had it."""

import fcntl
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.adapters.fake_clock import FakeClock
from orchestrator.domain.attempt import RunKind
from orchestrator.domain.container import ContainerEnd, ContainerState, ContainerStatus
from orchestrator.domain.outcome import HostFact, KilledBy, StopReason
from orchestrator.domain.roles import Phase
from orchestrator.errors import (
    AssetMismatchError,
    ContainerLostError,
    EngineUnavailableError,
    InfrastructureError,
    StorageFullError,
    UsageError,
)
from orchestrator.evidence.adoption import Adoption
from orchestrator.evidence.kills import KillIntent, KillLedger
from orchestrator.lifecycle.machine import Event
from orchestrator.pipeline import drive
from orchestrator.storage import durable, lock, supervisor
from orchestrator.storage.device_locks import DeviceLock
from orchestrator.storage.journal import Journal
from orchestrator.storage.ledger import Capacity, Ledger, Reservation
from orchestrator.storage.supervisor import (
    Holders,
    claim,
    holders,
    is_supervised,
    keeping,
    named,
    note_watchdog,
    supervising,
)


@dataclass
class Shot:
    """A container that notes what its ledger held when the signal came."""

    file: Path
    id: str = "c" * 64
    seen: list[str] = field(default_factory=list)

    def kill(self, signal: str = "KILL") -> None:
        self.seen.append(self.file.read_text() if self.file.exists() else "")


def _end(*signals: str) -> ContainerEnd:
    state = ContainerState(
        status=ContainerStatus.EXITED,
        exit_code=137,
        oom_killed=False,
        started_at="",
        finished_at="",
        pid=0,
    )
    return ContainerEnd(state=state, witnessed=True, signals=signals)


def test_a_signal_is_written_down_before_it_is_sent(tmp_path: Path) -> None:
    shot = Shot(tmp_path / "kills.jsonl")
    ledger = KillLedger(shot.file)
    ledger.kill(shot, StopReason.HOST_FACT, {HostFact.DEVICE_LOST, HostFact.HOST_DISK_FULL})
    ledger.kill(shot, StopReason.HOST_FACT)
    (line,) = shot.seen[1].splitlines()
    assert shot.seen == [shot.seen[1]] * 2
    intent = KillIntent.model_validate_json(line)
    assert intent.container == shot.id
    assert intent.reason is StopReason.HOST_FACT
    assert set(intent.facts) == {HostFact.DEVICE_LOST, HostFact.HOST_DISK_FULL}
    assert ledger.begun is None
    assert KillLedger.recall(shot.file).begun == intent


def test_what_a_supervisor_before_us_sent_is_no_strangers(tmp_path: Path) -> None:
    file = tmp_path / "kills.jsonl"
    assert KillLedger.recall(file).killer(_end("KILL")) is KilledBy.THIRD_PARTY
    assert KillLedger.recall(file).killer(_end()) is KilledBy.NOBODY
    KillLedger(file).kill(Shot(file), StopReason.DEADLINE)
    assert KillLedger.recall(file).killer(_end("KILL")) is KilledBy.ORCHESTRATOR
    assert KillLedger.recall(file).killer(_end("TERM")) is KilledBy.THIRD_PARTY


def test_a_line_that_was_cut_off_was_followed_by_no_signal(tmp_path: Path) -> None:
    file = tmp_path / "kills.jsonl"
    file.write_bytes(b'{"container": "c", "signal": "KILL", "reas')
    ledger = KillLedger.recall(file)
    assert (ledger.begun, ledger.sent) == (None, [])


def test_a_full_disk_stops_no_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise StorageFullError("no space")

    monkeypatch.setattr(durable, "open_lines", full)
    shot = Shot(tmp_path / "kills.jsonl")
    KillLedger(shot.file).kill(shot, StopReason.DEADLINE)
    assert shot.seen == [""]


# -- what it ran under


def test_devices_that_nobody_took_meanwhile_are_reserved_again(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "host", Capacity(cpus=64, memory=1 << 30), FakeClock())
    ledger.make_folder()
    taken = ledger.devices.take("GPU-b", "somebody", Phase.SCORE)
    assert isinstance(taken, DeviceLock)
    said: list[str] = []
    need = SimpleNamespace(cpus=1, memory=1 << 20)
    plan = SimpleNamespace(run_id="mine", resources=need)
    passed = SimpleNamespace(data={"cpuset": "0", "gpus": ["GPU-a", "GPU-b"]})
    journal = SimpleNamespace(view=SimpleNamespace(last=lambda _: passed))
    guarded: list[Reservation | None] = []
    ctx = SimpleNamespace(
        ledger=ledger, say=said.append, guard=lambda _, held: guarded.append(held)
    )
    with Adoption().reserved(ctx, plan, tmp_path, journal) as held:
        assert held is not None
        assert held.gpus == ("GPU-a",)
        assert guarded == [held]
        (listed,) = ledger.held()
        assert (listed.run_id, listed.gpus) == ("mine", ("GPU-a",))
        lease = ledger.devices.holder("GPU-a")
        assert lease is not None
        assert lease.run_id == "mine"
    assert ledger.held() == ()
    assert ledger.devices.holder("GPU-a") is None
    assert "GPU-b, which somebody (score" in said[0]
    taken.release()


# -- the lock of a run


def test_the_lock_file_names_who_is_alive(tmp_path: Path) -> None:
    child = subprocess.Popen((sys.executable, "-c", "input()"), stdin=subprocess.PIPE)
    assert holders(tmp_path) == Holders()
    with supervising(tmp_path):
        note_watchdog(tmp_path, child.pid)
        found = holders(tmp_path)
        assert found.watchdog == child.pid
        assert found.supervisor is not None
        assert named(tmp_path) == f"process {found.supervisor}"
    child.communicate(b"\n")
    assert holders(tmp_path).watchdog is None
    assert named(tmp_path) == "nobody"


def test_who_removes_the_file_of_names_lets_no_second_supervisor_in(tmp_path: Path) -> None:
    with supervising(tmp_path):
        (tmp_path / ".supervisor.lock").unlink()
        assert is_supervised(tmp_path)
        with pytest.raises(UsageError, match="by another process"), supervising(tmp_path):
            pass
    assert not is_supervised(tmp_path)


def test_a_file_of_names_that_leads_elsewhere_is_not_written(tmp_path: Path) -> None:
    other, run = tmp_path / "other", tmp_path / "run"
    other.write_text("precious")
    run.mkdir()
    (run / ".supervisor.lock").symlink_to(other)
    with supervising(run):
        assert is_supervised(run)
    assert other.read_text() == "precious"


def test_who_only_looks_keeps_no_supervisor_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = [os.open(tmp_path, os.O_RDONLY)]
    fcntl.flock(looks[0], fcntl.LOCK_SH)
    tried, really = list[bool](), lock.try_lock

    def looked(descriptor: int, *, shared: bool = False) -> bool:
        tried.append(really(descriptor, shared=shared))
        if looks:
            os.close(looks.pop())
        return tried[-1]

    monkeypatch.setattr(lock, "try_lock", looked)
    with supervising(tmp_path):
        assert is_supervised(tmp_path)
    assert tried == [False, True]


def test_a_number_that_the_kernel_gave_out_again_names_nobody(tmp_path: Path) -> None:
    with supervising(tmp_path):
        own = holders(tmp_path).supervisor
        (tmp_path / ".supervisor.lock").write_text(f"supervisor {own} 1\nnonsense\nwatchdog x y\n")
        assert holders(tmp_path) == Holders()
        assert named(tmp_path) == "another process"


def test_an_inherited_lock_is_kept_over_several_turns(tmp_path: Path) -> None:
    claim(tmp_path)
    inherited = supervisor._claimed.pop(tmp_path)
    with keeping(tmp_path, inherited):
        for _ in range(2):
            with supervising(tmp_path):
                assert is_supervised(tmp_path)
            assert is_supervised(tmp_path)
    assert not is_supervised(tmp_path)
    with (
        supervising(tmp_path),
        pytest.raises(UsageError, match="supervised by process"),
        supervising(tmp_path),
    ):
        pass


def test_what_was_run_to_its_end_survives_ten_failures_of_the_machine(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "lifecycle.jsonl", RunKind.REPLAY, "run", FakeClock())
    full = StorageFullError("no space left")
    for event in (Event.REGISTERED, Event.GATE_STARTED, Event.GATE_PASSED, Event.RUN_STARTED):
        journal.append(event)
    assert not drive.passes(journal, full)
    assert drive.passes(journal, EngineUnavailableError("away"))
    journal.append(Event.EXITED)
    assert not drive.passes(journal, InfrastructureError("the validator fails on the anchor too"))
    for _ in range(10):
        assert drive.passes(journal, full)
        assert drive.passes(journal, ContainerLostError("removed"))
        assert drive.passes(journal, AssetMismatchError("not mounted right now"))
        journal.append(Event.NOTED, audit="adopted")
    assert not drive.passes(journal, full)
