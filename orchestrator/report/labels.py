"""The labels of a model's answers: as the evaluator found them, and what persons said of them.

Only for tasks with ``interface: answer``. The original label of a check is what the evaluator's
metric ``CASE/CHECK`` holds for that answer; nothing that a person says changes it.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.domain.checkpoint import ArtifactStatus
from orchestrator.domain.interface import AnswerSpec
from orchestrator.domain.records import Summary
from orchestrator.domain.review import Correction, Judgement
from orchestrator.errors import OrchError, TaskPackError
from orchestrator.lifecycle.machine import Event
from orchestrator.report.views import AttemptView, ReplayView, ScoringView, headline, scoring_of
from orchestrator.storage import corrections, durable
from orchestrator.storage.layout import number_of

MAX_ANSWER = 1024**2


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of the candidate. ``original`` holds its labels, by check."""

    case: str
    number: int
    text: str
    sha256: str
    original: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class Label:
    """One check of one answer. What nobody said is None."""

    case: str
    answer: int
    check: str
    original: bool
    reviewed: bool | None = None
    corrected: bool | None = None
    revised: bool = False
    """What holds after all: what was said last, else the original."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """The answers of an attempt with the labels of the scoring that counts.

    ``answers`` are those whose text is here; ``originals`` all that were labelled.
    """

    spec: AnswerSpec
    replay: int
    scoring: int
    checkpoint: str
    answers: tuple[Answer, ...]
    originals: Mapping[tuple[str, int], Mapping[str, bool]]
    judgements: tuple[Judgement, ...]

    def labels(self) -> Iterator[Label]:
        """Go through every label with what was said of it."""
        for (case, answer), checks in self.originals.items():
            for check, original in checks.items():
                said = [
                    one
                    for one in self.judgements
                    if (one.case, one.answer) == (case, answer) and check in one.labels
                ]
                reviewed = [one.labels[check] for one in said if one.kind == "review"]
                corrected = [one.labels[check] for one in said if isinstance(one, Correction)]
                yield Label(
                    *(case, answer, check, original),
                    reviewed=reviewed[-1] if reviewed else None,
                    corrected=corrected[-1] if corrected else None,
                    revised=said[-1].labels[check] if said else original,
                )


def labelled(view: AttemptView) -> Labelled | None:
    """Read the labels of an attempt; None where it asked nothing, or nothing is scored yet.

    Raises:
        TaskPackError: a correction is damaged.
    """
    spec = view.plan.task.answer if view.plan else None
    replay = headline(view)
    scoring = scoring_of(replay) if replay else None
    if spec is None or replay is None or scoring is None:
        return None
    summary = _summary(scoring)
    if summary is None:
        return None
    originals = dict(_originals(spec, summary))
    return Labelled(
        spec=spec,
        replay=number_of(replay.folder.root),
        scoring=number_of(scoring.folder.root),
        checkpoint=summary.checkpoint,
        answers=tuple(_answers(replay, summary.checkpoint, originals)),
        originals=originals,
        judgements=tuple(map(corrections.read, corrections.files(view.folder.corrections))),
    )


def _summary(scoring: ScoringView) -> Summary | None:
    """The best checkpoint's, else the first that was scored."""
    best = scoring.aggregate.best.checkpoint if scoring.aggregate and scoring.aggregate.best else ""
    found = [one.summary for one in scoring.checkpoints if one.summary is not None]
    return next((one for one in found if one.checkpoint == best), found[0] if found else None)


def _originals(
    spec: AnswerSpec, summary: Summary
) -> Iterator[tuple[tuple[str, int], dict[str, bool]]]:
    for case in spec.cases:
        columns = {check: summary.metrics.get(f"{case}/{check}") for check in spec.questions}
        for at in range(spec.repeats):
            yield (
                (case, at + 1),
                {
                    check: numbers[at].value == 1.0
                    for check, numbers in columns.items()
                    if isinstance(numbers, tuple) and at < len(numbers)
                },
            )


def _answers(
    replay: ReplayView,
    checkpoint: str,
    originals: Mapping[tuple[str, int], Mapping[str, bool]],
) -> Iterator[Answer]:
    artifacts = replay.artifacts.artifacts if replay.artifacts else ()
    if not any(a.name == checkpoint and a.status is ArtifactStatus.ACCEPTED for a in artifacts):
        return
    for (case, number), original in originals.items():
        path = replay.folder.checkpoints / checkpoint / "answers" / case / f"{number}.md"
        try:
            data = durable.read_bytes(path, max_bytes=MAX_ANSWER)
        except (OSError, OrchError):  # there was none, or this copy has none
            continue
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        yield Answer(case, number, data.decode("utf-8", "replace"), digest, original)


def times(view: AttemptView) -> tuple[tuple[str, int, float], ...]:
    """List how long each answer took, in seconds of the host's clock: case, number, time."""
    return tuple(
        (str(data["case"]), int(data["answer"]), float(data["seconds"]))
        for data in (record.data for record in view.journal.all(Event.NOTED))
        if data.get("audit") == "answer"
    )


def document(view: AttemptView) -> dict[str, Any] | None:
    """Put the labels into plain JSON types; None for an attempt without any."""
    try:
        found = labelled(view)
    except TaskPackError as fault:
        return {"fault": str(fault)}
    if found is None:
        return None
    return {
        "replay": found.replay,
        "scoring": found.scoring,
        "checkpoint": found.checkpoint,
        "labels": [
            {
                "case": one.case,
                "answer": one.answer,
                "check": one.check,
                "original": one.original,
                "reviewed": one.reviewed,
                "corrected": one.corrected,
                "revised": one.revised,
            }
            for one in found.labels()
        ],
        "judgements": [one.model_dump(mode="json") for one in found.judgements],
    }
