"""The probes of ``tests/data/probes.tsv`` and how their output is read."""

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

DATA = Path(__file__).parents[1] / "data" / "probes.tsv"
ANCHOR = "models/start"
"""The anchor of the bench's pack; ``weights.txt`` in it stands for ``w.bin``."""


class Finding(StrEnum):
    """What a probe found."""

    SAFE = "safe"
    OPEN = "open"
    UNAVAILABLE = "unavailable"
    """It could not look: what it needs is not there, or was refused before it could tell."""


@dataclass(frozen=True)
class Probe:
    """One row. ``judge`` names what the host has to check, if the command alone cannot tell."""

    id: str
    command: str
    category: str
    mode: str
    judge: str


def load() -> tuple[Probe, ...]:
    with DATA.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return tuple(
        Probe(
            id=row["id"],
            command=row["command"]
            .replace("models/training_start/w.bin", f"{ANCHOR}/weights.txt")
            .replace("models/training_start", ANCHOR),
            category=row["category"],
            mode=row["mode"],
            judge=row["expected"].removeprefix("host:") if "host:" in row["expected"] else "",
        )
        for row in rows
    )


PROBES = load()
SHARED = tuple(probe for probe in PROBES if probe.mode == "shared")
OWN = tuple(probe for probe in PROBES if probe.mode == "own")

RUN_ALL = """\
while [ $# -gt 0 ]; do
  printf '\\n@@%s\\n' "$1"; timeout 60 bash -c "$2" < /dev/null 2>&1; shift 2
done
printf '\\n@@end\\n'
"""


def batch(probes: Iterable[Probe]) -> tuple[str, ...]:
    """Run many probes one after the other in one process."""
    pairs = [text for probe in probes for text in (probe.id, probe.command)]
    return ("bash", "-c", RUN_ALL, "probes", *pairs)


def parts(output: bytes) -> Mapping[str, str]:
    """Tell whose output is whose; raises if the batch was cut off."""
    pieces = re.split(r"^@@(\S+)$", output.decode("utf-8", "replace"), flags=re.MULTILINE)
    found = dict(zip(pieces[1::2], pieces[2::2], strict=True))
    assert "end" in found, output[-2000:]
    return found


def read(output: str) -> Finding:
    if "OPEN" in output:
        return Finding.OPEN
    return Finding.SAFE if "SAFE" in output else Finding.UNAVAILABLE


def tally(findings: Mapping[str, Finding]) -> str:
    return ", ".join(f"{sum(f is kind for f in findings.values())} {kind}" for kind in Finding)
