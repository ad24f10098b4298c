"""The relay that joins a container's loopback to a socket, run on the host."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from orchestrator.config import bundled

RELAY = bundled("harness") / "relay.py"
LARGE = os.urandom(1024) * 2048


@contextmanager
def free_port() -> Iterator[int]:
    """Keep a port without listening: nobody else is given it, and the relay may bind it as well."""
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        yield kept.getsockname()[1]


@contextmanager
def listening(folder: Path, serve: Callable[[socket.socket], None]) -> Iterator[Path]:
    """Listen on a unix socket; each connection gets a thread."""
    path = folder / "model.sock"
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen(256)

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield path
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


def echo_when_all_is_said(connection: socket.socket) -> None:
    """Answer only once the other side has ended its half."""
    with connection, suppress(OSError):
        connection.sendall(read_all(connection))


def read_all(connection: socket.socket) -> bytes:
    data = b""
    while piece := connection.recv(65536):
        data += piece
    return data


@contextmanager
def relay(path: Path, *command: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    with free_port() as port:
        child = subprocess.Popen(
            [sys.executable, "-I", str(RELAY), str(port), str(path), *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield child, port
        finally:
            child.kill()
            child.communicate()


def connect(port: int) -> socket.socket:
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=60)
        except ConnectionRefusedError:
            threading.Event().wait(0.02)


def test_each_side_hears_the_other_to_its_end(tmp_path: Path) -> None:
    with (
        listening(tmp_path, echo_when_all_is_said) as path,
        relay(path) as (_, port),
        connect(port) as end,
    ):
        sending = threading.Thread(target=lambda: (end.sendall(LARGE), end.shutdown(1)))
        sending.start()
        assert read_all(end) == LARGE
        sending.join()


def test_many_connections_go_through_at_once(tmp_path: Path) -> None:
    with listening(tmp_path, echo_when_all_is_said) as path, relay(path) as (child, port):
        ends = [connect(port) for _ in range(100)]
        for number, end in enumerate(ends):
            end.sendall(f"this is {number}".encode())
        for end in ends:
            end.shutdown(socket.SHUT_WR)
        for number, end in enumerate(ends):
            assert read_all(end) == f"this is {number}".encode()
            end.close()
        threads = Path(f"/proc/{child.pid}/task")
        assert len(list(threads.iterdir())) == 1


def test_a_relay_that_waits_uses_no_time(tmp_path: Path) -> None:
    with (
        listening(tmp_path, echo_when_all_is_said) as path,
        relay(path) as (child, port),
        connect(port) as idle,
    ):
        idle.sendall(b"half a request")
        with connect(port) as other:
            other.shutdown(socket.SHUT_WR)
            read_all(other)
        before = cpu(child.pid)
        threading.Event().wait(0.5)
        assert cpu(child.pid) - before <= 2


def cpu(pid: int) -> int:
    """Return a process's CPU time in ticks of a hundredth of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_what_breaks_on_one_side_breaks_on_the_other_and_the_rest_goes_on(tmp_path: Path) -> None:
    def hang_up(connection: socket.socket) -> None:
        connection.recv(10)
        connection.close()

    with listening(tmp_path, hang_up) as path, relay(path) as (child, port):
        for _ in range(3):
            with connect(port) as end:
                end.sendall(b"hello")
                assert end.recv(10) == b""
        child.terminate()
        _, said = child.communicate(timeout=60)
    assert said == ""


def test_no_socket_is_a_server_that_hangs_up(tmp_path: Path) -> None:
    with relay(tmp_path / "missing.sock") as (child, port):
        with connect(port) as end:
            assert end.recv(10) == b""
        assert child.poll() is None


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137)],
)
def test_the_relay_ends_with_the_code_of_its_command(
    script: str, code: int, tmp_path: Path
) -> None:
    with relay(tmp_path / "none.sock", "sh", "-c", f"echo out; {script}") as (child, _):
        out, said = child.communicate(timeout=60)
    assert (child.returncode, out, said) == (code, "out\n", "")


def test_the_command_finds_the_port_open(tmp_path: Path) -> None:
    look = (
        "import socket,sys;s=socket.create_connection(('127.0.0.1',int(sys.argv[1])));"
        "s.sendall(b'hi');s.shutdown(1);print(s.recv(10).decode())"
    )
    with free_port() as port, listening(tmp_path, echo_when_all_is_said) as path:
        done = subprocess.run(
            [sys.executable, RELAY, str(port), path, sys.executable, "-c", look, str(port)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, "hi\n", "")


def test_a_wish_to_end_reaches_the_command(tmp_path: Path) -> None:
    script = "trap 'echo asked; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    with relay(tmp_path / "none.sock", "sh", "-c", script) as (child, _):
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGTERM)
        out, _ = child.communicate(timeout=60)
    assert (child.returncode, out) == (3, "asked\n")


def test_what_cannot_be_done_is_said_in_a_line(tmp_path: Path) -> None:
    with relay(tmp_path / "none.sock", "/no/such/program") as (child, _):
        _, said = child.communicate(timeout=60)
    assert (child.returncode, said) == (127, "relay: /no/such/program: No such file or directory\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [sys.executable, RELAY, str(taken.getsockname()[1]), "x"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "address already in use" in done.stderr.lower()
    done = subprocess.run([sys.executable, RELAY], capture_output=True, text=True, check=False)
    assert done.returncode == 64
