"""Runs one command inside a running container."""

from collections.abc import Callable, Mapping
from concurrent import futures
from contextlib import closing
from dataclasses import dataclass
from threading import Event

from orchestrator.adapters.background import in_background
from orchestrator.adapters.docker_api import ConflictError, DockerApi, Stream
from orchestrator.adapters.system_clock import SystemClock
from orchestrator.domain.container import ExecResult
from orchestrator.errors import ContainerLostError

_CUT_OFF = ExecResult(exit_code=None, output=b"", truncated=False, timed_out=False, seconds=0.0)
_FIRST_LOOK_S = 0.005
_LAST_LOOK_S = 0.5
_LONGEST_LINE = 4 * 1024**2


@dataclass(frozen=True, slots=True)
class Command:
    """What to run inside a container, and as whom; ``workdir`` "" means the container's own."""

    argv: tuple[str, ...]
    user: str
    env: Mapping[str, str]
    workdir: str = ""


class CappedOutput:
    """Keeps the first ``limit`` bytes of what it is given and hands all of it on."""

    def __init__(self, limit: int, on_output: Callable[[bytes], None] | None) -> None:
        self._limit = limit
        self._on_output = on_output
        self._kept = bytearray()
        self.truncated = False

    def take(self, data: bytes) -> None:
        """Take a piece of output."""
        room = self._limit - len(self._kept)
        self._kept += data[:room]
        self.truncated = self.truncated or len(data) > room
        if self._on_output is not None:
            self._on_output(data)

    @property
    def kept(self) -> bytes:
        """What was kept."""
        return bytes(self._kept)


def create_exec(
    api: DockerApi,
    container_id: str,
    command: Command,
    *,
    stdin: bool = False,
    tty: bool = False,
) -> str:
    """Prepare a command and return its exec id; errors as ``DockerApi.call``."""
    body = {
        "Cmd": list(command.argv),
        "User": command.user,
        "Env": [f"{name}={value}" for name, value in command.env.items()],
        "WorkingDir": command.workdir,
        "Tty": tty,
        "AttachStdin": stdin,
        "AttachStdout": True,
        "AttachStderr": True,
    }
    created = api.call("POST", f"/containers/{container_id}/exec", body=body)
    return str(created["Id"])


def run(
    api: DockerApi,
    container_id: str,
    command: Command,
    timeout: float | None,
    output: CappedOutput,
) -> ExecResult:
    """Run ``command`` and wait for it; see ``ports.Container.execute``.

    A container that has ended or is paused cuts the command off: its ``exit_code`` is None.
    """
    clock = SystemClock()
    began = clock.boottime_ns()

    def elapsed() -> float:
        return (clock.boottime_ns() - began) / 1e9

    def left() -> float | None:
        return None if timeout is None else max(0.0, timeout - elapsed())

    try:
        exec_id = create_exec(api, container_id, command)
        stream = api.stream("POST", f"/exec/{exec_id}/start", body={"Detach": False, "Tty": False})
    except ConflictError:
        return _CUT_OFF
    reader = in_background("exec-output", lambda: _read(stream, output))
    done, _ = futures.wait({reader}, left())
    if not done:
        stream.interrupt()
    reader.result()
    code = exit_code(api, exec_id, left) if done else None
    return ExecResult(
        exit_code=code,
        output=output.kept,
        truncated=output.truncated,
        timed_out=code is None and left() == 0.0,
        seconds=elapsed(),
    )


def _read(stream: Stream, output: CappedOutput) -> None:
    """Take what a command prints; what it says on one stream is no part of a line on the other."""
    begun: dict[str, bytearray] = {}
    with closing(stream.frames()) as frames:
        for name, data in frames:
            line = begun.setdefault(name, bytearray())
            whole, end, rest = data.rpartition(b"\n")
            line += whole + end
            if line and (end or len(line) + len(rest) > _LONGEST_LINE):
                output.take(bytes(line))
                line.clear()
            line += rest
    for line in filter(None, begun.values()):
        output.take(bytes(line))


def exit_code(api: DockerApi, exec_id: str, left: Callable[[], float | None]) -> int | None:
    """Ask how it ended: a command may close its output long before, the engine tells just after."""
    delay = _FIRST_LOOK_S
    while True:
        try:
            state = api.call("GET", f"/exec/{exec_id}/json")
        except (ContainerLostError, ConflictError):
            return None  # the container went, and the command with it
        if not state["Running"]:
            code: int | None = state["ExitCode"]
            return code
        remaining = left()
        if remaining == 0.0:
            return None
        Event().wait(delay if remaining is None else min(delay, remaining))
        delay = min(2 * delay, _LAST_LOOK_S)
