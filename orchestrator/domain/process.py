"""Processes of the host, as evidence names them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """One process of the host; what could not be read is None.

    Attributes:
        pid: on the host.
        ppid: its parent's.
        started_ns: when it began, on CLOCK_BOOTTIME; with ``pid`` it names one process of one boot.
        command: its command line, at most 200 characters, control characters replaced; the kernel's
            name for it in brackets where it has none.
        executable: the file it runs; other users' are readable to root alone.
        user: the name of its effective user, or the number where it has no name.
        cgroup: its control group on the host; ``/`` where that names nothing.
        container: the full id of the container that its cgroup names; None when it names none.
        foreign_pids: it lives in another pid namespace than this process.
        inner_pid: its pid in the innermost pid namespace that it lives in.
        cpu_s: CPU seconds it has used, its children's not included.
        ended: it has ended, and waits for its parent to notice.
    """

    pid: int
    ppid: int | None = None
    started_ns: int | None = None
    command: str | None = None
    executable: str | None = None
    user: str | None = None
    cgroup: str | None = None
    container: str | None = None
    foreign_pids: bool | None = None
    inner_pid: int | None = None
    cpu_s: float | None = None
    ended: bool = False
