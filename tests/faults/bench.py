"""A trimmed digits task, runs folders that stand right before each phase, and a place per case."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from orchestrator.config import bundled
from orchestrator.domain.attempt import RunKind
from tests.faults.door import Door
from tests.faults.points import Point
from tests.faults.processes import MARK

DISK = "8m"
PATIENCE = 120.0
QUICK = "sed -i 's/^EPOCHS = .*/EPOCHS = 2/; s/^CHECKPOINTS = .*/CHECKPOINTS = 2/' method.py"
SLOW = f"{QUICK}; printf '\\nimport time\\n\\ntime.sleep(3)\\n' >> method.py"
"""Runs on for longer than it takes to be taken over."""


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str

    def __str__(self) -> str:
        return f"orch {' '.join(self.words)} -> {self.code}\n{self.err.rstrip()}"


@dataclass
class Place:
    """The folders of one case, and ``orch`` as it is typed there."""

    root: Path
    assets: str
    home: Path
    engine: str | None = None
    given: frozenset[Path] = frozenset()
    """The runs that its runs folder began with, by their paths in it."""

    def __post_init__(self) -> None:
        for name in ("runs", "host", "tmp"):
            (self.root / name).mkdir(parents=True, exist_ok=True)

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def host(self) -> Path:
        return self.root / "host"

    @property
    def door(self) -> Path:
        return self.root / "door"

    def environment(self) -> dict[str, str]:
        """What every process of the case is started with."""
        own = {
            "ORCH_RUNS": str(self.runs),
            "ORCH_HOST": str(self.host),
            "ORCH_HOME": str(self.home),
            "ORCH_ASSETS": self.assets,
            "TMPDIR": str(self.root / "tmp"),
            MARK: str(self.root),
            # Whoever takes a run over starts in another folder, and is to be the same code.
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        if self.engine is not None:
            own["DOCKER_HOST"] = self.engine
        return {**os.environ, **own}

    def orch(self, *words: str | Path) -> Done:
        """Run ``orch`` to its end."""
        return self._run([sys.executable, "-m", "orchestrator"], words)

    def victim(self, spec: str, *words: str | Path) -> Done:
        """Run ``orch`` with something in wait for it."""
        return self._run([sys.executable, "-m", "tests.faults.victim", str(self.door), spec], words)

    def _run(self, program: list[str], words: tuple[str | Path, ...]) -> Done:
        said = tuple(map(str, words))
        out, err = self.root / "stdout", self.root / "stderr"
        # Into files: a pipe would stay open for as long as somebody who was started lives.
        with out.open("wb") as to_out, err.open("wb") as to_err:
            done = subprocess.run(
                [*program, *said],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=to_out,
                stderr=to_err,
                start_new_session=True,
                timeout=PATIENCE,
                check=False,
            )
        texts = (path.read_text(encoding="utf-8", errors="replace") for path in (out, err))
        return Done(said, done.returncode, *texts)


@dataclass(frozen=True)
class Result:
    """What a whole run comes to here when nothing happens to it."""

    accepted: tuple[tuple[str, str], ...]
    value: float
    points: tuple[Point, ...]


class Bench:
    """Makes what every case starts from, once; ``root`` has a short path, for sockets."""

    def __init__(self, root: Path, assets: str) -> None:
        self.root = root
        self._assets = assets
        self._home = root / "home"
        self._templates: dict[str, Path] = {}
        self._lock = threading.Lock()
        self._numbers = iter(range(1, 1_000_000))
        self.quick = self._pack("quick", QUICK)
        self.slow = self._pack("slow", SLOW)

    def place(self, engine: str | None = None) -> Place:
        """Make the folders of one more case."""
        with self._lock:
            number = next(self._numbers)
        return Place(self.root / f"c{number}", self._assets, self._home, engine)

    def _pack(self, name: str, edit: str) -> Path:
        """Copy the digits pack, with an agent that makes one edit and small limits."""
        pack = self.root / name / "digits_class0"
        shutil.copytree(bundled("tasks") / "digits_class0", pack)
        (pack / "demo.yaml").write_text(
            yaml.safe_dump([{"run": edit}, {"run": "/opt/harness/submit.sh"}])
        )
        text = (pack / "task.yaml").read_text()
        for before, after in (("disk: 256m", f"disk: {DISK}"), ("memory: 1g", "memory: 512m")):
            assert before in text, f"the digits task has no {before!r} any more"
            text = text.replace(before, after)
        (pack / "task.yaml").write_text(text)
        return pack

    def prepare(self) -> Result:
        """Run everything once with nothing in wait; say which points were passed on the way."""
        self._home.mkdir()
        points: list[Point] = []
        explored = self.place()
        points += self._recorded(explored, "explore", self.quick)
        self._keep("explored", explored)
        (attempt,) = explored.runs.glob("*/attempt-001")
        points += self._recorded(explored, "replay", attempt, "--through", "validate")
        self._keep("replayed", explored)
        replay = attempt / "replay-001"
        points += self._recorded(explored, "score", replay)
        slow = self.place()
        self._recorded(slow, "explore", self.slow)
        self._keep("slowly_explored", slow)
        validated = events(replay)[-1]["data"]["accepted"]
        summary = json.loads((replay / "score-001" / "summary.json").read_text())
        return Result(
            accepted=tuple((row["name"], row["digest"]) for row in validated),
            value=summary["best"]["value"],
            points=tuple(points),
        )

    def _recorded(self, place: Place, *words: str | Path) -> list[Point]:
        with Door(place.door) as door:
            done = place.victim("record", *words)
        if done.code != 0:
            raise SystemExit(f"the run that nothing happens to failed:\n{done}")
        return list(door.met)

    def _keep(self, name: str, place: Place) -> None:
        kept = self.root / name
        shutil.copytree(place.runs, kept, symlinks=True)
        self._templates[name] = kept

    def start(self, place: Place, point: Point) -> tuple[str | Path, ...]:
        """Lay a case's runs folder out as it is before the phase; return the words to type."""
        template, words = _BEGINNINGS[point.kind]
        if point.event == "running":
            template = "slowly_explored"
        if template is None:
            return ("explore", self.quick)
        shutil.copytree(self._templates[template], place.runs, symlinks=True, dirs_exist_ok=True)
        plans = place.runs.rglob("plan.json")
        place.given = frozenset(plan.parent.relative_to(place.runs) for plan in plans)
        (attempt,) = place.runs.glob("*/attempt-001")
        target = attempt / "replay-001" if point.kind is RunKind.SCORING else attempt
        return (words[0], target, *words[1:])


_BEGINNINGS: Mapping[RunKind, tuple[str | None, tuple[str, ...]]] = {
    RunKind.ATTEMPT: (None, ()),
    RunKind.REPLAY: ("explored", ("replay", "--through", "validate")),
    RunKind.SCORING: ("replayed", ("score",)),
}


def events(run: Path) -> list[dict[str, Any]]:
    """Read the whole lines of a run's journal; one that is not there holds none."""
    try:
        data = (run / "lifecycle.jsonl").read_bytes()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


def last(run: Path) -> str:
    """Name the last event of a run; empty for a run without any."""
    found = events(run)
    return str(found[-1]["event"]) if found else ""
