"""An engine under test, a sink that can be waited on, and what the containers of a test do.

Each behaviour has two spellings: a shell command for the real engine, and a program of the
in-memory one.
"""

import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition

from orchestrator.adapters.in_memory import Inside, Program
from orchestrator.domain.container import ContainerSpec, Limits, Tmpfs
from orchestrator.errors import ContainerLostError
from orchestrator.ports import Container, ContainerEngine, LogSink

KEEP_ALIVE = ("sh", "-c", "echo ready; while :; do sleep 1; done")
TRAP_TERM = ("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done")
BOTH_STREAMS = ("sh", "-c", r"printf 'out\377\n'; printf 'err\000\n' >&2")
WRITE_OUT = ("sh", "-c", "echo data > /out/file")
WRITE_ASSET = ("sh", "-c", "echo data > /assets/file || exit 5")
SLEEP_LONG = ("sh", "-c", "echo begun; sleep 600")


def exit_with(code: int) -> tuple[str, ...]:
    return ("sh", "-c", f"exit {code}")


def _keep_alive(inside: Inside) -> int:
    inside.stdout(b"ready\n")
    inside.until_killed()


def _trap_term(inside: Inside) -> int:
    inside.trapped.add("TERM")
    return _keep_alive(inside)


def _both_streams(inside: Inside) -> int:
    inside.stdout(b"out\xff\n")
    inside.stderr(b"err\x00\n")
    return 0


def _write_out(inside: Inside) -> int:
    inside.write_file("/out/file", b"data\n")
    return 0


def _write_asset(inside: Inside) -> int:
    try:
        inside.write_file("/assets/file", b"data\n")
    except PermissionError:
        return 5
    return 0


_PROGRAMS: Mapping[tuple[str, ...], Program] = {
    KEEP_ALIVE: _keep_alive,
    TRAP_TERM: _trap_term,
    BOTH_STREAMS: _both_streams,
    WRITE_OUT: _write_out,
    WRITE_ASSET: _write_asset,
}


def run_program(inside: Inside) -> int:
    """Do what the container's command says; ``exit_with`` needs no program of its own."""
    program = _PROGRAMS.get(inside.spec.argv)
    return int(inside.spec.argv[-1].split()[1]) if program is None else program(inside)


def run_command(inside: Inside, argv: tuple[str, ...]) -> tuple[int, bytes]:
    if argv == SLEEP_LONG:
        raise TimeoutError
    if argv == BOTH_STREAMS:
        return 0, b"out\xff\nerr\x00\n"
    return int(argv[-1].split()[1]), b""


class Recorder(LogSink):
    """Keeps at most ``limit`` bytes a stream, counts all, and lets a test wait for a text."""

    def __init__(self, limit: int = 1 << 20) -> None:
        self.kept = {"stdout": b"", "stderr": b""}
        self.seen = 0
        self._limit = limit
        self._changed = Condition()

    def write(self, stream: str, data: bytes) -> None:
        with self._changed:
            self.seen += len(data)
            self.kept[stream] += data[: self._limit - len(self.kept[stream])]
            self._changed.notify_all()

    def wait_for(self, text: bytes) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: text in self.kept["stdout"], 60), self.kept


@dataclass
class Rig:
    """An engine, and hands that are not the orchestrator's. ``clean`` removes what a test made."""

    engine: ContainerEngine
    image: str
    kill_by_third_party: Callable[[str], None]
    remove_by_third_party: Callable[[str], None]
    others_kill: str = "KILL"
    """What the engine calls the signal with which somebody else killed a container."""

    def __post_init__(self) -> None:
        self._made: list[Container] = []

    def spec(self, *argv: str, **changes: object) -> ContainerSpec:
        plain: dict[str, object] = {
            "name": f"orch-contract-{uuid.uuid4().hex[:12]}",
            "image": self.image,
            "argv": argv,
            "user": "10001:10001",
            "workdir": "/tmp",
            "mounts": (),
            "tmpfs": (Tmpfs("/tmp", size=1 << 20, inodes=1000),),
            "limits": Limits(cpus=1, memory=256 << 20, shm=1 << 20, pids=128),
            "labels": {"orch.test": uuid.uuid4().hex},
        }
        return ContainerSpec(**(plain | changes))  # type: ignore[arg-type]

    def create(self, *argv: str, **changes: object) -> Container:
        container = self.engine.create(self.spec(*argv, **changes))
        self._made.append(container)
        return container

    def start(self, *argv: str, **changes: object) -> tuple[Container, Recorder]:
        container, recorder = self.create(*argv, **changes), Recorder()
        container.start(recorder)
        return container, recorder

    def clean(self) -> None:
        for container in self._made:
            container.remove()

    def settle(self) -> None:
        """Let the watches of removed containers come to their conclusion."""
        for container in self._made:
            with suppress(ContainerLostError):
                container.wait(60)
