import multiprocessing
import os
import signal
import stat
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Barrier

import pytest

from orchestrator.domain.quantity import cpu_list, human
from orchestrator.domain.roles import Phase
from orchestrator.errors import ContainerLeftRunning, GateRefusedError
from orchestrator.storage.device_locks import DeviceLock, Lease
from orchestrator.storage.ledger import Capacity, Claim, Ledger
from tests.unit.records_help import TickingClock

GIB = 1024**3
FORK = multiprocessing.get_context("fork")


def _ledger(tmp_path: Path, cpus: int = 2, memory: int = 4 * GIB) -> Ledger:
    return Ledger(tmp_path / "host" / "ledger", Capacity(cpus, memory), TickingClock())


def _claim(tmp_path: Path, run: str = "run-a", /, **asked: float) -> Claim:
    wanted = {"cpus": 1.0, "memory": GIB, "disk": 0, **asked}
    return Claim(
        run, Phase.REPLAY, wanted["cpus"], int(wanted["memory"]), int(wanted["disk"]), tmp_path
    )


@pytest.fixture
def cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 4, 7})


@pytest.mark.usefixtures("cpus")
def test_cpus_are_concrete_whole_and_not_shared(tmp_path: Path) -> None:
    ledger = _ledger(tmp_path, cpus=4)
    first = ledger.reserve(_claim(tmp_path, cpus=1.5))
    second = ledger.reserve(_claim(tmp_path, "run-b", cpus=2))
    assert (first.cpuset, second.cpuset) == ("0-1", "4,7")
    first.release()
    first.release()
    with ledger.reserve(_claim(tmp_path, "run-c", cpus=2)) as third:
        assert third.cpuset == "0-1"
    second.release()
    assert ledger.held() == ()


@pytest.mark.usefixtures("cpus")
def test_a_refusal_says_what_is_asked_what_is_free_and_who_holds_it(tmp_path: Path) -> None:
    ledger = _ledger(tmp_path)
    with ledger.reserve(_claim(tmp_path, memory=3.5 * GIB)):
        with pytest.raises(GateRefusedError) as refusal:
            ledger.reserve(_claim(tmp_path, "run-b", cpus=2, memory=2 * GIB))
        assert str(refusal.value) == (
            "run-b (replay) asks for 2 CPUs (1 free) and 2 GiB of memory (512 MiB free); "
            f"reserved by run-a (replay, pid {os.getpid()})"
        )
        assert "orch status" in refusal.value.remedy
        assert [held.run_id for held in ledger.held()] == ["run-a"]


@pytest.mark.usefixtures("cpus")
@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"cpus": 2.5}, r"3 CPUs \(2 in all\)"),
        ({"memory": 5 * GIB}, r"5 GiB of memory \(4 GiB in all\)"),
        ({"disk": 2.0**60}, r"of disk at .* in all"),
    ],
    ids=["cpus", "memory", "disk"],
)
def test_more_than_the_host_has_is_said_so(
    tmp_path: Path, asked: dict[str, float], says: str
) -> None:
    with pytest.raises(GateRefusedError, match=f"can never start on this host: .*{says}"):
        _ledger(tmp_path).reserve(_claim(tmp_path, **asked))


def test_fewer_permitted_cpus_than_capacity_limit_a_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5})
    with pytest.raises(GateRefusedError, match=r"2 CPUs \(1 in all\)"):
        _ledger(tmp_path, cpus=8).reserve(_claim(tmp_path, cpus=2))


def test_promised_disk_counts_until_it_is_allocated(tmp_path: Path) -> None:
    found = os.statvfs(tmp_path)
    free = found.f_bavail * found.f_frsize
    ledger = _ledger(tmp_path)
    large = int(free * 0.6)
    first = ledger.reserve(_claim(tmp_path, memory=0, disk=large))
    with pytest.raises(GateRefusedError, match=r"of disk at .* free.*reserved by run-a"):
        ledger.reserve(_claim(tmp_path / "not" / "yet", "run-b", memory=0, disk=large))
    first.allocated(large)
    assert [held.disk for held in ledger.held()] == [0]
    ledger.reserve(_claim(tmp_path, "run-b", memory=0, disk=large)).release()
    first.release()
    with pytest.raises(ValueError, match="was released"):
        first.allocated(1)


def test_the_folder_is_for_every_user(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        with _ledger(tmp_path).reserve(_claim(tmp_path)):
            folder = tmp_path / "host" / "ledger"
            for made in (folder, folder.parent):
                assert stat.S_IMODE(made.stat().st_mode) == 0o1777
            modes = {stat.S_IMODE(p.stat().st_mode) for p in folder.iterdir() if p.is_file()}
            assert modes == {0o666}
    finally:
        os.umask(old)


def test_looking_makes_nothing(tmp_path: Path) -> None:
    assert _ledger(tmp_path).held() == ()
    assert not (tmp_path / "host").exists()


def test_what_a_dead_holder_or_a_stranger_left_counts_for_nothing(tmp_path: Path) -> None:
    ledger = _ledger(tmp_path)
    ledger.reserve(_claim(tmp_path)).release()
    dead = tmp_path / "host" / "ledger" / "0.reservation"
    dead.write_bytes(b"{")
    os.mkfifo(tmp_path / "host" / "ledger" / "1.reservation")
    (tmp_path / "host" / "ledger" / "2.reservation").mkdir()
    (tmp_path / "host" / "ledger" / "3.reservation").symlink_to(dead)
    assert ledger.held() == ()
    assert dead.exists()
    ledger.reserve(_claim(tmp_path, memory=4 * GIB)).release()
    assert not dead.exists()


def test_a_living_record_that_cannot_be_read_is_not_free(tmp_path: Path) -> None:
    ledger = _ledger(tmp_path)
    with ledger.reserve(_claim(tmp_path)):
        (record,) = (tmp_path / "host" / "ledger").glob("*.reservation")
        record.write_bytes(b'{"run_id": "\\u001b[31m"}')
        with pytest.raises(GateRefusedError, match="cannot be read"):
            ledger.reserve(_claim(tmp_path, "run-b"))


def _hold(tmp_path: Path, ready: Connection) -> None:
    reservation = _ledger(tmp_path).reserve(_claim(tmp_path, "victim", memory=4 * GIB))
    ready.send(reservation.cpuset)
    signal.pause()


def test_QU_06_a_killed_holders_reservation_is_free_at_once(tmp_path: Path) -> None:
    ours, theirs = FORK.Pipe()
    child = FORK.Process(target=_hold, args=(tmp_path, theirs))
    child.start()
    assert ours.recv()
    assert child.pid
    ledger = _ledger(tmp_path)
    with pytest.raises(GateRefusedError, match=rf"victim \(replay, pid {child.pid}\)"):
        ledger.reserve(_claim(tmp_path))
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    ledger.reserve(_claim(tmp_path, memory=4 * GIB)).release()


def _race(index: int, tmp_path: Path, start: Barrier, both: Barrier, results: Connection) -> None:
    ledger = _ledger(tmp_path)
    start.wait()
    try:
        reservation = ledger.reserve(_claim(tmp_path, f"run-{index}", memory=3 * GIB))
    except GateRefusedError:
        both.wait()
        results.send((index, False))
    else:
        both.wait()
        reservation.release()
        results.send((index, True))


def test_of_two_that_race_exactly_one_wins(tmp_path: Path) -> None:
    for _ in range(20):
        start, both = FORK.Barrier(2), FORK.Barrier(2)
        pipes = [FORK.Pipe() for _ in range(2)]
        racers = [
            FORK.Process(target=_race, args=(index, tmp_path, start, both, pipes[index][1]))
            for index in range(2)
        ]
        for racer in racers:
            racer.start()
        won = sorted(pipe[0].recv()[1] for pipe in pipes)
        for racer in racers:
            racer.join()
        assert won == [False, True]


@pytest.mark.parametrize(
    ("cpus_held", "text"),
    [((), ""), ((3,), "3"), ((0, 1), "0-1"), ((7, 0, 2, 1, 5, 4), "0-2,4-5,7")],
)
def test_cpu_lists_are_the_kernels(cpus_held: tuple[int, ...], text: str) -> None:
    assert cpu_list(cpus_held) == text


def test_bytes_are_said_for_people() -> None:
    assert [human(n) for n in (0, 1536, 5 * GIB, 3 * 1024**4)] == [
        "0 B", "1.5 KiB", "5 GiB", "3 TiB",
    ]  # fmt: skip


_HEIR = """\
import sys
from pathlib import Path
from orchestrator.storage.ledger import Capacity, Ledger
from tests.unit.records_help import TickingClock

folder, *numbers = sys.argv[1:]
sys.stdin.readline()
ledger = Ledger(Path(folder), Capacity(2, 1 << 32), TickingClock())
with ledger.inherit(map(int, numbers)) as held:
    same = sorted(map(str, held.descriptors)) == sorted(numbers)
    print(held.cpuset, *held.gpus, same, flush=True)
    sys.stdin.readline()
"""


@pytest.mark.usefixtures("cpus")
@pytest.mark.parametrize("dies", [True, False], ids=["killed", "left"])
def test_a_child_that_inherits_the_locks_has_the_reservation_after_its_holder(
    tmp_path: Path, dies: bool
) -> None:
    ledger = _ledger(tmp_path)
    ledger.make_folder()
    taken = ledger.devices.take("GPU-1/a", "run-a", Phase.REPLAY)
    assert isinstance(taken, DeviceLock)
    held = ledger.reserve(_claim(tmp_path, cpus=2))
    held.add((taken,))
    assert len(held.descriptors) == 2
    words = [sys.executable, "-c", _HEIR, tmp_path / "host" / "ledger", *held.descriptors]
    with subprocess.Popen(
        list(map(str, words)),
        pass_fds=held.descriptors,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as heir:
        assert heir.stdin is not None
        assert heir.stdout is not None
        if dies:
            for descriptor in held.descriptors:
                os.close(descriptor)  # as the kernel does when a process dies
        else:
            with pytest.raises(ContainerLeftRunning), held:
                raise ContainerLeftRunning("it runs on")
            assert held.descriptors == ()
        assert [h.pid for h in ledger.held()] == [os.getpid()]
        with pytest.raises(GateRefusedError, match="0 free"):
            ledger.reserve(_claim(tmp_path, "run-b"))
        heir.stdin.write("inherit\n")
        heir.stdin.flush()
        assert heir.stdout.readline() == "0-1 GPU-1/a True\n"
        (now,) = ledger.held()
        assert (now.run_id, now.pid, now.gpus) == ("run-a", heir.pid, ("GPU-1/a",))
        lease = ledger.devices.take("GPU-1/a", "run-b", Phase.SCORE)
        assert isinstance(lease, Lease)
        assert (lease.run_id, lease.pid, lease.phase) == ("run-a", heir.pid, Phase.REPLAY)
        heir.communicate("release\n")
    assert heir.returncode == 0
    assert ledger.held() == ()
    assert ledger.devices.holder("GPU-1/a") is None


def test_a_reservation_that_was_given_back_is_not_inherited(tmp_path: Path) -> None:
    ledger = _ledger(tmp_path)
    held = ledger.reserve(_claim(tmp_path))
    kept = [os.dup(descriptor) for descriptor in held.descriptors]
    held.release()
    assert held.descriptors == ()
    with pytest.raises(GateRefusedError, match="not the locks of one reservation"):
        ledger.inherit(kept)
    for descriptor in kept:
        os.close(descriptor)


def test_released_once_a_device_is_free_whoever_else_has_its_descriptor(tmp_path: Path) -> None:
    ledger = _ledger(tmp_path)
    ledger.make_folder()
    lock = ledger.devices.take("GPU-1", "run-a", Phase.REPLAY)
    assert isinstance(lock, DeviceLock)
    assert lock.descriptor is not None
    watchdogs = os.dup(lock.descriptor)
    lock.release()
    lock.release()
    again = ledger.devices.take("GPU-1", "run-b", Phase.REPLAY)
    assert isinstance(again, DeviceLock)
    again.release()
    os.close(watchdogs)


@pytest.mark.usefixtures("cpus")
def test_a_device_stays_its_holders_when_the_file_of_its_lock_is_removed(tmp_path: Path) -> None:
    ledger, other = _ledger(tmp_path), _ledger(tmp_path)
    with ledger.reserve(_claim(tmp_path)) as held:
        lock = ledger.devices.take("GPU-1", "run-a", Phase.REPLAY)
        assert isinstance(lock, DeviceLock)
        held.add((lock,))
        (file,) = (tmp_path / "host" / "ledger").glob("*.device")
        for remove in (True, False):  # gone, and then made again by whoever asked
            if remove:
                file.unlink()
            for found in (
                other.devices.holder("GPU-1"),
                other.devices.take("GPU-1", "b", Phase.REPLAY),
            ):
                assert isinstance(found, Lease)
                assert (found.run_id, found.pid) == ("run-a", os.getpid())
    assert other.devices.holder("GPU-1") is None
    again = other.devices.take("GPU-1", "b", Phase.REPLAY)
    assert isinstance(again, DeviceLock)
    again.release()


def test_a_mark_keeps_a_device_from_use_until_the_host_restarts(tmp_path: Path) -> None:
    ledger = _ledger(tmp_path)
    ledger.make_folder()
    assert ledger.devices.mark("GPU-1", "boot-1") is None
    ledger.devices.mark_unusable("GPU-1", "it was lost", "boot-1")
    found = ledger.devices.mark("GPU-1", "boot-1")
    assert found is not None
    assert found.reason == "it was lost"
    assert ledger.devices.mark("GPU-1", "boot-2") is None
    assert ledger.devices.mark("GPU-2", "boot-1") is None
    ledger.devices.where("GPU-1").write_text("{")
    with pytest.raises(GateRefusedError, match="cannot be read"):
        ledger.devices.mark("GPU-1", "boot-1")


def test_a_second_user_opens_what_the_first_has_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = _ledger(tmp_path)
    ledger.reserve(_claim(tmp_path)).release()
    lock = ledger.devices.take("GPU-1", "run-a", Phase.REPLAY)
    assert isinstance(lock, DeviceLock)
    lock.release()
    ledger.devices.mark_unusable("GPU-1", "it was lost", "boot-1")
    true_open = os.open

    def protected(path: os.PathLike[str] | str, flags: int, *rest: int) -> int:
        """Refuse what fs.protected_regular does in a sticky folder."""
        if flags & os.O_CREAT and not flags & os.O_EXCL and Path(path).exists():
            raise PermissionError(13, "Permission denied", str(path))
        return true_open(path, flags, *rest)

    monkeypatch.setattr(os, "open", protected)
    ledger.reserve(_claim(tmp_path)).release()
    again = ledger.devices.take("GPU-1", "run-b", Phase.REPLAY)
    assert isinstance(again, DeviceLock)
    again.release()
    ledger.devices.mark_unusable("GPU-1", "it was lost again", "boot-1")
