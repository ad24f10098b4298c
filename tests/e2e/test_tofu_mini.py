"""The TOFU task on its replica: prepared as locked, explored by a script, replayed, scored."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from docker.models.containers import Container

from orchestrator.config import Settings, bundled
from orchestrator.domain.image import image_reference
from orchestrator.storage.assets import AssetStore
from orchestrator.storage.pack import load_pack
from receipts.verify import verify
from tests.e2e.rig import Rig, final, last
from tests.large_images import require_image

CHECKS = Path(__file__).parents[1] / "integration/tofu_checks.py"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    """A bench with the image and the assets, made afresh: bytes other than locked are refused.

    Its copy of the pack asks for one checkpoint, for each costs two containers that load torch.
    """
    require_image("hf-cpu")
    rig = Rig(tmp_path_factory.mktemp("tofu"))
    shutil.copytree(bundled("tasks") / "tofu_mini", rig.root / "pack")
    task = rig.root / "pack/task.yaml"
    task.write_text(task.read_text().replace("{keep: 3}", "{keep: 1}"))
    done = rig.call("task", "prepare", rig.root / "pack", "--json")
    assert done.code == 0, done.err
    assert {asset["how"] for asset in done.json()} == {"made"}
    return rig


@pytest.fixture(scope="module", autouse=True)
def checks(bench: Rig) -> Iterator[Container]:
    """All checks of the torch code in one container, beside the run: importing is what costs."""
    pack, store = load_pack(bench.root / "pack"), AssetStore(Path(bench.variables["ORCH_ASSETS"]))
    places = {str(pack.folder): "/opt/pack", str(CHECKS): "/opt/checks.py"}
    places |= {str(store.locate(pack, name)): f"/assets/{name}" for name in pack.spec.assets}
    client = docker.DockerClient(base_url=Settings.from_environment().engine_address)
    container = client.containers.run(
        image_reference("hf-cpu"),
        ["python3", "/opt/checks.py", "/opt/pack", "/assets", "/tmp"],
        detach=True,
        environment={name: str(value) for name, value in pack.spec.defaults.env.items()},
        network_mode="none",
        read_only=True,
        tmpfs={"/tmp": "size=256m"},
        user="10001:10001",
        volumes={place: {"bind": inside, "mode": "ro"} for place, inside in places.items()},
    )
    yield container
    container.remove(force=True)
    client.close()


def test_the_demo_tries_ideas_and_submits_the_best_whose_score_is_verified(bench: Rig) -> None:
    attempt = bench.explore(bench.root / "pack")
    assert final(attempt) == "submitted"
    assert last(attempt, "captured")["reason"] == "agent_explicit_submit"
    assert '+forget = "npo-token"' in (attempt / "candidate/candidate.patch").read_text()
    replay = bench.replay(attempt)
    assert final(replay) == "validated"
    found = json.loads((replay / "score-001/summary.json").read_text())
    assert found["status"] == "scored"
    assert found["best"]["checkpoint"] == "checkpoint-60"
    assert found["best"]["value"] > 0.95
    report = verify(bench.runs)
    assert report.receipts >= 6  # explore, submit, gate, replay, validate, score
    assert not report.faults, report.faults


def test_the_torch_code_of_the_pack_does_what_it_says(checks: Container) -> None:
    assert checks.wait(timeout=300)["StatusCode"] == 0, checks.logs().decode()
    lines = checks.logs(stderr=False).splitlines()
    faults = dict(json.loads(line).values() for line in lines if line[:1] == b"{")
    assert len(faults) == CHECKS.read_text().count("\ndef check_")
    assert not any(faults.values()), "\n".join(filter(None, faults.values()))
