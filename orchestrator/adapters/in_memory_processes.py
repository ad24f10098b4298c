"""A process table in memory, for tests: a scripted list of processes that a test changes."""

from typing_extensions import override

from orchestrator.domain.process import ProcessFacts
from orchestrator.ports import ProcessTable


class InMemoryProcesses(ProcessTable):
    """The processes that ``add`` put there; a container's are those that name it.

    ``host``: whether its pids are the host's own.
    """

    def __init__(self, *processes: ProcessFacts, host: bool = True) -> None:
        self.host = host
        self._processes = {process.pid: process for process in processes}

    def add(self, *processes: ProcessFacts) -> None:
        """Start processes, or change what is known of them."""
        self._processes = self._processes | {process.pid: process for process in processes}

    def end(self, *pids: int) -> None:
        """End processes; those that are gone already are gone."""
        gone = set(pids)
        self._processes = {pid: it for pid, it in self._processes.items() if pid not in gone}

    @override
    def sees_host(self) -> bool:
        return self.host

    @override
    def facts(self, pid: int) -> ProcessFacts:
        return self._processes.get(pid, ProcessFacts(pid))

    @override
    def pids_of(self, container_id: str) -> frozenset[int]:
        return frozenset(process.pid for process in self.of_container(container_id))

    @override
    def of_container(self, container_id: str) -> tuple[ProcessFacts, ...]:
        return tuple(
            process
            for _, process in sorted(self._processes.items())
            if process.container == container_id
        )
