"""What persons said of answers: part of step 9, for it is the campaign log that vouches for it.

A correction changes nothing that is receipted, so no receipt names it. Each is registered in the
campaign log by its sha256; it has to speak of an answer and of a label as they are.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from pydantic import Field, ValidationError

from receipts.canonical import sha256_hex
from receipts.errors import MalformedError
from receipts.journal import Line
from receipts.model import Strict, faults
from receipts.reading import parse_json, read_file
from receipts.verify_model import Kind, Report, Run, Step

MOST = 100_000
MAX_CORRECTION = 1024**2
MAX_ANSWER = 1024**2
_NAME = re.compile(r"((?!000)[0-9]{3}|[1-9][0-9]{3,5})\.json")
_RESEMBLES = re.compile(r"[0-9]+\.json")
_WORD = r"^[a-z][a-z0-9_]{0,31}$"


class Judged(Strict):
    """What both kinds hold: which answer is spoken of, and by which scoring it was labelled."""

    format: Literal[1]
    number: int = Field(ge=1)
    made: str
    replay: int = Field(ge=1, lt=10**9)
    scoring: int = Field(ge=1, lt=10**9)
    checkpoint: str = Field(pattern=r"^checkpoint-[0-9]{1,12}$")
    case: str = Field(pattern=_WORD)
    answer: int = Field(ge=1, le=99)
    answer_sha256: str
    supersedes: int | None


class Correction(Judged):
    """One label that is held to be wrong."""

    kind: Literal["correction"]
    check: str = Field(pattern=_WORD)
    original: bool
    corrected: bool
    quote: str = Field(min_length=1)
    reason: str = Field(min_length=1)


class Review(Judged):
    """Labels of one answer, given by a person who went through all."""

    kind: Literal["review"]
    labels: dict[str, bool]
    blind: bool
    seed: int
    place: int
    total: int


_KINDS: Mapping[str, type[Correction] | type[Review]] = MappingProxyType(
    {"correction": Correction, "review": Review}
)


def check_corrections(runs: Sequence[Run], lines: Sequence[Line] | None, report: Report) -> None:
    """Hold every correction against the campaign log (None where there is none), and the reverse.

    Args:
        runs: attempts and what lies below them.
        lines: of the campaign log.
    """
    for run in runs:
        if run.kind is not Kind.ATTEMPT or run.plan is None:
            continue
        said = {} if lines is None else _registered(run, lines, report)
        found = _files(run, report)
        for number in sorted(said.keys() - found.keys()):
            what = f"correction {number} was registered and is not here"
            report.fault(Step.CAMPAIGN, run.folder / "corrections", what)
        known: list[Correction | Review] = []
        for number, (path, data) in sorted(found.items()):
            digest = f"sha256:{sha256_hex(data)}"
            if lines is not None and said.get(number) != digest:
                what = "never registered" if number not in said else "registered otherwise"
                report.fault(Step.CAMPAIGN, path, f"{what} in the campaign log")
            if (correction := _parsed(path, data, report)) is not None:
                for what in _wrong(run, number, correction, known):
                    report.fault(Step.FILES, path, what)
                known.append(correction)
        if sorted(found) != list(range(1, len(found) + 1)):
            report.fault(Step.FILES, run.folder / "corrections", "its numbers have holes")


def _registered(run: Run, lines: Sequence[Line], report: Report) -> dict[int, str]:
    found: dict[int, str] = {}
    for line in lines:
        if line.event != "corrected" or run.plan is None:
            continue
        number, digest = line.data.get("number"), line.data.get("sha256")
        if line.data.get("run_id") == run.plan.run_id and isinstance(number, int):
            if number in found:
                what = f"correction {number} was registered twice"
                report.fault(Step.CAMPAIGN, run.folder / "corrections", what)
            found[number] = str(digest)
    return found


def _files(run: Run, report: Report) -> dict[int, tuple[Path, bytes]]:
    folder = run.folder / "corrections"
    if folder.is_symlink():
        report.fault(Step.FILES, folder, "a link where a folder is expected")
        return {}
    found: dict[int, tuple[Path, bytes]] = {}
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in islice(entries, MOST + 1))
    except FileNotFoundError:
        return found
    except OSError as error:
        report.fault(Step.FILES, folder, f"cannot be read: {error.strerror}")
        return found
    if len(names) > MOST:
        report.fault(Step.FILES, folder, f"more than {MOST} entries; not all were read")
    for name in names:
        match = _NAME.fullmatch(name)
        path = folder / name
        if match is None:
            if _RESEMBLES.fullmatch(name):
                report.fault(Step.FILES, path, "a number that is not written so")
            continue  # what a killed writer left; it counts for nothing
        try:
            found[int(match.group(1))] = (path, read_file(path, max_bytes=MAX_CORRECTION))
        except (MalformedError, OSError) as error:
            report.fault(Step.FILES, path, str(error))
    return found


def _parsed(path: Path, data: bytes, report: Report) -> Correction | Review | None:
    try:
        value = parse_json(data)
        kind = value.get("kind") if isinstance(value, dict) else None
        if isinstance(kind, str) and kind in _KINDS:
            return _KINDS[kind].model_validate(value)
        report.fault(Step.FILES, path, "neither a correction nor a review")
    except ValidationError as error:
        report.fault(Step.FILES, path, faults(error))
    except MalformedError as error:
        report.fault(Step.FILES, path, str(error))
    return None


def _checks(judged: Correction | Review) -> frozenset[str]:
    """Name the checks whose labels it gives."""
    return frozenset(judged.labels if isinstance(judged, Review) else {judged.check})


def _wrong(
    run: Run, number: int, judged: Correction | Review, known: Sequence[Correction | Review]
) -> Iterator[str]:
    """Yield what does not hold of one of them, given those before it."""
    if judged.number != number:
        yield f"it has number {judged.number}"
    same = (
        one.number
        for one in known
        if (one.case, one.answer) == (judged.case, judged.answer)
        and not _checks(one).isdisjoint(_checks(judged))
    )
    superseded = max(same, default=None)
    if judged.supersedes != superseded:
        yield f"it says that it supersedes {judged.supersedes}, and that is {superseded}"
    replay = run.folder / f"replay-{judged.replay:03d}"
    place = replay / "checkpoints" / judged.checkpoint / "answers" / judged.case
    yield from _wrong_answer(place / f"{judged.answer}.md", judged)
    if isinstance(judged, Correction):
        scoring = replay / f"score-{judged.scoring:03d}" / judged.checkpoint
        yield from _wrong_original(scoring / "out" / "summary.json", judged)


def _wrong_answer(path: Path, judged: Correction | Review) -> Iterator[str]:
    try:
        data = read_file(path, max_bytes=MAX_ANSWER)
    except FileNotFoundError:
        return  # absent by policy, as a whole checkpoint may be
    except (MalformedError, OSError) as error:
        yield f"the answer cannot be read: {error}"
        return
    if f"sha256:{sha256_hex(data)}" != judged.answer_sha256:
        yield "it speaks of an answer of other bytes"
    answer = " ".join(data.decode("utf-8", "replace").split())
    if isinstance(judged, Correction) and " ".join(judged.quote.split()) not in answer:
        yield "its quote does not stand in the answer"


def _wrong_original(path: Path, correction: Correction) -> Iterator[str]:
    try:
        summary = parse_json(read_file(path, max_bytes=MAX_CORRECTION))
    except FileNotFoundError:
        return
    except (MalformedError, OSError) as error:
        yield f"the scoring's summary cannot be read: {error}"
        return
    try:
        numbers = summary["metrics"][f"{correction.case}/{correction.check}"]
        original = numbers[correction.answer - 1]["value"] == 1.0
    except (TypeError, LookupError):
        yield "the scoring that it names gave no such label"
        return
    if original is not correction.original:
        yield "the original label is another"
