"""Finding a run by what a person types: an id, a part of one, or a folder.

Every attempt, replay and scoring has a ``run_id`` (32 hex digits, in its plan) and a path id
(``<config>/attempt-001/replay-001/score-001``). Both may be shortened: a run id to its first four
or more digits, a path id part by part, as long as one run alone is meant.
"""

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.errors import TaskPackError, UsageError
from orchestrator.storage import durable
from orchestrator.storage.layout import (
    AttemptFolder,
    ReplayFolder,
    RunFolder,
    RunsFolder,
    ScoringFolder,
    run_folder,
)

_RUN_ID = re.compile(r"[0-9a-f]{4,32}")
_DEPTHS: dict[type[RunFolder], int] = {AttemptFolder: 2, ReplayFolder: 3, ScoringFolder: 4}
_LISTED = 8


def path_id(folder: RunFolder) -> str:
    """Name a run by its place in the runs folder."""
    return "/".join(folder.root.parts[-_DEPTHS[type(folder)] :])


def run_id(folder: RunFolder) -> str:
    """Read a run's id from its plan, or from its journal where the plan is unreadable; else ""."""
    for path, key in ((folder.plan, "run_id"), (folder.journal, "id")):
        if isinstance(found := _document(path).get(key), str):
            return found
    return ""


def same_candidate(folder: ReplayFolder, candidate: str) -> tuple[str, ...]:
    """List the other replays of this runs folder whose plan names the same candidate."""
    runs = RunsFolder(folder.attempt.root.parent.parent)
    return tuple(
        path_id(other)
        for other in runs.runs()
        if isinstance(other, ReplayFolder)
        and other.root != folder.root
        and _candidate(other.plan) == candidate
    )


def _candidate(plan: Path) -> str:
    return str(_document(plan).get("candidate", ""))


def _document(path: Path) -> dict[str, Any]:
    """Read a JSON object, of a journal its first line; an empty one where there is none."""
    try:
        data = durable.read_bytes(path)
        found = durable.parse_json(data.partition(b"\n")[0] if path.suffix == ".jsonl" else data)
    except (OSError, TaskPackError):
        return {}
    return found if isinstance(found, dict) else {}


def resolve(runs: RunsFolder, text: str) -> RunFolder:
    """Find the one run that ``text`` means.

    Raises:
        UsageError: no run, or more than one, answers to it; the remedy names candidates.
    """
    everything = tuple(runs.runs())
    found = [folder for folder in everything if path_id(folder) == text]
    if not found and (named := _by_folder(Path(text))):
        return named
    if not found and _RUN_ID.fullmatch(text):
        found = [folder for folder in everything if run_id(folder).startswith(text)]
    if not found:
        found = [folder for folder in everything if _abbreviates(text, path_id(folder))]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"{text!r} may mean {len(found)} runs",
            remedy=f"name one of: {_listing([path_id(folder) for folder in found])}",
        )
    raise UsageError(f"no run answers to {text!r} in {runs.root}", remedy=_near(text, everything))


def attempt_of(folder: RunFolder) -> AttemptFolder:
    """Go up to the attempt that a run belongs to."""
    if isinstance(folder, ScoringFolder):
        return folder.replay.attempt
    return folder.attempt if isinstance(folder, ReplayFolder) else folder


def _by_folder(path: Path) -> RunFolder | None:
    """Take ``path`` as a folder on disk, when it is one that a run lives in."""
    try:
        folder = run_folder(path.resolve(strict=True))
    except (OSError, ValueError):  # a NUL byte is no path
        return None
    if folder is None:
        return None
    return folder if folder.plan.exists() or folder.journal.exists() else None


def _abbreviates(text: str, full: str) -> bool:
    """Tell whether each part of ``text`` begins a part of ``full``; a config alone means attempts.

    A text that begins with ``attempt-`` leaves the config open.
    """
    parts = text.rstrip("/").split("/")
    if parts[0].startswith("attempt-"):
        parts.insert(0, "")
    if len(parts) == 1:
        parts.append("attempt-")
    whole = full.split("/")
    return len(parts) == len(whole) and all(map(str.startswith, whole, parts))


def _near(text: str, everything: Sequence[RunFolder]) -> str:
    names = [path_id(folder) for folder in everything]
    ids = [run_id(folder) for folder in everything]
    near = difflib.get_close_matches(text, [*names, *ids], n=3, cutoff=0.5)
    if near:
        return f"near names: {_listing(near)}"
    return "see what there is: orch status" if names else "nothing has run yet: orch explore"


def _listing(names: Sequence[str]) -> str:
    more = f", and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
