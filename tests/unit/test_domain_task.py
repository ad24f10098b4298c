import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.domain.roles import Phase
from orchestrator.domain.task import (
    Asset,
    Budget,
    CheckpointRule,
    ExploreSpec,
    GateSpec,
    GpuSpec,
    PatchPolicy,
    ProxySpec,
    ReplaySpec,
    Resources,
    ScoreSpec,
    TaskSpec,
    TelemetrySpec,
    ValidateSpec,
    Workspace,
    wall_settings,
)

FINAL = {"role": "final", "source": {"prepare": "p.py"}}


def _fields(**changes: Any) -> dict[str, Any]:
    return {
        "schema": "orch.task/1",
        "name": "t",
        "workspace": {"from": "solution/"},
        "assets": {
            "models/start": {"role": "anchor", "also": ["score"], "source": {"prepare": "p.py"}},
            "data/final": FINAL,
        },
        "score": {"command": "final_eval.py", "metric": "m"},
        **changes,
    }


def _spec(**changes: Any) -> TaskSpec:
    return TaskSpec.model_validate(_fields(**changes))


def _edit(editable: dict[str, list[str]]) -> dict[str, Any]:
    return {"interface": "edit-test-submit", "edit": {"packages": ["b"], "editable": editable}}


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"surprise": 1}, "surprise"),
        ({"schema": "orch.task/2"}, "schema"),
        ({"name": ""}, "name"),
        ({"workspace": {"from": "../solution"}}, "workspace"),
        ({"workspace": {"from": "/solution"}}, "workspace"),
        ({"assets": {"secret/x": {"role": "train", "source": {"prepare": "p.py"}}}}, "models/ or"),
        (
            {"assets": {"data/f": FINAL | {"also": ["explore"]}}},
            "may not be made visible",
        ),
        ({"replay": {"command": "bash run.sh"}}, "replay.command"),
        ({"checkpoints": {"keep": 4}}, "checkpoints.keep"),
        ({"explore": {"wall": "0s"}}, "explore.wall"),
        ({"explore": {"wall": float("inf")}}, "explore.wall"),
        ({"defaults": {"cpus": float("inf")}}, "defaults.cpus"),
        ({"replay": {"cpus": float("inf")}}, "replay.cpus"),
        ({"telemetry": {"every": "500ms"}}, "telemetry.every"),
        ({"telemetry": {"every": "61s"}}, "telemetry.every"),
        ({"interface": "edit-test-submit"}, "goes with interface"),
        ({"interface": "answer"}, "'answer' goes with interface answer"),
        ({"answer": {"cases": {"a": "a.md"}}}, "'answer' goes with interface answer"),
        ({"interface": "answer", "answer": {"cases": {"../a": "a.md"}}}, "match pattern"),
        ({"interface": "answer", "answer": {"cases": {}}}, "at least 1"),
        (
            {"interface": "answer", "answer": {"cases": {"a": "a.md"}, "checks": {"A": "b"}}},
            "match pattern",
        ),
        (_edit({"b/c.py": ["9"]}), "edit.editable"),
        (_edit({"b/c.py": ["9-8"]}), "go downwards"),
        (_edit({"b/c.py": ["1-4", "4-5"]}), "overlap"),
        (_edit({"c/c.py": ["1-4"]}), "none of the packages"),
        ({"score": {"command": "e.py", "metric": "m", "oops": 1}}, "score.oops"),
    ],
    ids=str,
)
def test_a_fault_is_named(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(ValidationError) as raised:
        _spec(**changes)
    told = " ".join(f"{'.'.join(map(str, e['loc']))} {e['msg']}" for e in raised.value.errors())
    assert where in told


def test_a_phase_overrides_the_defaults_and_merges_the_environment() -> None:
    spec = _spec(
        defaults={"cpus": 2, "memory": "2g", "env": {"A": "1", "B": "1"}},
        replay={"memory": "4g", "env": {"B": "2"}},
    )
    replay = spec.resources(Phase.REPLAY)
    assert (replay.cpus, replay.memory) == (2, 4 * 1024**3)
    assert replay.env == {"A": "1", "B": "2"}
    for phase in (Phase.EXPLORE, Phase.VALIDATE, Phase.SCORE):
        assert spec.resources(phase) == spec.defaults


def test_checks_keep_their_order_wherever_the_task_is_written() -> None:
    checks = {"parses": "Does it?", "explains": "Why?", "a_last": "Is it?"}
    answer = {"cases": {"a": "a.md"}, "checks": checks}
    spec = _spec(interface="answer", answer=answer)
    text = json.dumps(spec.model_dump(mode="json", by_alias=True), sort_keys=True)
    again = TaskSpec.model_validate(json.loads(text))
    assert again.answer
    assert list(again.answer.questions.items()) == list(checks.items())
    assert again == spec


def test_a_task_is_frozen() -> None:
    with pytest.raises(ValidationError):
        _spec().name = "other"  # type: ignore[misc]


def test_wall_settings_are_the_published_ones() -> None:
    assert wall_settings(12 * 3600, 900) == (42_600, 900)
    assert wall_settings(100, 900) == (95, 5)


def test_every_key_is_documented() -> None:
    pages = Path(__file__).parents[2].joinpath("docs/tasks.md").read_text(encoding="utf-8")
    models = (
        TaskSpec,
        Workspace,
        Asset,
        Resources,
        ExploreSpec,
        Budget,
        ReplaySpec,
        ValidateSpec,
        ScoreSpec,
        ProxySpec,
        GpuSpec,
        GateSpec,
        TelemetrySpec,
        CheckpointRule,
        PatchPolicy,
    )
    keys = {f.alias or name for model in models for name, f in model.model_fields.items()}
    assert not [key for key in sorted(keys) if f"`{key}`" not in pages]
