"""What a process and a bench take up, sampled, and whether it grew beyond a bound."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

WARM_UP = 5
"""Of so many equal parts of a series the first is left out: things are loaded for the first time.
"""
THREADS, DESCRIPTORS, MEMORY = "threads", "descriptors", "memory KiB"


def process(pid: int) -> dict[str, int] | None:
    """Look at a process; None when it is gone."""
    place = Path("/proc", str(pid))
    with suppress(FileNotFoundError, ProcessLookupError):
        status = dict(
            line.split(":", 1)
            for line in (place / "status").read_text().splitlines()
            if ":" in line
        )
        if "VmRSS" in status:
            return {
                MEMORY: int(status["VmRSS"].split()[0]),
                DESCRIPTORS: len(list((place / "fd").iterdir())),
                THREADS: int(status["Threads"]),
            }
    return None


def folder(root: Path) -> tuple[int, int]:
    """Count the files below a folder and their bytes; what vanishes meanwhile does not count."""
    files = size = 0
    for place, _folders, names in os.walk(root):
        for name in names:
            with suppress(FileNotFoundError):
                size += os.lstat(Path(place, name)).st_size
                files += 1
    return files, size


def loop_devices(root: Path) -> int:
    """Count the loop devices whose image lies, or lay, below a folder."""
    found = 0
    for told in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(OSError):
            found += told.read_text().startswith(f"{root}/")
    return found


@dataclass
class Series:
    """Samples of one process, each a row of figures.

    ``idles``: it holds more while it has a job than between two of them, so that of descriptors
    and threads the least that was seen is what it keeps.
    """

    name: str
    idles: bool
    rows: list[dict[str, int]] = field(default_factory=list)

    def look(self, pid: int) -> None:
        """Add a sample, while the process is there."""
        if (row := process(pid)) is not None:
            self.rows.append(row)

    def growth(self, figure: str) -> float:
        """Compare the last third after the warm-up with the first one."""
        values = [row[figure] for row in self.rows][len(self.rows) // WARM_UP :]
        third = max(1, len(values) // 3)
        typical = min if self.idles and figure != MEMORY else median
        return float(typical(values[-third:]) - typical(values[:third]))

    def most(self, figure: str) -> int:
        """The largest value that was seen."""
        return max(row[figure] for row in self.rows)


@dataclass(frozen=True)
class Check:
    """One bound beside what was found."""

    what: str
    found: float
    bound: float
    trend: bool = False
    """It says how something moved, which takes minutes to show."""

    @property
    def held(self) -> bool:
        """Whether it was kept."""
        return self.found <= self.bound


def checks_of(series: Series, bounds: Mapping[str, float]) -> list[Check]:
    """Compare a process's growth with its bounds."""
    return [
        Check(f"{series.name}: growth of {figure}", series.growth(figure), bound, trend=True)
        for figure, bound in bounds.items()
    ]


def table(checks: Sequence[Check]) -> str:
    """Lay out what was found beside its bounds."""
    width = max(len(check.what) for check in checks)
    rows = [f"{'':4}  {'what':{width}}  {'found':>12}  {'bound':>12}"]
    rows += [
        f"{'ok' if it.held else 'FAIL':4}  {it.what:{width}}  {it.found:>12.2f}  {it.bound:>12.2f}"
        for it in checks
    ]
    return "\n".join(rows)
