import ctypes
import os
import pwd
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.adapters.in_memory_processes import InMemoryProcesses
from orchestrator.adapters.process_table import HostProcesses
from orchestrator.domain.process import ProcessFacts
from orchestrator.ports import ProcessTable

OURS = "0123456789abcdef" * 4
OTHER = "fedcba9876543210" * 4
STAT = "{pid} ({name}) {state} 41 7 7 0 -1 0 98 0 0 0 120 30 0 0 20 0 {threads} 0 700 31 3"


def _process(
    root: Path,
    pid: int,
    cgroup: str,
    *,
    name: str = "python",
    state: str = "S",
    threads: int = 1,
    command: bytes = b"python\0train.py\0",
    inner: str | None = None,
) -> None:
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True)
    (folder / "stat").write_text(STAT.format(pid=pid, name=name, state=state, threads=threads))
    (folder / "status").write_text(
        f"Name:\t{name}\nUid:\t1\t4242424\t1\t1\nNSpid:\t{inner or pid}\n"
    )
    (folder / "cmdline").write_bytes(command)
    (folder / "cgroup").write_text(cgroup)


def _listing(root: Path, group: str, *pids: int) -> None:
    folder = root / "sys/fs/cgroup" / group
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))


def test_what_a_process_tells(tmp_path: Path) -> None:
    _process(tmp_path, 7, f"9:memory:/docker/{OURS}\n0::/docker/{OURS}\n", inner="7\t3")
    found = HostProcesses(tmp_path).facts(7)
    tick = os.sysconf("SC_CLK_TCK")
    assert found == ProcessFacts(
        pid=7,
        ppid=41,
        started_ns=700 * 10**9 // tick,
        command="python train.py",
        user="4242424",
        cgroup=f"/docker/{OURS}",
        container=OURS,
        foreign_pids=True,
        inner_pid=3,
        cpu_s=150 / tick,
    )


@pytest.mark.parametrize(
    ("lines", "cgroup", "container"),
    [
        (f"0::/system.slice/docker-{OURS}.scope\n", f"/system.slice/docker-{OURS}.scope", OURS),
        (f"0::/machine.slice/libpod-{OURS}.scope/container\n", None, OURS),
        (f"0::/../docker/{OTHER}/docker/{OURS}\n", None, OURS),
        (f"0::/\n4:memory:/docker/{OURS}\n1:name=systemd:/x\n", f"/docker/{OURS}", OURS),
        (f"9:pids:/a\n4:memory:/b\n0::/{OURS}\n", f"/{OURS}", OURS),
        ("9:pids:/a\n4:memory:/b\n0::/c\n", "/b", None),
        ("9:pids:/a\n4:memory:/\n0::/\n", "/a", None),
        ("0::/user.slice/session-3.scope\n", "/user.slice/session-3.scope", None),
        (f"0::/docker/{OURS}0\n", f"/docker/{OURS}0", None),
        ("0::/\n", "/", None),
        ("", None, None),
    ],
)
def test_the_container_that_a_cgroup_names(
    tmp_path: Path, lines: str, cgroup: str | None, container: str | None
) -> None:
    _process(tmp_path, 7, lines)
    found = HostProcesses(tmp_path).facts(7)
    assert found.container == container
    if cgroup is not None or not lines:
        assert found.cgroup == cgroup


def test_a_process_whose_first_thread_has_ended_is_where_its_others_are(tmp_path: Path) -> None:
    _process(tmp_path, 7, "4:memory:/\n0::/\n", state="Z", threads=2, command=b"")
    for thread, cgroup, command in (("7", "/", b""), ("9", f"/docker/{OURS}", b"a\0b\0")):
        folder = tmp_path / "proc/7/task" / thread
        folder.mkdir(parents=True)
        (folder / "cgroup").write_text(f"4:memory:{cgroup}\n")
        (folder / "cmdline").write_bytes(command)
    found = HostProcesses(tmp_path).facts(7)
    assert (found.container, found.command, found.ended) == (OURS, "a b", False)


def test_one_that_waits_for_its_parent_has_ended(tmp_path: Path) -> None:
    _process(tmp_path, 7, "0::/a\n", state="Z", name="sh (x) R", command=b"")
    found = HostProcesses(tmp_path).facts(7)
    assert (found.ended, found.command, found.ppid) == (True, "[sh (x) R]", 41)


def test_a_command_line_is_one_bounded_line(tmp_path: Path) -> None:
    hostile = "\x1b[2J\n\u202e\x9b\udc80".encode("utf-8", "surrogatepass") + b"\xff" + b"x" * 500
    _process(tmp_path, 7, "0::/a\n", command=b"a\0" + hostile)
    command = HostProcesses(tmp_path).facts(7).command
    assert command is not None
    assert len(command) == 200
    assert command.startswith("a \ufffd[2J\ufffd\ufffd\ufffd")
    assert not {"\x1b", "\n", "\u202e", "\x9b", "\udc80"} & set(command)


def test_one_that_is_gone_has_nothing_but_its_pid(tmp_path: Path) -> None:
    assert HostProcesses(tmp_path).facts(7) == ProcessFacts(7)
    assert HostProcesses().facts(2**31 - 1) == ProcessFacts(2**31 - 1)


@pytest.mark.parametrize(
    "group",
    [
        f"memory/docker/{OURS}",
        f"system.slice/docker-{OURS}.scope",
        f"machine.slice/libpod-{OURS}.scope",
        f"memory/kubepods/pod7/cri-{OURS}.scope",
        f"pods.slice/deep/er/{OURS}",
    ],
)
def test_the_processes_of_a_container(tmp_path: Path, group: str) -> None:
    for pid in (7, 8, 9):
        _process(tmp_path, pid, f"0::/{group}\n")
    _listing(tmp_path, group, 8, 7, 0, 12)  # 0: not of this pid namespace; 12: gone meanwhile
    _listing(tmp_path, f"{group}/below", 9)
    found = HostProcesses(tmp_path).of_container(OURS)
    assert [process.pid for process in found] == [7, 8, 9]
    assert HostProcesses(tmp_path).pids_of(OURS) == {7, 8, 9, 12}


def test_a_container_that_is_not_there_has_no_processes(tmp_path: Path) -> None:
    table = HostProcesses(tmp_path)
    assert table.of_container(OURS) == ()
    _listing(tmp_path, f"memory/docker/{OTHER}", 7)
    assert table.of_container(OTHER) == ()
    assert table.of_container("../..") == ()
    _process(tmp_path, 7, "0::/a\n")
    _listing(tmp_path, f"memory/docker/{OURS}", 7)
    assert [process.pid for process in table.of_container(OURS)] == [7]


def test_a_list_that_does_not_read_is_left_out(tmp_path: Path) -> None:
    _listing(tmp_path, f"docker/{OURS}", 7)
    (tmp_path / "sys/fs/cgroup/docker" / OURS / "cgroup.procs").unlink()
    assert HostProcesses(tmp_path).of_container(OURS) == ()


@contextmanager
def _child(*argv: str) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_process_of_this_host() -> None:
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    with _child("sh", "-c", "read x", "a\x1bb") as process:
        after = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        found = HostProcesses().facts(process.pid)
        assert found.ppid == os.getpid()
        assert found.command == "sh -c read x a\ufffdb"
        assert found.executable is not None
        assert found.user == pwd.getpwuid(os.geteuid()).pw_name
        assert found.foreign_pids is False
        assert found.inner_pid == process.pid
        assert found.started_ns is not None
        tick = 10**9 // os.sysconf("SC_CLK_TCK")
        assert before - tick <= found.started_ns <= after
        assert not found.ended


def test_its_first_thread_may_end_before_the_others() -> None:
    """What proc(5) then shows for the process is not what it shows for a living one."""
    code = (
        "import ctypes, sys, threading, time\n"
        "threading.Thread(target=lambda: (print('on', flush=True), time.sleep(60))).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    assert ctypes.CDLL(None).pthread_exit
    with _child(sys.executable, "-c", code) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"on\n"
        headless = threading.Event()
        for _ in range(1000):
            if " Z " in Path(f"/proc/{process.pid}/stat").read_text():
                break
            headless.wait(0.01)
        found = HostProcesses().facts(process.pid)
        assert not found.ended
        assert found.command is not None
        assert found.command.startswith(sys.executable[:100])
        assert found.cgroup == HostProcesses().facts(os.getpid()).cgroup


TABLES: Mapping[str, ProcessTable] = {
    "host": HostProcesses(),
    "memory": InMemoryProcesses(ProcessFacts(os.getpid(), ppid=os.getppid())),
}


@pytest.mark.parametrize("kind", TABLES)
def test_both_tables_keep_the_contract(kind: str) -> None:
    table = TABLES[kind]
    assert table.facts(os.getpid()).ppid == os.getppid()
    assert table.facts(2**31 - 1) == ProcessFacts(2**31 - 1)
    assert table.of_container(OTHER) == ()
    assert table.pids_of(OTHER) == frozenset()


def test_the_table_in_memory_changes_as_told() -> None:
    table = InMemoryProcesses()
    table.add(ProcessFacts(8, container=OURS), ProcessFacts(7, container=OURS), ProcessFacts(9))
    assert [p.pid for p in table.of_container(OURS)] == [7, 8]
    assert table.pids_of(OURS) == {7, 8}
    table.add(ProcessFacts(7, container=OURS, ended=True))
    assert table.of_container(OURS)[0].ended
    table.end(7, 12)
    assert [p.pid for p in table.of_container(OURS)] == [8]
    assert table.facts(7) == ProcessFacts(7)


def test_whether_pids_are_the_hosts_own(tmp_path: Path) -> None:
    table = HostProcesses(tmp_path)
    assert not table.sees_host()
    place = tmp_path / "proc/self/ns"
    place.mkdir(parents=True)
    (place / "pid").symlink_to("pid:[4026531836]")
    assert table.sees_host()
    (place / "pid").unlink()
    (place / "pid").symlink_to("pid:[4026532181]")
    assert not table.sees_host()
    assert InMemoryProcesses().sees_host()
