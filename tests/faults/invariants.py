"""What must hold after every fault, read from the bytes on disk and from the engine."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.domain.attempt import RunKind
from receipts.complete import Completeness, check
from receipts.verify import verify
from receipts.verify_model import Wanted
from tests.faults import oracle
from tests.faults.bench import Place, Result, events, last
from tests.faults.eye import Eye
from tests.faults.points import Case
from tests.faults.processes import describe, of_case

_KINDS = {"attempt": RunKind.ATTEMPT, "replay": RunKind.REPLAY, "score": RunKind.SCORING}
_PHASES = {RunKind.ATTEMPT: "explore", RunKind.REPLAY: "replay"}
_VOLUMES = frozenset({"workspace", "out", "control", "scratch", "validate-out"})
_BEFORE_ANY_PHASE = 2
"""Events of a run that ended before it began: it has no receipt, and so nothing to commit."""


def runs_of(place: Place) -> Iterator[tuple[RunKind, Path]]:
    """Go through every run of a place that has a plan, in the order of their paths."""
    for plan in sorted(place.runs.rglob("plan.json")):
        yield _KINDS[plan.parent.name.partition("-")[0]], plan.parent


def instance_of(place: Place) -> str:
    """Name a runs folder as the labels of its containers do."""
    return hashlib.sha256(str(place.runs.resolve()).encode()).hexdigest()[:12]


def is_committed(run: Path) -> bool:
    """Tell whether a run's ending is committed and what it names is there."""
    return check(run / ".complete").completeness is Completeness.COMPLETE


def problems(place: Place, case: Case, hit: Path | None, result: Result, eye: Eye) -> list[str]:
    """List everything that does not hold once all has been gone on with."""
    found = [
        *_endings(place, case, hit),
        *_results(place, result),
        *_starts(place, eye),
        *_receipts(place),
        *_leftovers(place, eye),
    ]
    return [line.replace(f"{place.root}/", "") for line in found]


def _endings(place: Place, case: Case, hit: Path | None) -> Iterator[str]:
    """Only the run that was hit may end otherwise, and only as the table says."""
    for kind, run in runs_of(place):
        ended = last(run)
        if run == hit:
            if ended not in oracle.allowed(case):
                yield f"{run} ended as {ended!r}, allowed: {sorted(oracle.allowed(case))}"
        elif ended != oracle.GOOD[kind]:
            yield f"{run}, which nothing happened to, ended as {ended!r}"
        accepted = kind is RunKind.ATTEMPT and (run / "candidate/submission.json").exists()
        if accepted and ended != "submitted":
            yield f"{run}: a submission was accepted and lost; it ended as {ended!r}"
        if not is_committed(run) and len(events(run)) > _BEFORE_ANY_PHASE:
            yield f"{run} is not committed: {check(run / '.complete').reason}"
    if hit is None:
        yield "the run that was hit is not there"


def _results(place: Place, result: Result) -> Iterator[str]:
    """One finished replay a candidate, one finished scoring a replay, and the right numbers."""
    for attempt in sorted(place.runs.glob("*/attempt-*")):
        finished = [r for r in sorted(attempt.glob("replay-*")) if last(r) == "validated"]
        if len(finished) > 1:
            yield f"{attempt} has {len(finished)} finished replays"
        for replay in finished:
            rows = events(replay)[-1]["data"]["accepted"]
            accepted = tuple((row["name"], row["digest"]) for row in rows)
            if accepted != result.accepted:
                yield f"{replay} accepted {accepted}, not {result.accepted}"
            yield from _scores(replay, result)


def _scores(replay: Path, result: Result) -> Iterator[str]:
    scorings = sorted(replay.glob("score-*"))
    scored = [s for s in scorings if last(s) == "scored"]
    if len(scored) > 1:
        yield f"{replay} is scored {len(scored)} times"
    for scoring in scorings:
        summary = scoring / "summary.json"
        if summary.exists() != (scoring in scored):
            yield f"{scoring} ended as {last(scoring)!r}, summary: {summary.exists()}"
        elif scoring in scored:
            best = json.loads(summary.read_bytes())["best"]
            if best["value"] != result.value:
                yield f"{scoring} says {best}, not {result.value}"


def _starts(place: Place, eye: Eye) -> Iterator[str]:
    """No exploration and no replay has a second container; one that was had has exactly one."""
    for kind, run in runs_of(place):
        phase = _PHASES.get(kind)
        if phase is None or run.relative_to(place.runs) in place.given:
            continue
        count = eye.starts(_run_id(run), phase)
        had = any(event["event"] in {"captured", "exited"} for event in events(run))
        if count > 1 or (had and count != 1):
            yield f"{run}: its {phase} container was started {count} times"


def _run_id(run: Path) -> str:
    plan: dict[str, Any] = json.loads((run / "plan.json").read_bytes())
    return str(plan["run_id"])


def _receipts(place: Place) -> Iterator[str]:
    """Everything verifies, the campaign log included, and no run of it is missing."""
    report = verify(place.runs, Wanted(whole_campaign=True))
    yield from (f"verify: {fault.step}: {fault.where}: {fault.what}" for fault in report.faults)


def _leftovers(place: Place, eye: Eye) -> Iterator[str]:
    """Nothing of ours is left: containers, mounts, volumes, reservations, processes, files."""
    yield from (
        f"container left: {c.name} ({c.status})" for c in eye.containers(instance_of(place))
    )
    yield from (f"process left: {describe(p)}" for p in of_case(place.environment()))
    table = Path("/proc/self/mounts").read_text()
    mounted = (line.split()[1] for line in table.splitlines())
    yield from (
        f"mount left: {path}"
        for path in mounted
        if path.startswith(f"{place.root}/") and path != str(place.runs)
    )
    for path in sorted(place.runs.rglob("*")):
        name = path.name
        if name.endswith((".tmp", ".img", "-views")) or name in {".ballast", "filler"}:
            yield f"file left: {path}"
    yield from (f"reservation left: {p.name}" for p in place.host.glob("*.reservation"))
    yield from (f"temporary file left: {p}" for p in (place.root / "tmp").iterdir())


def snapshot(place: Place) -> dict[str, tuple[int, bytes]]:
    """Read every file of a runs folder, but for what containers write, with its last change.

    That is what lies in volumes, and the images behind them: the kernel writes to one as long as
    it is mounted, also when whoever mounted it is gone.
    """
    return {
        str(path.relative_to(place.runs)): (path.lstat().st_mtime_ns, path.read_bytes())
        for path in sorted(place.runs.rglob("*"))
        if path.is_file()
        and path.suffix != ".img"
        and not _VOLUMES.intersection(path.relative_to(place.runs).parts)
    }
