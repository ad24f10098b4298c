"""One container of a Docker-compatible engine."""

import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import MappingProxyType

from typing_extensions import override

from orchestrator.adapters.background import in_background
from orchestrator.adapters.cgroup import UNREADABLE, ContainerGroup, group_of
from orchestrator.adapters.docker_api import ConflictError, DockerApi
from orchestrator.adapters.docker_exec import CappedOutput, Command, run
from orchestrator.adapters.docker_obstacle import REMOVAL, obstacle
from orchestrator.adapters.docker_terminal import join_terminal
from orchestrator.adapters.docker_watch import Watch, inspect
from orchestrator.domain.container import (
    ContainerEnd,
    ContainerState,
    ContainerStatus,
    ExecResult,
)
from orchestrator.errors import (
    ContainerLostError,
    EngineUnavailableError,
    InfrastructureError,
    OrchError,
)
from orchestrator.ports import Container, ContainerProcess, ContainerUse, LogSink, MemoryUse

_PAUSE_TRIES = 3
_CHANGES = 1000


class DockerContainer(Container):
    """A container by its id. Build one with ``DockerEngine.create`` or ``find``."""

    def __init__(
        self, api: DockerApi, container_id: str, name: str, labels: Mapping[str, str]
    ) -> None:
        self._api = api
        self._id = container_id
        self._name = name
        self._labels = MappingProxyType(dict(labels))
        self._watch: Watch | None = None
        self._group: ContainerGroup | None = None
        self._at_death: Future[MemoryUse] | None = None
        self._last_memory = UNREADABLE
        self._memory_at_oom = UNREADABLE

    @property
    @override
    def id(self) -> str:
        return self._id

    @property
    @override
    def name(self) -> str:
        return self._name

    @property
    @override
    def labels(self) -> Mapping[str, str]:
        return self._labels

    @override
    def start(self, sink: LogSink) -> None:
        try:
            self._start(sink)
        except InfrastructureError as refusal:
            if isinstance(refusal, ContainerLostError) or not (
                what := obstacle(self._api, self._id)
            ):
                raise
            raise InfrastructureError(what, remedy="mend the image, or name another") from refusal

    def _start(self, sink: LogSink) -> None:
        watch = self._new_watch(sink, ContainerStatus.CREATED, self._api.incarnation())
        self._find_group_early()  # where to attach is to make the first process, it is known now
        try:
            self._call("start")
        except OrchError:
            watch.close()
            raise
        watch.begin(running=True)

    @override
    def adopt(self, sink: LogSink, incarnation: str = "") -> None:
        state = self.state()
        running = not state.ended
        started_by = incarnation or (self._api.incarnation() if running else "")
        self._new_watch(sink, state.status, started_by).begin(running=running)

    def _new_watch(self, sink: LogSink, status: ContainerStatus, incarnation: str) -> Watch:
        self._watch = Watch(
            self._api,
            self._id,
            sink,
            status=status,
            incarnation=incarnation,
            on_start=self._find_group_early,
            on_oom=self._note_memory_at_oom,
            on_death=self._died_of_memory,
        )
        return self._watch

    @override
    def state(self) -> ContainerState:
        return inspect(self._api, self._id)

    @override
    def wait(self, timeout: float) -> ContainerEnd | None:
        if self._watch is None:
            raise RuntimeError(f"container {self._name} is neither started nor adopted")
        return self._watch.wait(timeout)

    @override
    def pause(self, timeout: float = 30.0) -> None:
        pausing = in_background("container-pause", self._pause)
        try:
            pausing.result(timeout)
        except TimeoutError as error:
            raise InfrastructureError(
                f"container {self._name} could not be paused within {timeout:g} s"
            ) from error

    def _pause(self) -> None:
        """Try three times: a process that forks without end can outrun the freezer."""
        refusals = []
        for _ in range(_PAUSE_TRIES):
            try:
                return self._call("pause")
            except InfrastructureError as refusal:
                if self.state().status is ContainerStatus.PAUSED:
                    return None
                refusals.append(refusal)
        raise refusals[-1]

    @override
    def unpause(self) -> None:
        try:
            self._call("unpause")
        except InfrastructureError:
            if self.state().status is ContainerStatus.PAUSED:
                raise

    @override
    def kill(self, signal: str = "KILL") -> None:
        if self._watch is not None:
            self._watch.note_sent(signal)
        try:
            self._call("kill", signal=signal)
        except ContainerLostError:
            return
        except ConflictError:
            if not self.state().ended:
                raise

    @override
    def execute(
        self,
        argv: tuple[str, ...],
        *,
        user: str,
        env: Mapping[str, str],
        workdir: str,
        timeout: float | None,
        on_output: Callable[[bytes], None] | None = None,
        max_output: int = 1024 * 1024,
    ) -> ExecResult:
        command = Command(argv, user=user, env=env, workdir=workdir)
        return run(self._api, self._id, command, timeout, CappedOutput(max_output, on_output))

    @override
    def interact(self, argv: tuple[str, ...], *, user: str, env: Mapping[str, str]) -> int:
        return join_terminal(self._api, self._id, Command(argv, user=user, env=env))

    @override
    def processes(self) -> tuple[ContainerProcess, ...]:
        if not self._api.dialect.lists_processes:
            group = self._find_group()
            return () if group is None else group.processes()
        try:
            listed = self._api.call(
                "GET", f"/containers/{self._id}/top", query={"ps_args": "-eo pid,ppid,uid,args"}
            )
        except ConflictError:
            return ()
        return tuple(
            ContainerProcess(pid=int(pid), ppid=int(ppid), user=user, command=command)
            for pid, ppid, user, command in listed["Processes"]
        )

    @override
    def memory(self) -> MemoryUse:
        group = self._find_group()
        now = UNREADABLE if group is None else group.memory()
        if now.peak is not None:
            self._last_memory = now
            return now
        return self._memory_at_end()

    @override
    def use(self) -> ContainerUse:
        return ContainerUse() if self._group is None else self._group.use()

    def _memory_at_end(self) -> MemoryUse:
        """Return the last readings. A zero read before the end does not say that it stayed so."""
        last, at_oom = self._last_memory, self._memory_at_oom
        reached = last.limit_reached or None
        return MemoryUse(
            peak=max((use.peak for use in (last, at_oom) if use.peak is not None), default=None),
            limit_reached=reached if at_oom.limit_reached is None else at_oom.limit_reached,
        )

    def _find_group(self) -> ContainerGroup | None:
        if self._group is None:
            self._group = group_of(self.state().pid, self._id)
        return self._group

    def _find_group_early(self) -> None:
        """Be ready for an OOM kill; a container gone by now has no memory to read."""
        with contextlib.suppress(InfrastructureError, EngineUnavailableError):
            group = self._find_group()
            if group and self._at_death is None and not self._api.dialect.reports_oom:
                self._at_death = in_background("container-death", group.memory_at_death)

    def _note_memory_at_oom(self) -> None:
        """Read in haste: the cgroup goes with the container, often within milliseconds."""
        if self._group is not None:
            self._memory_at_oom = self._group.memory()

    def _died_of_memory(self) -> bool:
        """Say what the kernel counted, where the engine would not; called once it has ended."""
        if self._at_death is None:
            return False
        last = self._at_death.result()
        if last.oom_kills:
            self._memory_at_oom = last
        return bool(last.oom_kills)

    @override
    def changes(self) -> tuple[str, ...]:
        listed = self._api.call("GET", f"/containers/{self._id}/changes") or ()
        return tuple(change["Path"] for change in listed[:_CHANGES])

    @override
    def has_file(self, path: str) -> bool:
        try:
            self._api.call("HEAD", f"/containers/{self._id}/archive", query={"path": path})
        except ContainerLostError:
            self.state()  # lost itself, if this raises
            return False
        return True

    @override
    def remove(self) -> None:
        if self._watch is not None:
            self._watch.close()
        with contextlib.suppress(ContainerLostError):
            try:
                self._api.call("DELETE", f"/containers/{self._id}", query=REMOVAL)
            except ConflictError:  # somebody else is at it: it is gone when that is done
                self._api.call(
                    "POST", f"/containers/{self._id}/wait", query={"condition": "removed"}
                )

    def _call(self, verb: str, **query: str) -> None:
        self._api.call("POST", f"/containers/{self._id}/{verb}", query=query)
