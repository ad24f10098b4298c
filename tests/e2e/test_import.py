"""Tasks of AI4AI-Bench's and of Harbor's layout, from ``orch task import`` to a verified score."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from receipts.verify import verify
from tests import ai4ai_stand_in as stand_in
from tests.e2e.rig import Rig

pytestmark = pytest.mark.docker

PROBE = (
    "OUTPUT_DIR=/out/probe/work bash run.sh && "
    "/opt/harness/fast_eval.sh /out/probe/checkpoints/checkpoint-3"
)
STEPS = [
    {"run": PROBE},
    {"run": "sed -i 's/STEP = 0.1/STEP = 0.2/' train.py"},
    {"run": "/opt/harness/timer.sh; ls /opt/harness"},
    {"run": "/opt/harness/submit.sh"},
]


@pytest.fixture(scope="module")
def built() -> Iterator[tuple[str, str]]:
    with stand_in.images() as made:
        yield made


@pytest.fixture
def pack(rig: Rig, built: tuple[str, str]) -> Path:
    """Import the task, give the scripted agent something to do, and bring the assets."""
    work, score = built
    source = stand_in.task_folder(rig.root / "source", work)
    folder = rig.root / "pack"
    done = rig.call("task", "import", source, "--to", folder, "--score-image", score)
    assert done.code == 0, done.err
    assert "of roles final and reference orch shows it nothing" in done.out
    (folder / "demo.yaml").write_text(yaml.safe_dump(STEPS))
    given = stand_in.given_folder(rig.root / "given")
    prepared = rig.call("task", "prepare", folder, "--from", given)
    assert prepared.code == 0, prepared.err
    return folder


def targets(rows: list[dict[str, Any]]) -> set[str]:
    return {row["target"] for row in rows if row["target"].startswith("/assets/")}


def test_an_imported_task_shows_and_limits_what_its_source_declares(rig: Rig, pack: Path) -> None:
    checked = rig.call("task", "check", pack)
    assert (checked.code, checked.out.strip()) == (0, f"{pack}: no faults")
    done = rig.call("explore", pack, "--dry-run", "--json")
    assert done.code == 0, done.err
    document, source = done.json(), stand_in.declared()
    container, then = document["container"], document["then"]
    assert targets(container["mounts"]) == set(source["explore"].assets().values())
    assert targets(then["replay"]["assets"]) == set(source["retrain"].assets().values())
    assert targets(then["score"]["assets"]) == set(source["score"].assets().values())
    hidden = {"/assets/models/bounds"}  # and what lies at the answer's place is no answer
    assert targets(then["validate"]["assets"]) == (
        set(source["checkpoint-validate"].assets().values()) - hidden
    )
    shown = {row["target"]: row["asset"] for row in then["validate"]["assets"]}
    assert shown["/assets/data/answer"] == "data/open"
    for limits in (container["limits"], *(later["limits"] for later in then.values())):
        assert (limits["cpus"], limits["memory"]) == (1, 256 * 1024**2)
        assert (limits["shm"], limits["pids"]) == (48 * 1024**2, 96)
    for name, phase in (("replay", "retrain"), ("validate", "checkpoint-validate")):
        assert then[name]["wall"] == source[phase].timeout_sec
        assert then[name]["env"].items() >= source[phase].exports.items()
    assert container["env"].items() >= source["explore"].exports.items()
    assert not {"OUTPUT_DIR", "HOME", "XDG_CACHE_HOME"} & container["env"].keys()
    assert then["replay"]["env"]["MAX_WALL_TIME_SECONDS"] == "13800"
    assert then["score"]["image"].endswith(":score")
    assert then["score"]["read_only"]
    assert not then["validate"]["read_only"]


def test_a_dry_run_shows_a_task_whose_image_and_assets_are_not_here_yet(rig: Rig) -> None:
    image = "docker.io/example/absent@sha256:" + "0" * 64
    source, folder = stand_in.task_folder(rig.root / "source", image), rig.root / "pack"
    assert rig.call("task", "import", source, "--to", folder).code == 0
    assert rig.call("task", "check", folder).code == 0
    done = rig.call("explore", folder, "--dry-run", "--json")
    assert done.code == 0, done.err
    document = done.json()
    plan = document["plan"]
    assert plan["image"] == {"reference": image, "digest": "absent", "engine_id": "absent"}
    assert plan["workspace"] == "absent"
    assert {material["source"] for material in plan["materials"].values()} == {"absent"}
    wanted = set(stand_in.declared()["score"].assets().values())
    assert targets(document["then"]["score"]["assets"]) == wanted
    refused = rig.call("explore", folder)
    assert refused.code == 64
    assert "the engine has no image" in refused.err
    assert not any(rig.runs.glob("*/attempt-*"))


def test_an_imported_task_runs_unchanged_from_an_exploration_to_a_verified_score(
    rig: Rig, pack: Path
) -> None:
    attempt = rig.explore(pack)
    plan = json.loads((attempt / "plan.json").read_text())
    submission = json.loads((attempt / "candidate/submission.json").read_text())
    assert plan["workspace"] == submission["base_digest"]
    said = (attempt / "transcript.jsonl").read_text()
    assert '{\\"closeness_to_hint\\": -1.300}' in said  # the image's own proxy
    assert "save_checkpoint.py" in said  # the image's own harness, and ours over it
    assert "must not run" not in said
    looked = rig.call("replay", attempt, "--dry-run", "--json").json()["container"]
    source = stand_in.declared()["retrain"]
    assert targets(looked["mounts"]) == set(source.assets().values())
    assert looked["argv"] == list(source.command)
    assert looked["env"].items() >= source.exports.items()
    replay = rig.replay(attempt)
    assert (replay / "checkpoints/checkpoint-3/model.pt").read_text() == "6.4\n"
    artifacts = json.loads((replay / "artifacts.json").read_text())["artifacts"]
    assert [a["status"] for a in artifacts] == ["accepted"] * 2
    summary = json.loads((replay / "score-001/summary.json").read_text())
    assert summary["best"]["checkpoint"] == "checkpoint-2"
    assert summary["best"]["value"] == pytest.approx(2.4)  # 4.6, where the answer is 7
    newest = json.loads((replay / "score-001/checkpoint-3/out/summary.json").read_text())
    assert (newest["status"], newest["reason"]) == ("invalid", "invalid")  # beyond its bounds
    second = json.loads((replay / "score-001/checkpoint-2/out/summary.json").read_text())
    assert set(second["metrics"]) == {"distance", "metrics.guess", "n", "score"}
    faults = verify(rig.runs).faults
    assert not faults, faults
    rig.nothing_left()


HARBOR = """\
artifacts = ["/workspace/answer/"]
[task]
name = "example/answer"
[agent]
timeout_sec = 300
[verifier]
environment_mode = "separate"
[environment]
docker_image = "IMAGE"
cpus = 1
memory_mb = 128
storage_mb = 16
network_mode = "no-network"
"""
TESTS = """\
cd /tests && python3 - <<'PY' > /logs/verifier/reward.json
import json
from pathlib import Path
right = Path("expected").read_text() == Path("/workspace/answer/text").read_text()
print(json.dumps({"reward": float(right), "files": len(list(Path("/workspace").iterdir()))}))
PY
"""


def test_a_task_of_harbor_is_judged_by_its_own_tests_in_a_container_of_their_own(rig: Rig) -> None:
    source, pack = rig.root / "source", rig.root / "pack"
    answer = "mkdir answer; echo forty-two > answer/text; ls /tests; /opt/harness/submit.sh"
    with stand_in.image("COPY solution/train.py /workspace/notes.py") as image:
        for name, text in {
            "task.toml": HARBOR.replace("IMAGE", image),
            "instruction.md": "Write it into answer/text.\n",
            "tests/test.sh": TESTS,
            "tests/expected": "forty-two\n",
        }.items():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_text(text)
        done = rig.call("task", "import", source, "--to", pack)
        assert done.code == 0, done.err
        (pack / "demo.yaml").write_text(yaml.safe_dump([{"run": answer}]))
        prepared = rig.call("task", "prepare", pack, "--from", source)
        assert prepared.code == 0, prepared.err
        attempt = rig.explore(pack)
        assert "cannot access '/tests'" in (attempt / "transcript.jsonl").read_text()
        replay = rig.replay(attempt)
    summary = json.loads((replay / "score-001/checkpoint-1/out/summary.json").read_text())
    assert summary["value"] == 1.0
    assert summary["metrics"]["files"]["value"] == 1.0  # what was published, nothing else
    faults = verify(rig.runs).faults
    assert not faults, faults
    rig.nothing_left()
