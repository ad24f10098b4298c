"""What telemetry comes to, in the few lines that stand beside a run's other facts."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.domain.quantity import human
from orchestrator.domain.roles import Phase
from orchestrator.domain.telemetry import AnyRow, Begin, End, Foreign, Gap, Sample
from orchestrator.errors import TaskPackError
from orchestrator.evidence.orphans import AUDIT
from orchestrator.evidence.telemetry_log import read_telemetry
from orchestrator.lifecycle.machine import Event
from orchestrator.report import words
from orchestrator.storage.journal import JournalView

MOST = 5
"""So many of each kind are told of in a line of their own."""

Line = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Figures:
    """What the containers of one phase used, and what went on beside them.

    Attributes:
        cpu_s: CPU seconds, as far as they were seen.
        memory: the most that one of them had, in bytes.
        gpu_memory: the most that was held on one GPU, in bytes.
        gpu_utilization: the highest that was seen of one, in per cent.
        foreign: each process of somebody else on a GPU, as it was seen last.
    """

    looks: int
    cpu_s: float
    memory: int | None
    gpu_memory: int | None
    gpu_utilization: int | None
    gaps: tuple[Gap, ...]
    foreign: tuple[Foreign, ...]


def figures(rows: Iterable[AnyRow], phase: Phase) -> Figures:
    """Add up what rows tell of the containers of ``phase``; pure."""
    rows = tuple(rows)
    ours = {row.of for row in rows if isinstance(row, Begin) and row.phase is phase}
    seen = [row for row in rows if row.of in ours]
    looks = [row for row in seen if isinstance(row, Sample | End)]
    gpus = [gpu for row in looks for gpu in row.gpus]
    cpu: dict[str, float] = {}
    for row in looks:
        cpu[row.of] = max(cpu.get(row.of, 0.0), row.use.cpu_s or 0.0)
    foreign = (row for row in seen if isinstance(row, Foreign))
    others = {(row.uuid, row.pid, row.started): row for row in foreign}
    return Figures(
        looks=len(looks),
        cpu_s=round(sum(cpu.values()), 3),
        memory=_most(row.use.memory_peak or row.use.memory for row in looks),
        gpu_memory=_most(gpu.memory for gpu in gpus),
        gpu_utilization=_most(gpu.utilization for gpu in gpus),
        gaps=tuple(row for row in seen if isinstance(row, Gap)),
        foreign=tuple(others.values()),
    )


def lines(path: Path, phase: Phase, journal: JournalView) -> Iterator[Line]:
    """Tell a person what was seen of a run's own phase."""
    try:
        found = read_telemetry(path)
    except (OSError, TaskPackError) as failure:
        yield "telemetry", f"cannot be read: {failure}"
        return
    seen = figures(found.rows, phase)
    if seen.looks:
        yield "telemetry", ", ".join(_parts(seen))
    if found.unreadable:
        yield "telemetry", f"{words.count(found.unreadable, 'line')} cannot be read"
    for other in seen.foreign[:MOST]:
        yield "foreign GPU use", _foreign(other)
    yield from _more("foreign GPU use", len(seen.foreign))
    orphans = [r.data for r in journal.all(Event.NOTED) if r.data.get("audit") == AUDIT]
    for orphan in orphans[:MOST]:
        ran = f"pid {orphan.get('pid')} {orphan.get('command')}"
        yield "left running", f"{ran}: {_beside(orphan)} beside {orphan.get('beside')}"
    yield from _more("left running", len(orphans))


def _parts(seen: Figures) -> Iterator[str]:
    yield words.count(seen.looks, "look")
    yield f"at least {seen.cpu_s:.1f} CPU s"
    if seen.memory is not None:
        yield f"memory up to {human(seen.memory)}"
    if seen.gpu_memory is not None:
        yield f"GPU memory up to {human(seen.gpu_memory)}"
    if seen.gpu_utilization is not None:
        yield f"GPU up to {seen.gpu_utilization} % busy"
    if seen.gaps:
        longest = max(gap.seconds for gap in seen.gaps)
        yield f"{words.count(len(seen.gaps), 'gap')}, the longest {words.duration(longest)}"


def _foreign(row: Foreign) -> str:
    what = f"pid {row.pid} {row.command or '(unknown)'}, user {row.user or '(unknown)'}"
    where = row.container or row.cgroup or "(unknown)"
    return f"{what}, in {where}: {words.duration(row.last - row.first)} on {row.uuid}"


def _beside(orphan: Mapping[str, Any]) -> str:
    overlap = orphan.get("overlap")
    return words.duration(overlap) if isinstance(overlap, int | float) else "for a time"


def _more(name: str, count: int) -> Iterator[Line]:
    if count > MOST:
        yield name, f"and {count - MOST} more"


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
