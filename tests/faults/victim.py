"""Be ``orch`` and be hit: this process alone is patched, then the real command line is called.

``python -m tests.faults.victim DOOR SPEC WORDS...``; SPEC is a case, or ``record`` to be hit by
nothing and say which points were passed. DOOR is the driver's socket: what was met and done is told
there, and what others do (cut the engine off, remove containers, fill the disk) is asked for there.
"""

import errno
import os
import signal
import socket
import stat
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.adapters.docker_container import DockerContainer
from orchestrator.cli.app import main
from orchestrator.lifecycle.machine import Event
from orchestrator.ports import LogSink
from orchestrator.sandbox import PHASE_LABEL
from orchestrator.storage.journal import Journal, Record
from tests.faults.points import CONTAINERS, Fault, Point, When, read_case
from tests.faults.processes import kill_all

RECORD = "record"


class Door:
    """The driver's ear: one line a call, answered when it has been dealt with."""

    def __init__(self, path: str) -> None:
        self._path = path

    def tell(self, line: str) -> None:
        """Say one line and wait for the answer."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as call:
            call.connect(self._path)
            call.sendall(line.encode() + b"\n")
            call.recv(1)


class Victim:
    """Counts the points that are met, and strikes at one."""

    def __init__(self, door: Door, spec: str) -> None:
        self._door = door
        self._case = None if spec == RECORD else read_case(spec)
        self._met: Counter[tuple[str, str]] = Counter()

    def pass_before(self, kind: Any, event: str) -> int:
        """Meet the point before an event; return the event's number."""
        self._met[kind, event] += 1
        number = self._met[kind, event]
        self._meet(Point(kind, event, number, When.BEFORE))
        return number

    def pass_after(self, kind: Any, event: str, number: int) -> None:
        """Meet the point after an event."""
        self._meet(Point(kind, event, number, When.AFTER))

    def pass_during(self, kind: Any, name: str) -> None:
        """Meet a container that runs."""
        self._met[kind, name] += 1
        self._meet(Point(kind, name, self._met[kind, name], When.DURING))

    def _meet(self, point: Point) -> None:
        if self._case is None:
            self._door.tell(f"met {point}")
        elif point == self._case.point:
            self._door.tell(f"met {point}")
            self._strike(self._case.fault)

    def _strike(self, fault: Fault) -> None:
        match fault:
            case Fault.KILL9:
                os.kill(os.getpid(), signal.SIGKILL)
            case Fault.KILL9_BOTH:
                kill_all(os.environ)
                os.kill(os.getpid(), signal.SIGKILL)
            case Fault.SIGTERM:
                os.kill(os.getpid(), signal.SIGTERM)
            case Fault.ENGINE_CUT | Fault.REMOVED | Fault.DISK_FULL:
                self._door.tell(fault)
            case Fault.ENOSPC:
                self._fail_once(errno.ENOSPC, ("write", "pwrite", "posix_fallocate"))
            case Fault.EIO:
                self._fail_once(errno.EIO, ("fsync", "fdatasync"))

    def _fail_once(self, code: int, names: tuple[str, ...]) -> None:
        """Let the next call of one of these functions on a file of the runs folder fail."""
        real = {name: getattr(os, name) for name in names}
        runs = os.environ["ORCH_RUNS"]

        def failing(name: str) -> Callable[..., Any]:
            def call(descriptor: int, *rest: Any) -> Any:
                where = Path(f"/proc/self/fd/{descriptor}").readlink()
                kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
                if kind not in {stat.S_IFREG, stat.S_IFDIR} or not where.is_relative_to(runs):
                    return real[name](descriptor, *rest)
                for other, function in real.items():
                    setattr(os, other, function)
                self._door.tell(f"failed {name} {where}")
                raise OSError(code, os.strerror(code))

            return call

        for name in names:
            setattr(os, name, failing(name))


def patch(victim: Victim) -> None:
    """Put the victim's eyes into the journal and into the start of containers."""
    append, start = Journal.append, DockerContainer.start

    def watched_append(journal: Journal, event: Event, /, **data: Any) -> Record:
        number = victim.pass_before(journal._kind, event)
        record = append(journal, event, **data)
        victim.pass_after(journal._kind, event, number)
        return record

    def watched_start(container: DockerContainer, sink: LogSink) -> None:
        start(container, sink)
        victim.pass_during(*CONTAINERS[container.labels[PHASE_LABEL]])

    Journal.append = watched_append  # type: ignore[method-assign]
    DockerContainer.start = watched_start  # type: ignore[method-assign]


if __name__ == "__main__":
    door, spec, *words = sys.argv[1:]
    sys.argv = ["orch", *words]
    patch(Victim(Door(door), spec))
    main()
