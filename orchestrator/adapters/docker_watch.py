"""Sees one container to its end: output, events and exit, whatever happens to the connection."""

import signal
from collections import deque
from collections.abc import Callable, Mapping
from concurrent import futures
from contextlib import closing
from dataclasses import replace
from threading import Event
from typing import Any, TypeVar

from orchestrator.adapters.background import in_background
from orchestrator.adapters.docker_api import ConflictError, DockerApi, Stream
from orchestrator.domain.container import ContainerEnd, ContainerState, ContainerStatus
from orchestrator.errors import (
    ContainerLostError,
    EngineUnavailableError,
    InfrastructureError,
    OrchError,
)
from orchestrator.ports import LogSink

Answer = TypeVar("Answer")

UNNAMED_SIGNAL = "unnamed"
"""Stands for a signal of somebody else's, where the engine tells of it but not which it was."""

_DRAIN_S = 10.0  # output still on its way when the container has ended
_LAST_EVENTS_S = 2.0  # the `die` event follows the end at once
_OOM_REPORT_S = 0.5
_KILLED = 128 + signal.SIGKILL
_FIRST_RETRY_S = 0.1
_LAST_RETRY_S = 5.0
_STATUS: Mapping[str, ContainerStatus] = {
    **{status.value: status for status in ContainerStatus},
    "configured": ContainerStatus.CREATED,  # these are Podman's words
    "initialized": ContainerStatus.CREATED,
    "stopping": ContainerStatus.RUNNING,
    "stopped": ContainerStatus.EXITED,
}
_NOT_ENDED = frozenset({ContainerStatus.CREATED, ContainerStatus.RUNNING, ContainerStatus.PAUSED})


def inspect(api: DockerApi, container_id: str) -> ContainerState:
    """Inspect a container.

    Raises:
        ContainerLostError: the engine does not know it.
        EngineUnavailableError: the engine does not answer.
    """
    state = api.call("GET", f"/containers/{container_id}/json")["State"]
    status = _STATUS[state["Status"]]
    return ContainerState(
        status=status,
        exit_code=None if status in _NOT_ENDED else state["ExitCode"],
        oom_killed=state["OOMKilled"],
        started_at=state["StartedAt"],
        finished_at=state["FinishedAt"],
        pid=state["Pid"],
        error=state["Error"],
    )


class Watch:
    """Three threads for one container: its output, its events, its end.

    Made before the container starts, so that nothing is missed. The end counts as witnessed when
    the engine announced it while we waited on a container known to run, or when the engine
    process is still the one that started it; a code read after anything else proves nothing.

    Args:
        api: the engine.
        container_id: the engine's full id.
        sink: where output goes; what it raises, ``wait`` raises.
        status: what the container is doing now.
        incarnation: the engine process that started the container; "" when unknowable.
        on_start: called as soon as the engine reports its start.
        on_oom: called as soon as the engine reports an out-of-memory kill inside.
        on_death: called as soon as the engine reports its end; tells whether the kernel counted an
            out-of-memory kill inside, which some engines do not report.
    """

    def __init__(
        self,
        api: DockerApi,
        container_id: str,
        sink: LogSink,
        *,
        status: ContainerStatus,
        incarnation: str,
        on_start: Callable[[], None],
        on_oom: Callable[[], None],
        on_death: Callable[[], bool],
    ) -> None:
        self._api = api
        self._id = container_id
        self._sink = sink
        self._incarnation = incarnation
        self._on_start = on_start
        self._on_oom = on_oom
        self._on_death = on_death
        self._signals: dict[int, str] = {}
        self._sent: deque[str] = deque()
        self._died = Event()
        self._out_of_memory = Event()
        self._closed = Event()
        self._events = self._open_events()
        try:
            self._output = self._open_output(status)
        except OrchError:
            self._events.close()
            raise
        self._follower = in_background("container-events", self._follow_events)
        self._reader = in_background("container-output", self._copy_output)
        self._end: futures.Future[ContainerEnd] = futures.Future()

    def begin(self, *, running: bool) -> None:
        """Wait for the end from now on; ``running``: the container is known to run now."""
        self._end = in_background("container-end", lambda: self._see_the_end(running=running))

    def wait(self, timeout: float) -> ContainerEnd | None:
        """Wait up to ``timeout`` seconds for the end; see ``ports.Container.wait``."""
        end, reader = self._end, self._reader
        both: tuple[futures.Future[Any], ...] = (end, reader)
        futures.wait(both, timeout, futures.FIRST_EXCEPTION)
        if reader.done():
            reader.result()
        return end.result() if end.done() else None

    def note_sent(self, signal: str) -> None:
        """Say that we are about to send ``signal``: not every engine names those it sends."""
        self._sent.append(signal)

    def close(self) -> None:
        """Stop watching; the container is left as it is."""
        self._closed.set()
        self._events.interrupt()
        self._output.interrupt()

    # -- the end

    def _see_the_end(self, *, running: bool) -> ContainerEnd:
        try:
            while True:
                announced = self._exit_announced() and running
                state = self._patiently(lambda: inspect(self._api, self._id))
                if state.ended:
                    return self._conclude(state, announced=announced)
                self._keep_output_coming(state.status)
        finally:
            self.close()

    def _exit_announced(self) -> bool:
        """Ask the engine to tell of the exit; False when it broke off or took too long."""
        try:
            self._api.call("POST", f"/containers/{self._id}/wait")
        except (InfrastructureError, EngineUnavailableError):
            return False
        return True

    def _patiently(self, ask: Callable[[], Answer]) -> Answer:
        """Ask, however long the engine is away: when to give up is not ours to say."""
        delay = _FIRST_RETRY_S
        while True:
            try:
                self._api.incarnation()  # a knock that costs nothing while nobody is there
                return ask()
            except ContainerLostError:
                raise
            except (InfrastructureError, EngineUnavailableError):
                if self._closed.wait(delay):
                    raise
                delay = min(2 * delay, _LAST_RETRY_S)

    def _conclude(self, state: ContainerState, *, announced: bool) -> ContainerEnd:
        done, _ = futures.wait({self._reader}, _DRAIN_S)
        if not done:
            self._output.interrupt()
        now = self._patiently(self._api.incarnation)
        same = now == self._incarnation != ""
        changed = now != self._incarnation and "" not in (now, self._incarnation)
        witnessed = announced or same
        if witnessed:
            self._died.wait(_LAST_EVENTS_S)
        if self._follower.done():
            self._follower.result()  # it ends before us only by failing
        told_of_oom = self._told_of_oom(state)
        if self._is_unexplained(state) and not told_of_oom:
            # One that somebody else removed by force died of a signal that not every engine tells
            # of; then it is gone by now, and this asks in vain.
            self._patiently(lambda: inspect(self._api, self._id))
        return ContainerEnd(
            state=replace(state, oom_killed=state.oom_killed or told_of_oom),
            witnessed=witnessed,
            signals=tuple(name for _, name in sorted(self._signals.items())),
            engine_restarted=changed or not witnessed,
        )

    def _told_of_oom(self, state: ContainerState) -> bool:
        """Tell whether the event stream reported it: the engine's state misses it now and then.

        The report may come after the exit, so an unexplained 137 is worth a short wait.
        """
        return self._out_of_memory.wait(_OOM_REPORT_S if self._is_unexplained(state) else 0)

    def _is_unexplained(self, state: ContainerState) -> bool:
        return state.exit_code == _KILLED and "KILL" not in self._signals.values()

    # -- output

    def _open_output(self, status: ContainerStatus) -> Stream:
        """Attach; but a paused container refuses that and an ended one never answers it."""
        if status in (ContainerStatus.CREATED, ContainerStatus.RUNNING):
            path, query = "attach", {"stream": "1"}
        else:
            path, query = "logs", {"follow": "1", "tail": "0"}
        method = {"attach": "POST", "logs": "GET"}[path]
        return self._api.stream(
            method, f"/containers/{self._id}/{path}", query={**query, "stdout": "1", "stderr": "1"}
        )

    def _copy_output(self) -> None:
        with closing(self._output.frames()) as frames:
            for stream, data in frames:
                self._sink.write(stream, data)

    def _keep_output_coming(self, status: ContainerStatus) -> None:
        """Attach again if the connection broke; a sink that failed stays failed."""
        if not self._reader.done() or self._reader.exception() is not None:
            return
        try:
            self._output = self._open_output(status)
        except (ConflictError, EngineUnavailableError):
            return  # the next turn of the caller's loop sees what became of it
        self._reader = in_background("container-output", self._copy_output)

    # -- events

    def _open_events(self) -> Stream:
        """Ask for all events of this container, from the first the engine still remembers."""
        filters = {"type": ["container"], "container": [self._id]}
        return self._api.stream("GET", "/events", query={"since": "0", "filters": filters})

    def _follow_events(self) -> None:
        while not self._closed.is_set():
            for event in self._events.objects():
                self._take(event)
            self._reopen_events()
        self._events.close()

    def _reopen_events(self) -> None:
        delay = _FIRST_RETRY_S
        while not self._closed.wait(delay):
            try:
                self._api.incarnation()
                self._events = self._open_events()
            except (InfrastructureError, EngineUnavailableError):
                delay = min(2 * delay, _LAST_RETRY_S)
            else:
                return

    def _take(self, event: dict[str, Any]) -> None:
        match event["Action"]:
            case "kill":
                number = event["Actor"]["Attributes"].get("signal")
                name = self._unnamed() if number is None else _signal_name(number)
                self._signals[event["timeNano"]] = name
            case "start":
                self._on_start()
            case "oom":
                self._on_oom()
                self._out_of_memory.set()
            case "die":
                if self._on_death():
                    self._out_of_memory.set()
                self._died.set()
            case _:
                pass

    def _unnamed(self) -> str:
        """Name a signal that the engine does not: ours come in the order in which we sent them."""
        return self._sent.popleft() if self._sent else UNNAMED_SIGNAL


def _signal_name(number: str) -> str:
    """Return ``TERM`` for ``15``; the number itself for signals without a name."""
    try:
        return signal.Signals(int(number)).name.removeprefix("SIG")
    except ValueError:
        return number
