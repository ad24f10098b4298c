"""The views as JSON documents, for ``--json``."""

from typing import Any

from pydantic import BaseModel

from orchestrator.report import labels
from orchestrator.report.facts import next_command
from orchestrator.report.views import (
    AttemptView,
    ReplayView,
    RunView,
    ScoringView,
    contested_of,
    ending_reason,
    exit_facts_of,
    score_of,
    state_word,
)


def document(view: RunView) -> dict[str, Any]:
    """Put a view, and what lies below it, into plain JSON types."""
    if isinstance(view, AttemptView):
        return {
            **_common(view),
            "config": _record(view.config),
            "submission": _record(view.submission),
            "labels": labels.document(view),
            "replays": [document(replay) for replay in view.replays],
            "next": next_command(view),
        }
    if isinstance(view, ReplayView):
        return {
            **_common(view),
            "gate": _record(view.gate),
            "artifacts": _record(view.artifacts),
            "score": _score(view),
            "scorings": [document(scoring) for scoring in view.scorings],
        }
    return {**_common(view), **_scored(view)}


def _common(view: RunView) -> dict[str, Any]:
    return {
        "id": view.id,
        "run_id": view.plan.run_id if view.plan else None,
        "folder": str(view.folder.root),
        "state": state_word(view),
        "ending": ending_reason(view),
        "contested": list(contested_of(view)),
        "exit": dict(exit_facts_of(view)) or None,
        "completion": {
            "status": view.completion.completeness,
            "reason": view.completion.reason,
        },
        "faults": list(view.faults),
        "plan": _record(view.plan),
    }


def _scored(view: ScoringView) -> dict[str, Any]:
    return {
        "aggregate": _record(view.aggregate),
        "checkpoints": [
            {
                "name": checkpoint.name,
                "completion": checkpoint.completion.completeness,
                "summary": _record(checkpoint.summary),
            }
            for checkpoint in view.checkpoints
        ],
    }


def _score(view: ReplayView) -> dict[str, Any] | None:
    found = score_of(view)
    if found is None:
        return None
    return {
        "status": found.word,
        "best": _record(found.best),
        "official": found.official,
        "contested": list(found.contested),
        "reason": found.reason,
    }


def _record(model: BaseModel | None) -> Any:
    return model and model.model_dump(mode="json", by_alias=True)
