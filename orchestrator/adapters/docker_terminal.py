"""Joins the caller's terminal, or a pipe, to a command inside a container."""

import os
import selectors
import socket
import sys
import termios
import tty as terminal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from orchestrator.adapters.docker_api import FRAME, DockerApi
from orchestrator.adapters.docker_exec import Command, create_exec, exit_code

_CHUNK = 65536
_TICK_S = 0.5
_WENT_AWAY = 137  # what a shell says of a command that was killed


def join_terminal(api: DockerApi, container_id: str, command: Command) -> int:
    """Run ``command`` joined to our stdin and stdout; return its exit code.

    On a terminal the command gets one too and ours goes into raw mode, so that keys such as
    Ctrl-C reach the command; it is put back whatever happens. A pipe is passed on to its end.
    When the container ends under the command, its exit code is 137.
    """
    stdin = sys.stdin.fileno()
    tty = os.isatty(stdin)
    exec_id = create_exec(api, container_id, command, stdin=True, tty=tty)
    with api.hijack(exec_id, tty=tty) as wire:
        if tty:
            with _raw_mode(stdin):
                _pump(wire, stdin, _write, _TerminalSize(api, exec_id, stdin).follow)
        else:
            _pump(wire, stdin, _Unframed().take, _nothing)
    code = exit_code(api, exec_id, _no_limit)
    return _WENT_AWAY if code is None else code


def _nothing() -> None:
    """Do nothing: a pipe has no size to follow."""


def _no_limit() -> None:
    """Wait for the exit code as long as it takes."""


@contextmanager
def _raw_mode(descriptor: int) -> Iterator[None]:
    before = termios.tcgetattr(descriptor)
    terminal.setraw(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)


class _TerminalSize:
    """Tells the engine our terminal's size, by looking: only a main thread may catch SIGWINCH."""

    def __init__(self, api: DockerApi, exec_id: str, descriptor: int) -> None:
        self._api = api
        self._exec_id = exec_id
        self._descriptor = descriptor
        self._told: os.terminal_size | None = None

    def follow(self) -> None:
        size = os.get_terminal_size(self._descriptor)
        if size != self._told:
            query = {"h": str(size.lines), "w": str(size.columns)}
            self._api.call("POST", f"/exec/{self._exec_id}/resize", query=query)
            self._told = size


def _pump(
    wire: socket.socket, stdin: int, on_output: Callable[[bytes], None], tick: Callable[[], None]
) -> None:
    """Copy both ways until the command's side ends; our side may end before."""
    with selectors.SelectSelector() as ready:
        ready.register(wire, selectors.EVENT_READ)
        ready.register(stdin, selectors.EVENT_READ)
        while True:
            tick()
            for key, _ in ready.select(_TICK_S):
                data = os.read(key.fd, _CHUNK)
                if key.fd != stdin:
                    if not data:
                        return
                    on_output(data)
                elif data:
                    wire.sendall(data)
                else:
                    ready.unregister(stdin)
                    wire.shutdown(socket.SHUT_WR)


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


class _Unframed:
    """Takes the framed output of a command without a tty and writes what is in the frames."""

    def __init__(self) -> None:
        self._pending = b""

    def take(self, data: bytes) -> None:
        self._pending += data
        while len(self._pending) >= FRAME.size:
            _, length = FRAME.unpack_from(self._pending)
            end = FRAME.size + length
            if len(self._pending) < end:
                return
            _write(self._pending[FRAME.size : end])
            self._pending = self._pending[end:]
