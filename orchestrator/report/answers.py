"""The section of a report that tells of a model's answers: their times, and their labels."""

from collections.abc import Iterable, Sequence

from orchestrator.domain.review import Correction, Review
from orchestrator.errors import TaskPackError
from orchestrator.report.labels import Label, Labelled, labelled, times
from orchestrator.report.section import Fact, Section, Table
from orchestrator.report.views import AttemptView
from orchestrator.report.words import count

_WORDS = {True: "pass", False: "fail", None: "-"}
_COLUMNS = ("original", "reviewed", "corrected", "revised")


def answers_section(view: AttemptView) -> Section:
    """Tell of the answers of an attempt; empty where it asked nothing."""
    asked = tuple((case, str(number), f"{seconds:.1f}") for case, number, seconds in times(view))
    took = Table("Response times", ("case", "answer", "seconds"), asked, numeric=1)
    try:
        found = labelled(view)
    except TaskPackError as fault:
        return Section("Answers", (("fault", str(fault)),), (took,))
    if found is None:
        return Section("Answers", (), (took,))
    labels = tuple(found.labels())
    return Section(
        "Answers",
        tuple(_totals(found, labels)),
        (took, _by_check(found, labels), _spoken_of(labels), _corrections(found)),
    )


def _totals(found: Labelled, labels: Sequence[Label]) -> list[Fact]:
    facts = [
        ("labelled by", f"score-{found.scoring:03d} of replay-{found.replay:03d}"),
        ("labels", f"{_passed(one.original for one in labels)} passed, originally"),
    ]
    reviewed = [one for one in labels if one.reviewed is not None]
    if reviewed:
        agree = sum(one.reviewed is one.original for one in reviewed)
        facts.append(
            ("reviewed", f"{count(len(reviewed), 'label')}, {agree} as original{_how(found)}")
        )
    corrected = sum(one.corrected is not None for one in labels)
    if corrected:
        facts.append(("corrected", count(corrected, "label")))
    if found.judgements:
        facts.append(("revised", f"{_passed(one.revised for one in labels)} passed"))
    return facts


def _how(found: Labelled) -> str:
    """Say how the reviews were made."""
    reviews = [one for one in found.judgements if isinstance(one, Review)]
    seeds = ", ".join(str(seed) for seed in dict.fromkeys(one.seed for one in reviews))
    return f"; {'blind, ' if all(one.blind for one in reviews) else ''}order {seeds}"


def _passed(values: Iterable[bool | None]) -> str:
    listed = [value for value in values if value is not None]
    return f"{sum(listed)} of {len(listed)}" if listed else "-"


def _by_check(found: Labelled, labels: Sequence[Label]) -> Table:
    rows = []
    for check in found.spec.questions:
        ones = [one for one in labels if one.check == check]
        columns = ((getattr(one, name) for one in ones) for name in _COLUMNS)
        rows.append((check, *map(_passed, columns)))
    headings = ("check", *(f"{name} passed" for name in _COLUMNS))
    return Table("Labels by check", headings, tuple(rows), numeric=len(_COLUMNS))


def _spoken_of(labels: Sequence[Label]) -> Table:
    rows = tuple(
        (one.case, str(one.answer), one.check, *(_WORDS[getattr(one, n)] for n in _COLUMNS))
        for one in labels
        if one.reviewed is not None or one.corrected is not None
    )
    return Table("Labels by answer", ("case", "answer", "check", *_COLUMNS), rows)


def _corrections(found: Labelled) -> Table:
    rows = tuple(
        (
            f"{one.number:03d}",
            *(one.case, str(one.answer), one.check),
            *(_WORDS[one.original], _WORDS[one.corrected]),
            *(one.quote, one.reason),
            "" if one.supersedes is None else f"{one.supersedes:03d}",
        )
        for one in found.judgements
        if isinstance(one, Correction)
    )
    headings = (
        "no",
        "case",
        "answer",
        "check",
        "original",
        "corrected",
        "quote",
        "reason",
        "supersedes",
    )
    return Table("Corrections", headings, rows)
