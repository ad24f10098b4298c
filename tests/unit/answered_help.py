"""An attempt whose answers are labelled, made without an engine."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.storage import durable
from orchestrator.storage.layout import AttemptFolder, ScoringFolder
from tests.unit.sample_runs import SampleRuns, commit

CHECKS = {"parses": "Does it parse?", "explains": "Does it explain?", "limits": "Any limits?"}
TEXTS = {
    ("loss", 1): "The loss is masked.\n\nIt cannot be\nundone.",
    ("loss", 2): "All is well.\x1b[2J \u202ereversed",
    ("target", 1): "The labels are zero.",
}
LABELS = {"loss": {"parses": [1, 0], "explains": [1, 1], "limits": [0, 0]}}
LABELS["target"] = {check: [1, 0] for check in CHECKS}
BEST = "checkpoint-9100"


@dataclass(frozen=True)
class Answered:
    """What was made, and its places."""

    sample: SampleRuns
    scoring: ScoringFolder

    @property
    def attempt(self) -> AttemptFolder:
        return self.scoring.replay.attempt

    @property
    def run_id(self) -> str:
        return str(json.loads(self.attempt.plan.read_text())["run_id"])

    @property
    def summary(self) -> Path:
        return self.scoring.checkpoint(BEST).summary

    def file(self, case: str, number: int) -> Path:
        return self.scoring.replay.checkpoints / BEST / "answers" / case / f"{number}.md"

    def correction(self, number: int) -> dict[str, Any]:
        found = self.attempt.corrections / f"{number:03d}.json"
        return dict(json.loads(found.read_text()))


def answered(sample: SampleRuns, number: int = 1) -> Answered:
    """Finish an attempt at a task that asks two questions twice; one answer is missing."""
    made = Answered(sample, sample.finished(number))
    plan = json.loads(made.attempt.plan.read_text())
    plan["task"]["interface"] = "answer"
    cases = {case: f"{case}.md" for case in LABELS}
    plan["task"]["answer"] = {"cases": cases, "repeats": 2, "checks": CHECKS}
    durable.write_json(made.attempt.plan, plan, replace=True)
    summary = json.loads(made.summary.read_text())
    for case, checks in LABELS.items():
        for check, values in checks.items():
            summary["metrics"][f"{case}/{check}"] = [_number(value) for value in values]
    durable.write_json(made.summary, summary, replace=True)
    place = made.scoring.checkpoint(BEST)
    place.complete.unlink()
    (place.root / "receipts/001-score.json").unlink()
    commit(made.scoring, place)
    for (case, answer), text in TEXTS.items():
        path = made.file(case, answer)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return made


def _number(value: float) -> Mapping[str, Any]:
    return {"value": float(value), "nonfinite": None}
