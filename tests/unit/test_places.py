"""Where things lie in a container: assets at other places, single files, variables left out."""

from pathlib import Path

import pytest

from orchestrator.domain.container import Mount
from orchestrator.domain.records import Material
from orchestrator.domain.roles import DataRole, Phase
from orchestrator.domain.task import Resources, TaskSpec
from orchestrator.errors import TaskPackError
from orchestrator.evidence.trial import harness_scripts
from orchestrator.sandbox import asset_mounts, container_spec
from orchestrator.storage.pack import load_pack
from tests.unit.pack_help import TASK, make_pack

ROOM = (10001, 10001)


def material(role: str, name: str, *, at: str | None = None, file: str = "") -> Material:
    return Material(role=DataRole(role), digest="", source=f"/store/{name}", at=at, file=file)


def test_assets_lie_where_the_task_says_and_files_lie_there_themselves() -> None:
    materials = {
        "models/dense": material("anchor", "d", at="models/opt"),
        "data/rows.jsonl": material("train", "r", file="rows.jsonl"),
        "data/open": material("train", "o", at="data/answer"),
        "data/answer": material("final", "a"),
    }
    assert asset_mounts(Phase.REPLAY, materials) == (
        Mount(Path("/store/o"), "/assets/data/answer"),
        Mount(Path("/store/r/rows.jsonl"), "/assets/data/rows.jsonl"),
        Mount(Path("/store/d"), "/assets/models/opt"),
    )
    assert asset_mounts(Phase.SCORE, materials) == (Mount(Path("/store/a"), "/assets/data/answer"),)


def variables(need: Resources, **env: str) -> dict[str, str]:
    spec = container_spec(
        name="",
        phase=Phase.REPLAY,
        image="",
        argv=(),
        user=ROOM,
        agent=ROOM,
        resources=need,
        mounts=(),
        env=env,
        labels={},
    )
    return dict(spec.env)


def test_a_variable_that_is_null_is_left_to_the_image() -> None:
    usual = variables(Resources(), OUTPUT_DIR="/out")
    assert (usual["HOME"], usual["OUTPUT_DIR"]) == ("/home/agent", "/out")
    found = variables(Resources(env={"HOME": None, "OUTPUT_DIR": None, "A": "1"}), OUTPUT_DIR="x")
    assert not {"HOME", "OUTPUT_DIR"} & found.keys()
    assert found["A"] == "1"
    assert found["NVIDIA_VISIBLE_DEVICES"] == "void"


def proxied(command: str, folder: Path) -> TaskSpec:
    text = TASK.replace("proxy/fast_eval.py", command)
    return load_pack(make_pack(folder / command.strip("/").replace("/", "-"), text)).spec


def test_a_proxy_of_the_image_stays_where_ours_would_lie(tmp_path: Path) -> None:
    ours = {"timer.sh", "submit.sh", "no_candidate.sh", "request.py"}
    assert set(harness_scripts(proxied("/opt/harness/fast_eval.sh", tmp_path))) == ours
    for command in ("/opt/tools/eval", "proxy/fast_eval.py"):
        scripts = harness_scripts(proxied(command, tmp_path))
        assert set(scripts) == ours | {"fast_eval.sh"}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("role: anchor\n", "role: anchor\n    at: data/train\n", "lies in the place of data/train"),
        ("role: anchor\n", "role: anchor\n    at: data\n", "lies in the place of models/start"),
        ("role: anchor\n", "role: anchor\n    at: etc/x\n", "must lie under models/ or data/"),
        ("metric: score\n", "metric: score\n  scratch: [/ckpt/x]\n", "lies in the way of /ckpt"),
        ("metric: score\n", "metric: score\n  scratch: [/opt]\n", "in the way of /opt/evaluator"),
        ("metric: score\n", "metric: score\n  scratch: [/logs]\n", "lies in the way of /logs"),
        ("metric: score\n", "metric: score\n  scratch: [/a/../etc]\n", "must not lead upwards"),
        ("metric: score\n", "metric: score\n  scratch: [a]\n", "pattern"),
        ("role: train,", "role: train, also: [explore],", "may not be made visible to phase"),
        ("role: final\n", "role: final\n    also: [validate]\n", "may not be made visible"),
        ("proxy/fast_eval.py", "../x", "must be a relative path"),
    ],
)
def test_what_lies_in_the_way_of_something_else_is_refused(
    tmp_path: Path, before: str, after: str, said: str
) -> None:
    assert before in TASK
    with pytest.raises(TaskPackError, match=said):
        load_pack(make_pack(tmp_path / "pack", TASK.replace(before, after)))


def test_two_assets_may_share_a_place_that_no_phase_sees_both_at(tmp_path: Path) -> None:
    text = TASK.replace("role: train,", "role: train, also: [validate], at: data/final,")
    task = load_pack(make_pack(tmp_path / "pack", text)).spec
    assert task.assets["data/train"].at == "data/final"
    both = text.replace("[validate]", "[score]")
    with pytest.raises(TaskPackError, match="lies in the place of"):
        load_pack(make_pack(tmp_path / "both", both))
