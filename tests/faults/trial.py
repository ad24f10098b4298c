"""One case from its beginning to its verdict."""

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.domain.attempt import RunKind
from orchestrator.evidence.walk import remove_tree
from tests.contract.breaking_proxy import BreakingProxy
from tests.faults import oracle
from tests.faults.bench import Bench, Result, events, last
from tests.faults.door import FILLER, Door, fill
from tests.faults.eye import Eye
from tests.faults.invariants import (
    instance_of,
    is_committed,
    problems,
    runs_of,
    snapshot,
)
from tests.faults.points import Case, Fault, When
from tests.faults.processes import kill_all, of_case, wait_until_none

_SMALL_DISK = "size=192m"
_AWAY_S = 2.0
_MOST_COMMANDS = 8
_SETTLE_S = 90.0
_AGAIN = "the fault campaign stopped it"
_ENGINE = Path("/var/run/docker.sock")


@dataclass
class Verdict:
    """What became of a case."""

    case: Case
    seconds: float
    problems: list[str]
    story: list[str] = field(default_factory=list)
    kept: Path | None = None


def judge(bench: Bench, eye: Eye, result: Result, case: Case) -> Verdict:
    """Run one case; whatever it leaves is removed, but for the files of one that failed."""
    began = time.monotonic()
    trial = _Trial(bench, eye, result, case)
    try:
        trial.run()
    finally:
        trial.clear()
    seconds = time.monotonic() - began
    if not trial.problems:
        remove_tree(trial.place.root)
        return Verdict(case, seconds, [])
    return Verdict(case, seconds, trial.problems, trial.story, trial.place.root)


class _Trial:
    def __init__(self, bench: Bench, eye: Eye, result: Result, case: Case) -> None:
        self._bench, self._eye, self._result, self._case = bench, eye, result, case
        self.place = bench.place()
        self._cable = BreakingProxy(self.place.root / "engine", _ENGINE)
        self.problems: list[str] = []
        self.story: list[str] = []
        self._was_read = False
        self._stack = ExitStack()

    def run(self) -> None:
        with self._stack as stack:
            if self._case.fault is Fault.ENGINE_CUT:
                stack.enter_context(self._cable)
                self.place.engine = f"unix://{self._cable.path}"
            if self._case.fault is Fault.DISK_FULL:
                stack.enter_context(_small_disk(self.place.runs))
            hit = self._strike()
            if hit is not None and oracle.is_left_alone(self._case):
                self._leave_alone(hit)
            self._go_on(hit)
            self.problems += problems(self.place, self._case, hit, self._result, self._eye)
            kept = self.place.root / "kept"
            if self.problems:  # a file system of its own goes with the case
                shutil.copytree(self.place.runs, kept, symlinks=True)

    def _strike(self) -> Path | None:
        """Run the command that is hit; return the run it was about."""
        words = self._bench.start(self.place, self._case.point)
        does = {
            Fault.ENGINE_CUT: self._cut,
            Fault.REMOVED: lambda: self._eye.remove(instance_of(self.place)),
            Fault.DISK_FULL: lambda: fill(self.place.runs),
        }
        with Door(self.place.door, does) as door:
            done = self.place.victim(str(self._case), *words)
        (self.place.runs / FILLER).unlink(missing_ok=True)
        self.story += [str(done), *door.notes]
        if door.met != [self._case.point]:
            self.problems.append(f"the point was met {len(door.met)} times")
        if done.code not in oracle.exit_codes(self._case):
            self.problems.append(f"the command that was hit ended with {done.code}")
        self._read()
        fresh = [
            run
            for kind, run in runs_of(self.place)
            if kind is self._case.point.kind
            and run.relative_to(self.place.runs) not in self.place.given
        ]
        return fresh[0] if len(fresh) == 1 else None

    def _cut(self) -> str:
        self._cable.cut()
        mending = threading.Timer(_AWAY_S, self._cable.mend)
        self._stack.callback(mending.join)
        mending.start()
        return f"cut for {_AWAY_S} s"

    def _leave_alone(self, hit: Path) -> None:
        """Type nothing: whoever takes the run over must have ended and committed it."""
        if not wait_until_none(self.place.environment(), _SETTLE_S):
            self.problems.append("whoever took it over came to no end")
        if not is_committed(hit):
            self.problems.append(f"nobody took it to its end; its last event is {last(hit)!r}")

    def _go_on(self, hit: Path | None) -> None:
        """Type what a person would type next, until everything is committed."""
        for _ in range(_MOST_COMMANDS):
            words = self._next(hit)
            if words is None:
                break
            done = self.place.orch(*words)
            self.story.append(str(done))
            if done.code not in oracle.codes_after(self._case):
                self.problems.append(f"orch {words[0]} ended with {done.code}")
            if not wait_until_none(self.place.environment(), _SETTLE_S):
                self.problems.append("processes of ours were still there")
                break
        else:
            self.problems.append(f"not at an end after {_MOST_COMMANDS} commands")
        # A dead process's reservation counts for nothing; the next one, or this, clears it away.
        dead = any(self.place.host.glob("*.reservation"))
        if dead or self._eye.containers(instance_of(self.place)):
            self.story.append(str(self.place.orch("gc")))
        if not self._was_read:
            self._read()

    def _next(self, hit: Path | None) -> tuple[str | Path, ...] | None:
        attempts = [run for kind, run in runs_of(self.place) if kind is RunKind.ATTEMPT]
        if not attempts:
            return ("explore", self._bench.quick)
        attempt = attempts[-1]
        match _stand(attempt, oracle.GOOD[RunKind.ATTEMPT]):
            case "open":
                return ("replay", attempt)
            case "failed":
                return ("explore", self._bench.quick)
        point = self._case.point
        if point.kind is RunKind.ATTEMPT and (attempt != hit or point.when is not When.BEFORE):
            return None  # of two points beside one event the first shows that it can be replayed
        return self._next_replay(attempt)

    def _next_replay(self, attempt: Path) -> tuple[str | Path, ...] | None:
        replays = sorted(p.parent for p in attempt.glob("replay-*/plan.json"))
        if not replays or _stand(replays[-1], "validated") != "good":
            again = bool(replays) and last(replays[-1]) == oracle.PERSON
            return ("replay", attempt, *(("--again", _AGAIN) if again else ()))
        scorings = sorted(p.parent for p in replays[-1].glob("score-*/plan.json"))
        if not scorings or _stand(scorings[-1], "scored") != "good":
            return ("score", replays[-1])
        return None

    def _read(self) -> None:
        """Read everything there is, while nobody writes: no byte may change."""
        if of_case(self.place.environment()):
            return
        attempts = sorted(self.place.runs.glob("*/attempt-*"))
        if not attempts:
            return
        self._was_read = True
        before = snapshot(self.place)
        done = subprocess.run(
            [sys.executable, "-m", "tests.faults.reader", str(attempts[-1])],
            env=self.place.environment(),
            capture_output=True,
            check=False,
        )
        if done.returncode != 0:
            self.problems.append(f"reading ended with {done.returncode}: {done.stderr.decode()}")
        after = snapshot(self.place)
        changed = sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))
        self.problems += [f"reading changed {path}" for path in changed]

    def clear(self) -> None:
        """Leave nothing on the host, whatever happened."""
        kill_all(self.place.environment())
        self._eye.remove(instance_of(self.place))
        table = Path("/proc/self/mounts").read_text()
        for line in reversed(table.splitlines()):
            if (path := line.split()[1]).startswith(f"{self.place.root}/"):
                subprocess.run(["umount", "--lazy", path], check=False)


def _stand(run: Path, good: str) -> str:
    """Say where a run stands for a person who wants it done: open, failed or good."""
    ended = last(run)
    if ended not in {good, oracle.MACHINE, oracle.PERSON, "declined"}:
        return "open"
    if not is_committed(run) and len(events(run)) > 2:
        return "open"
    return "good" if ended == good else "failed"


@contextmanager
def _small_disk(folder: Path) -> Iterator[None]:
    """Put a file system of its own, that can be filled, at a folder."""
    command = ["mount", "-t", "tmpfs", "-o", _SMALL_DISK, "orch-faults", str(folder)]
    subprocess.run(command, check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def story_of(verdict: Verdict) -> str:
    """Put a failed case into lines for a person."""
    lines = [f"FAILED {verdict.case}", *(f"  - {p}" for p in verdict.problems)]
    if verdict.kept is not None:
        lines.append(f"  files: {verdict.kept}")
    for step in verdict.story:
        lines += [f"    {line}" for line in step.splitlines()]
    return "\n".join(lines)
