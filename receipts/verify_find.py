"""Step 1: find the runs by the names of the layout, and read plans, journals and receipts.

What a candidate wrote (``out``, ``workspace``) is never entered, and no link is followed.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from receipts.canonical import sha256_hex
from receipts.envelope import parse_envelope
from receipts.errors import MalformedError
from receipts.journal import read_journal
from receipts.reading import read_file
from receipts.statement import parse_statement
from receipts.verify_model import Kind, Receipt, Report, Run, Step
from receipts.verify_records import (
    MAX_RECORD,
    AttemptPlan,
    PlanBase,
    ReplayPlan,
    ScoringPlan,
    parse_record,
)

MAX_RECEIPT = 16 * 1024**2
MAX_RECEIPTS = 100
MAX_RUNS = 100_000
_RUN = re.compile(r"(attempt|replay|score)-((?!000)[0-9]{3}|[1-9][0-9]{3,8})")
_RESEMBLES = re.compile(r"(?:attempt|replay|score)-[0-9]{3,}")
_UNFINISHED = re.compile(r"\.[a-z0-9_]{8}\.tmp")
_NAME = re.compile(r"([0-9]{3})-([a-z]+)\.json")
_CHILD: Mapping[Kind, Kind] = MappingProxyType(
    {Kind.ATTEMPT: Kind.REPLAY, Kind.REPLAY: Kind.SCORING}
)
_PLANS: Mapping[Kind, type[PlanBase]] = MappingProxyType(
    {Kind.ATTEMPT: AttemptPlan, Kind.REPLAY: ReplayPlan, Kind.SCORING: ScoringPlan}
)


@dataclass(frozen=True, slots=True)
class Found:
    """The runs, an attempt before its replays and these before their scorings.

    ``home`` is the runs folder, or the nearest thing to it.
    """

    runs: tuple[Run, ...]
    home: Path


def find(folder: Path, report: Report) -> Found:
    """Read every run under ``folder``, and those above that it rests on."""
    place = folder.resolve()
    if place.name == "receipts":
        place = place.parent
    runs: list[Run] = []
    above = _above(place)
    parent: Run | None = None
    for ancestor in above:
        parent = _read(ancestor, parent, report)
        runs.append(parent)
    for run in _below(place, parent, report):
        if len(runs) >= MAX_RUNS:
            report.fault(Step.PARSE, place, f"more than {MAX_RUNS} runs; the rest was not read")
            break
        runs.append(run)
    return Found(tuple(runs), _home(place))


def _above(place: Path) -> list[Path]:
    """The runs that a replay or a scoring lies in, the attempt first."""
    found: list[Path] = []
    kind = _kind(place.name)
    while kind in {Kind.REPLAY, Kind.SCORING}:
        place = place.parent
        above = _kind(place.name)
        if above is None or _CHILD.get(above) is not kind:
            break
        found.insert(0, place)
        kind = above
    return found


def _home(place: Path) -> Path:
    for candidate in (place, *place.parents[:4]):
        if (candidate / "campaign.jsonl").is_file() or (candidate / "keys").is_dir():
            return candidate
    return place


def _below(place: Path, parent: Run | None, report: Report) -> Iterator[Run]:
    """Walk down from ``place``, which is a run or holds some."""
    kind = _kind(place.name)
    if kind is None:
        for config in (place, *_folders(place, report)):
            for child in _children(config, Kind.ATTEMPT, report):
                yield from _below(child, None, report)
        return
    run = _read(place, parent, report)
    yield run
    if kind in _CHILD:
        for child in _children(place, _CHILD[kind], report):
            yield from _below(child, run, report)


def _folders(place: Path, report: Report) -> list[Path]:
    """The folders in ``place`` that may be configs."""
    found: list[Path] = []
    try:
        with os.scandir(place) as entries:
            for entry in entries:
                path = place / entry.name
                if entry.is_symlink() and (path / "config.json").is_file():
                    report.fault(Step.PARSE, path, "a link to a config: nothing in it was read")
                elif len(found) == MAX_RUNS:
                    what = f"more than {MAX_RUNS} folders; not all were read"
                    report.fault(Step.PARSE, place, what)
                    break
                elif entry.is_dir(follow_symlinks=False) and _kind(entry.name) is None:
                    found.append(path)
    except OSError as error:
        report.fault(Step.PARSE, place, f"cannot be read: {error.strerror}")
    return sorted(found)


def _children(place: Path, kind: Kind, report: Report) -> list[Path]:
    found: list[Path] = []
    try:
        with os.scandir(place) as entries:
            for entry in entries:
                path = place / entry.name
                if _kind(entry.name) is not kind:
                    if _RESEMBLES.fullmatch(entry.name) and _kind(entry.name) is None:
                        what = "a number that is not written so: nothing in it was read"
                        report.fault(Step.PARSE, path, what)
                    continue
                if not entry.is_dir(follow_symlinks=False):
                    report.fault(Step.PARSE, path, "not a folder")
                elif len(found) == MAX_RUNS:
                    report.fault(Step.PARSE, place, f"more than {MAX_RUNS} runs; not all were read")
                    break
                else:
                    found.append(path)
    except OSError as error:
        report.fault(Step.PARSE, place, f"cannot be read: {error.strerror}")
    return sorted(found, key=lambda path: (_number(path.name), path.name))


def _kind(name: str) -> Kind | None:
    match = _RUN.fullmatch(name)
    return Kind(match.group(1)) if match else None


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])


def _read(folder: Path, parent: Run | None, report: Report) -> Run:
    kind = _kind(folder.name)
    assert kind is not None  # noqa: S101 - the caller chose it by its name
    run = Run(folder=folder, kind=kind, number=_number(folder.name), parent=parent)
    path = folder / "plan.json"
    try:
        data = read_file(path, max_bytes=MAX_RECORD)
        run.plan_digest = f"sha256:{sha256_hex(data)}"
        run.plan = parse_record(data, _PLANS[kind])
    except FileNotFoundError:
        run.bare = not (folder / "receipts").exists() and not (folder / "lifecycle.jsonl").exists()
        if run.bare:
            report.note(folder, "claimed its number and went no further: nothing was started")
        else:
            report.fault(Step.PARSE, path, "missing")
    except (MalformedError, OSError) as error:
        report.fault(Step.PARSE, path, str(error))
    try:
        run.journal = read_journal(folder / "lifecycle.jsonl")
    except FileNotFoundError:
        pass
    except (MalformedError, OSError) as error:
        report.fault(Step.JOURNAL, folder / "lifecycle.jsonl", str(error))
    run.receipts = _receipts(folder / "receipts", report)
    return run


def _receipts(folder: Path, report: Report) -> list[Receipt]:
    found = []
    for path in _files(folder, report):
        try:
            found.append(_receipt(path))
        except (MalformedError, OSError) as error:
            report.fault(Step.PARSE, path, str(error))
    return found


def _files(folder: Path, report: Report) -> list[Path]:
    """List a receipts folder, as far as it has a sane size."""
    names: list[str] = []
    if folder.is_symlink():
        report.fault(Step.PARSE, folder, "a link where a folder is expected")
        return []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if len(names) == MAX_RECEIPTS:
                    what = f"more than {MAX_RECEIPTS} entries; the rest was not read"
                    report.fault(Step.PARSE, folder, what)
                    break
                if _UNFINISHED.fullmatch(entry.name):
                    report.note(folder / entry.name, "left by a write that was cut off")
                else:
                    names.append(entry.name)
    except FileNotFoundError:
        return []
    except OSError as error:
        report.fault(Step.PARSE, folder, f"cannot be read: {error.strerror}")
    return [folder / name for name in sorted(names)]


def _receipt(path: Path) -> Receipt:
    name = _NAME.fullmatch(path.name)
    if name is None:
        raise MalformedError("not the name of a receipt")
    envelope = parse_envelope(read_file(path, max_bytes=MAX_RECEIPT))
    statement = parse_statement(envelope.payload)
    if statement.predicate.phase != name.group(2):
        raise MalformedError(f"it is about phase {statement.predicate.phase}")
    return Receipt(path, int(name.group(1)), envelope, statement)
