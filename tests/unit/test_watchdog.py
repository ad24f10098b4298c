"""The watchdog by itself, over a folder that is no run and with an adopter that is a script."""

import ast
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from orchestrator import watchdog
from orchestrator.adapters.detached import DetachedGuards
from orchestrator.config import Settings
from orchestrator.storage.supervisor import holders, is_supervised, supervising
from tests.e2e.rig import until

HASTY = (
    "import sys; from orchestrator import watchdog; "
    "watchdog.FIRST_DELAY, watchdog.MAX_LOG = 0.02, 1000; "
    "watchdog.main(sys.argv[1], sys.argv[2], sys.argv[3:])"
)
ADOPTER = """\
import fcntl, json, os, sys
root, told = sys.argv[1], dict(zip(sys.argv[2::2], sys.argv[3::2]))
try:
    fcntl.flock(os.open(root, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    told["lock_is_free"] = True
except BlockingIOError:
    told["lock_is_free"] = False
told["open"] = [os.path.basename(os.readlink("/proc/self/fd/" + n))
                for n in [told["--lock"], *told["--inherited"].split(",")] if n]
told["cwd"] = os.getcwd()
told["streams"] = [os.readlink("/proc/self/fd/%d" % n) for n in range(3)]
with open(root + "/adoptions", "a") as file:
    file.write(json.dumps(told) + "\\n")
print("said by the adopter", "x" * 600)
exec(open(root + "/then").read())
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "replay-001"
    folder.mkdir()
    (folder / "then").write_text("open(root + '/.complete', 'x').close()")
    (tmp_path / "adopter.py").write_text(ADOPTER)
    return folder


Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(root: Path) -> Iterator[Start]:
    """Start a watchdog over ``root``."""
    started: list[subprocess.Popen[bytes]] = []

    def run(*inherited: int) -> "subprocess.Popen[bytes]":
        script = str(root.parent / "adopter.py")
        words = (sys.executable, "-c", HASTY, str(root), ",".join(map(str, inherited)))
        process = subprocess.Popen(
            [*words, sys.executable, script, str(root)],
            pass_fds=inherited,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        with suppress(ProcessLookupError):  # the adopter too, should a test have failed
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _adoptions(root: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (root / "adoptions").read_text().splitlines()]


def _ended(process: "subprocess.Popen[bytes]") -> None:
    _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (0, b"")


def test_it_waits_for_the_supervisor_and_goes_when_the_run_is_committed(
    root: Path, start: Start
) -> None:
    with supervising(root):
        process = start()
        until(lambda: _has_open(process.pid, root.name))
        (root / ".complete").touch()
    _ended(process)
    assert not (root / "adoptions").exists()


def _has_open(pid: int, name: str) -> bool:
    """Tell whether a process has a file open."""
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(entry.readlink().name)
    return name in found


def test_a_dead_supervisors_run_is_adopted_under_its_own_lock_with_what_it_reserved(
    root: Path, start: Start
) -> None:
    kept = os.open(root.parent / "kept.reservation", os.O_RDWR | os.O_CREAT)
    fcntl.flock(kept, fcntl.LOCK_EX)
    with supervising(root):
        process = start(kept)
        until(lambda: _has_open(process.pid, root.name))
    os.close(kept)
    _ended(process)
    (adopted,) = _adoptions(root)
    assert adopted["lock_is_free"] is False
    assert adopted["open"] == [root.name, "kept.reservation"]
    assert adopted["cwd"] == "/"
    assert adopted["streams"] == ["/dev/null", *[str(root / "logs/adopter.log")] * 2]
    assert int(adopted["--since"]) > 0


def test_the_reservation_is_nobody_elses_while_nobody_supervises(root: Path, start: Start) -> None:
    (root / "then").write_text(
        "os.kill(os.getpid(), 9) if not os.path.exists(root + '/go') else "
        "open(root + '/.complete', 'x').close()"
    )
    path = root.parent / "kept.reservation"
    kept = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(kept, fcntl.LOCK_EX)
    process = start(kept)
    os.close(kept)
    until(lambda: (root / "adoptions").exists() and len(_adoptions(root)) > 1)
    other = os.open(path, os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    (root / "go").touch()
    _ended(process)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)


def test_an_adopter_that_dies_is_replaced_and_the_gap_is_counted_from_its_last_word(
    root: Path, start: Start
) -> None:
    (root / "lifecycle.jsonl").write_text("one line\n")
    (root / "then").write_text(
        "n = len(open(root + '/adoptions').readlines())\n"
        "if n == 2: open(root + '/lifecycle.jsonl', 'a').write('adopted')\n"
        "if n == 4: open(root + '/.complete', 'x').close()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    _ended(start())
    since = [int(adopted["--since"]) for adopted in _adoptions(root)]
    assert since[0] == since[1] < since[2] == since[3]


@pytest.mark.parametrize("code", [64, 65])
def test_what_only_a_person_can_mend_is_left_to_one(root: Path, start: Start, code: int) -> None:
    (root / "then").write_text(f"sys.exit({code})")
    _ended(start())
    assert len(_adoptions(root)) == 1
    assert not is_supervised(root)


def test_an_interpreter_that_is_gone_is_said_and_waited_for(root: Path, start: Start) -> None:
    gone = root.parent / "python"
    words = (sys.executable, "-c", HASTY, str(root), "", str(gone), "x", str(root))
    process = subprocess.Popen(words, stderr=subprocess.PIPE)
    log = root / "logs/adopter.log"
    until(lambda: log.exists() and log.read_text().count("cannot be started") > 1)
    (root / ".complete").touch()
    _ended(process)


def test_a_folder_that_vanished_needs_nobody(root: Path, start: Start) -> None:
    with supervising(root):
        process = start()
        until(lambda: _has_open(process.pid, root.name))
        root.rename(root.parent / "away")
    _ended(process)
    assert not (root.parent / "away/adoptions").exists()
    _ended(start())


def test_its_log_does_not_grow_without_end(root: Path, start: Start) -> None:
    (root / "then").write_text(
        "sys.exit(75) if len(open(root + '/adoptions').readlines()) < 5 else "
        "open(root + '/.complete', 'x').close()"
    )
    _ended(start())
    assert len(_adoptions(root)) == 5
    assert (root / "logs/adopter.log").stat().st_size < 3 * 1000


def test_it_says_in_the_lock_file_who_it_is(root: Path, start: Start) -> None:
    (root / "then").write_text(
        "import time\nwhile not os.path.exists(root + '/.complete'): time.sleep(0.01)"
    )
    with supervising(root):
        process = start()
        assert holders(root).supervisor == os.getpid()
    assert until(lambda: holders(root).watchdog) == process.pid
    (root / ".complete").touch()
    _ended(process)
    assert holders(root).watchdog is None


def test_it_is_started_out_of_reach_of_the_terminal_and_holds_nothing_of_its_caller(
    root: Path,
) -> None:
    settings = Settings.from_environment({"ORCH_RUNS": str(root.parent)})
    read, write = os.pipe()
    os.set_inheritable(write, True)  # as one that our own caller had handed us
    with supervising(root):
        pid = DetachedGuards(settings).watch(root, ())
        until(lambda: _has_open(pid, root.name))
        assert os.getsid(pid) == pid != os.getsid(0)
        assert Path(f"/proc/{pid}/cwd").readlink() == Path("/")
        opened = [entry.readlink() for entry in Path(f"/proc/{pid}/fd").iterdir()]
        assert sorted(map(str, opened)) == [*["/dev/null"] * 3, str(root)]
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        assert f"ORCH_RUNS={root.parent}".encode() in environment
        (root / ".complete").touch()
    os.close(read)
    os.close(write)
    until(lambda: not Path(f"/proc/{pid}/cmdline").read_bytes())  # it has ended


def test_it_loads_next_to_nothing() -> None:
    tree = ast.parse(Path(str(watchdog.__file__)).read_text(encoding="utf-8"))
    loaded = {
        name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    assert loaded == {"fcntl", "os", "sys", "time"}
