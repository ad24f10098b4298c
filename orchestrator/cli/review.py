"""The commands of a person who judges answers: ``review`` and ``correct``.

Both write beside what the evaluator found, and change nothing of it.
"""

import hashlib
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import Annotated, Any

import typer

from orchestrator.cli import logging
from orchestrator.cli.context import invocation
from orchestrator.cli.folder import runs_folder
from orchestrator.cli.read import Id
from orchestrator.cli.render import emit, forgiving, write
from orchestrator.domain.review import MOST_TEXT, Correction, Judgement, Review, folded
from orchestrator.errors import UsageError
from orchestrator.report import lookup
from orchestrator.report.labels import Answer, Labelled, labelled
from orchestrator.report.text import clean
from orchestrator.report.views import AttemptView, read_attempt
from orchestrator.storage.corrections import Corrections
from orchestrator.storage.layout import RunsFolder
from orchestrator.storage.pack import task_digest
from orchestrator.wiring import system_clock

_WORDS = {"y": True, "yes": True, "n": False, "no": False}
_SKIP, _STOP = {"s", "skip"}, {"q", "quit"}
_SAID = {True: "pass", False: "fail"}
_RULE = "-" * 72


@dataclass(frozen=True, slots=True)
class _Desk:
    """An attempt whose answers are judged."""

    view: AttemptView
    found: Labelled
    run_id: str
    corrections: Corrections

    def common(self, answer: Answer) -> dict[str, Any]:
        """Fill in what every judgement of an answer holds."""
        return {
            "made": system_clock().utc().isoformat(timespec="seconds"),
            "replay": self.found.replay,
            "scoring": self.found.scoring,
            "checkpoint": self.found.checkpoint,
            "case": answer.case,
            "answer": answer.number,
            "answer_sha256": answer.sha256,
        }

    def question(self, case: str) -> str:
        """Read the question of a case, if the pack is still what it was."""
        plan = self.view.plan
        assert plan is not None  # noqa: S101 - see _desk
        source = Path(plan.pack)
        if not source.is_file() or task_digest(source) != plan.task_digest:
            return "(the task's pack is no longer what it was: its question cannot be shown)"
        return (source.parent / self.found.spec.cases[case]).read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class _Item:
    """An answer to be labelled, and the checks of it that are open."""

    desk: _Desk
    answer: Answer
    place: int
    checks: tuple[str, ...]


def review(
    context: typer.Context,
    run: Annotated[list[str], typer.Argument(metavar="ID...", help="Attempts with a score.")],
    *,
    blind: Annotated[
        bool,
        typer.Option("--blind", help="Show neither original labels, nor model, case and number."),
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=2**32 - 1, help="Of the order; by default a new one is drawn."),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Label again what was labelled before.")
    ] = False,
) -> None:
    """Label answers by hand, check by check; what was left open is asked the next time.

    Every label is y, n, s (leave it open) or q (stop here).
    """
    desks = [_desk(context, one) for one in dict.fromkeys(run)]
    forgiving(sys.stdin)
    chosen = _seed_of(desks) if seed is None else seed
    items, total = _items(desks, chosen, again=again)
    done = total - len(items)
    for item in items:
        labels, going_on = _ask(item, total, blind=blind)
        if labels:
            _keep(item, labels, blind=blind, seed=chosen, total=total)
        done += len(labels) == len(item.checks)
        if not going_on:
            break
    emit(f"{done} of {total} answers are labelled")
    ids = " ".join(desk.view.id for desk in desks)
    again_so = "review --blind" if blind else "review"
    emit(f"next: orch {'show' if done == total else again_so} {ids}")


def correct(
    context: typer.Context,
    run: Id,
    *,
    case: Annotated[str, typer.Option(help="The case.")],
    answer: Annotated[int, typer.Option(help="Which of its answers, from 1.")],
    check: Annotated[str, typer.Option(help="The check whose label is wrong.")],
    passed: Annotated[bool, typer.Option("--pass/--fail", help="What the label should be.")],
    quote: Annotated[str, typer.Option(help="The words of the answer that show it.")],
    reason: Annotated[str, typer.Option(help="Why they do.")],
) -> None:
    """Correct one label of one answer; the original stays beside it."""
    desk = _desk(context, run)
    found = _answer(desk, case, answer, check)
    for name, text in (("--quote", quote), ("--reason", reason)):
        _require_text(name, text)
    if folded(quote) not in folded(found.text):
        raise UsageError(
            f"the quote does not stand in answer {answer} of {case}",
            remedy="quote words of the answer as they stand; white space does not matter",
        )
    label = next(
        one
        for one in desk.found.labels()
        if (one.case, one.answer, one.check) == (case, answer, check)
    )
    if label.revised is passed:
        raise UsageError(
            f"the label is {_SAID[passed]} already", remedy=f"see: orch show {desk.view.id}"
        )

    def make(number: int, known: tuple[Judgement, ...]) -> Judgement:
        return Correction(
            **desk.common(found),
            number=number,
            supersedes=_superseded(known, found, (check,)),
            check=check,
            original=found.original[check],
            corrected=passed,
            quote=quote,
            reason=reason,
        )

    made = desk.corrections.append(make)
    emit(f"corrections/{made.number:03d}.json of {desk.view.id}: {check} is {_SAID[passed]}")
    emit(f"next: orch show {desk.view.id}")


def _desk(context: typer.Context, run: str) -> _Desk:
    """Open an attempt to judge its answers.

    Raises:
        UsageError: it has no answers that are labelled.
    """
    runs: RunsFolder = runs_folder(context)
    folder = lookup.attempt_of(lookup.resolve(runs, run))
    view = read_attempt(folder)
    if view.plan is None or view.plan.task.answer is None:
        raise UsageError(
            f"{view.id} asked no questions", remedy="name an attempt at a task that asks some"
        )
    found = labelled(view)
    if found is None or not found.answers:
        raise UsageError(
            f"no answer of {view.id} is here with labels", remedy=f"orch replay {view.id}"
        )
    logging.configure(invocation(context))
    run_id = view.plan.run_id
    log = RunsFolder(folder.root.parent.parent).campaign
    return _Desk(view, found, run_id, Corrections(folder, run_id, log, system_clock()))


def _answer(desk: _Desk, case: str, number: int, check: str) -> Answer:
    """Find an answer that has a label.

    Raises:
        UsageError: there is none; what there is is named.
    """
    spec = desk.found.spec
    known: Mapping[str, tuple[str, Sequence[str]]] = {
        "case": (case, tuple(spec.cases)),
        "check": (check, tuple(spec.questions)),
    }
    for word, (given, names) in known.items():
        if given not in names:
            raise UsageError(f"there is no {word} {given!r}", remedy=f"one of: {', '.join(names)}")
    numbers = [one.number for one in desk.found.answers if one.case == case]
    for one in desk.found.answers:
        if (one.case, one.number) == (case, number) and check in one.original:
            return one
    listed = ", ".join(map(str, numbers)) or "none"
    raise UsageError(f"{case} has no answer {number} with this label", remedy=f"answers: {listed}")


def _require_text(name: str, text: str) -> None:
    if not text.strip() or len(text) > MOST_TEXT or not _is_text(text):
        raise UsageError(
            f"{name} wants some words, of {MOST_TEXT} characters at most",
            remedy="shorten it, or say it in plain text",
        )


def _is_text(text: str) -> bool:
    return text == text.encode("utf-8", "replace").decode()


def _superseded(known: Sequence[Judgement], answer: Answer, checks: Sequence[str]) -> int | None:
    """Return the number of the latest record that spoke of any of these labels."""
    earlier = (
        one.number
        for one in known
        if (one.case, one.answer) == (answer.case, answer.number)
        and not one.labels.keys().isdisjoint(checks)
    )
    return max(earlier, default=None)


def _seed_of(desks: Sequence[_Desk]) -> int:
    """Go on in the order of an unfinished review, or draw a new one."""
    seeds = [one.seed for d in desks for one in d.found.judgements if isinstance(one, Review)]
    return seeds[-1] if seeds else secrets.randbits(32)


def _items(desks: Sequence[_Desk], seed: int, *, again: bool) -> tuple[list[_Item], int]:
    """Put all answers into the order of the seed; return those with open labels, and all's number.

    The order is that of the sha256 of the seed, the run's id, the case and the answer's number.
    """
    everything = [(desk, answer) for desk in desks for answer in desk.found.answers]

    def rank(pair: tuple[_Desk, Answer]) -> str:
        desk, answer = pair
        text = f"{seed} {desk.run_id} {answer.case} {answer.number}"
        return hashlib.sha256(text.encode()).hexdigest()

    items = []
    for place, (desk, answer) in enumerate(sorted(everything, key=rank), start=1):
        given = set() if again else _given(desk, answer)
        checks = tuple(check for check in desk.found.spec.questions if check not in given)
        if checks:
            items.append(_Item(desk, answer, place, checks))
    return items, len(everything)


def _given(desk: _Desk, answer: Answer) -> set[str]:
    return {
        check
        for one in desk.found.judgements
        if isinstance(one, Review) and (one.case, one.answer) == (answer.case, answer.number)
        for check in one.labels
    }


def _ask(item: _Item, total: int, *, blind: bool) -> tuple[dict[str, bool], bool]:
    """Show an answer and ask for its labels; return them, and whether to go on after it."""
    answer, spec = item.answer, item.desk.found.spec
    name = "" if blind else f" ({item.desk.view.id}, {answer.case}, {answer.number})"
    emit(f"{_RULE}\nanswer {item.place} of {total}{name}\n{_RULE}")
    emit(f"It was asked:\n\n{item.desk.question(answer.case)}\n{_RULE}\nIt said:\n")
    # Every line of it is marked, so that none passes for one of ours.
    emit(f"{indent(clean(answer.text), '| ', lambda _: True)}\n{_RULE}")
    labels: dict[str, bool] = {}
    for check in item.checks:
        original = answer.original.get(check)
        known = "" if blind or original is None else f" [{_SAID[original]}]"
        said = _read_word(f"{spec.questions[check]}{known} (y/n/s/q) ")
        if said in _STOP:
            return labels, False
        if said in _WORDS:
            labels[check] = _WORDS[said]
    return labels, True


def _read_word(question: str) -> str:
    """Ask until one of the known words is given; the end of the input is a stop."""
    while True:
        write(sys.stdout, question)
        line = sys.stdin.readline()
        word = line.strip().lower()
        if not sys.stdin.isatty():
            emit(word)
        if not line:
            return "q"
        if word in _WORDS or word in _SKIP or word in _STOP:
            return word
        emit("y for yes, n for no, s to leave it open, q to stop here")


def _keep(item: _Item, labels: Mapping[str, bool], *, blind: bool, seed: int, total: int) -> None:
    def make(number: int, known: tuple[Judgement, ...]) -> Judgement:
        return Review(
            **item.desk.common(item.answer),
            number=number,
            supersedes=_superseded(known, item.answer, tuple(labels)),
            labels=dict(labels),
            blind=blind,
            seed=seed,
            place=item.place,
            total=total,
        )

    item.desk.corrections.append(make)
