"""digits_class0 on a real engine: its locks hold, and its score tells ideas apart."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from orchestrator import wiring
from orchestrator.agents.scripted import load_script
from orchestrator.cli.app import run as orch
from orchestrator.config import Settings, bundled
from orchestrator.domain.image import image_reference
from orchestrator.errors import Exit, OrchError
from orchestrator.evidence.instruction import render
from orchestrator.evidence.overlap import HiddenAsset, RowIndex
from orchestrator.evidence.tree import tree_digest
from orchestrator.phases import prepare, task_check
from orchestrator.ports import ContainerEngine
from orchestrator.storage.assets import AssetStore
from orchestrator.storage.pack import Pack, load_pack

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def engine() -> Iterator[ContainerEngine]:
    with closing(wiring.engine(Settings.from_environment())) as found:
        try:
            for name in ("cpu-numpy", "prepare-sklearn"):
                found.image(image_reference(name))
        except OrchError as absent:
            pytest.skip(f"{absent} ({absent.remedy})")
        yield found


@pytest.fixture(scope="module")
def pack() -> Pack:
    return load_pack(Path("digits_class0"))


@pytest.fixture(scope="module")
def store(
    engine: ContainerEngine, pack: Pack, tmp_path_factory: pytest.TempPathFactory
) -> AssetStore:
    """The task's assets, made afresh; a digest that is not the locked one is refused here."""
    store = AssetStore(tmp_path_factory.mktemp("assets ü:1"))
    ports = prepare.PreparePorts(
        engine=engine,
        store=store,
        fetcher=partial(wiring.fetcher, Settings.from_environment({})),
        clock=wiring.system_clock(),
        users=wiring.users(),
        say=lambda _: None,
    )
    done = prepare.run(prepare.PreparePlan(pack), ports)
    assert {asset.how for asset in done} == {prepare.How.MADE}
    assert {a.how for a in prepare.run(prepare.PreparePlan(pack), ports)} == {prepare.How.PRESENT}
    return store


def test_the_pack_has_no_fault(engine: ContainerEngine, pack: Pack, store: AssetStore) -> None:
    assert not task_check.run(pack.folder, task_check.CheckPorts(engine, store))


def test_the_image_that_prepares_would_give_every_final_row_away(
    engine: ContainerEngine, pack: Pack, store: AssetStore
) -> None:
    index = RowIndex()
    folder = store.locate(pack, "data/final")
    index.add(HiddenAsset("data/final", folder, final=True, allowed=frozenset()))
    image = image_reference("prepare-sklearn")
    hits = list(index.in_image(image, engine.image_files(image)))
    assert [(hit.file.rpartition("/")[2], hit.rows) for hit in hits] == [("digits.csv.gz", 719)]


class Result(NamedTuple):
    """Score and proxy of one checkpoint."""

    score: float
    proxy: float


class Bench:
    """The demo's steps and the evaluator, run on this host against the prepared assets."""

    def __init__(self, pack: Pack, store: AssetStore, folder: Path) -> None:
        self.pack, self.folder = pack, folder
        self.assets = folder / "assets"
        for name in pack.spec.assets:
            (self.assets / name).parent.mkdir(parents=True, exist_ok=True)
            (self.assets / name).symlink_to(store.locate(pack, name))
        shutil.copytree(pack.solution, folder / "workspace")
        for name in ("out", "tmp", "logs"):
            (folder / name).mkdir()
        (folder / "logs/instruction.md").write_text(render(pack, pack.spec, 900))
        shutil.copytree(bundled("harness"), folder / "harness")
        self.env = {
            **pack.spec.defaults.env,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "ASSETS_DIR": str(self.assets),
            "ORCH_LOGS_DIR": str(folder / "logs"),
            "ORCH_PROXY_COMMAND": str(pack.folder / "proxy/fast_eval.py"),
        }

    def here(self, command: str) -> str:
        """Put a command's container paths where they lie on this host."""
        return re.sub(
            r"(?:/opt)?/(harness|out|tmp|logs|assets)(?=/)",
            lambda found: str(self.folder / found.group(1)),
            command,
        )

    def step(self, command: str) -> str:
        """Run one step of the demo as the agent does."""
        return subprocess.run(
            ["bash", "-c", self.here(command)],
            cwd=self.folder / "workspace",
            env=self.env,
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        ).stdout

    def results(self, series: str) -> list[Result]:
        """Score every checkpoint of a series, in order of progress."""
        found = (self.folder / "out" / series / "checkpoints").iterdir()
        ordered = sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))
        return [self.measure(path) for path in ordered]

    def measure(self, checkpoint: Path) -> Result:
        """Score one model folder."""
        out = self.folder / "out"
        env = {**self.env, "CHECKPOINT_DIR": str(checkpoint), "OUTPUT_DIR": str(out)}
        for script, *arguments in (
            ("evaluator/final_eval.py",),
            ("proxy/fast_eval.py", checkpoint),
        ):
            shown = subprocess.run(
                [sys.executable, self.pack.folder / script, *arguments],
                env={**env, "ORCH_REFERENCE_RUN": "1"},
                check=True,
                capture_output=True,
                timeout=60,
            )
        summary = json.loads((out / "summary.json").read_text())
        return Result(summary["metrics"]["unlearn_score"], json.loads(shown.stdout)["value"])


def test_the_demo_finds_the_better_idea_and_the_score_agrees(
    pack: Pack, store: AssetStore, tmp_path: Path
) -> None:
    bench = Bench(pack, store, tmp_path / "bench")
    assert pack.spec.script is not None
    steps, _ = load_script(pack.folder / pack.spec.script)
    *research, last = steps
    assert last.run == "/opt/harness/submit.sh"
    said = "".join(bench.step(step.run) for step in research)
    assert "keeping idea B" in said
    assert "Forget one digit" in said

    start = bench.measure(bench.assets / "models/training_start")
    reference = bench.measure(bench.assets / "models/retain_reference")
    series = [bench.results(name) for name in ("baseline", "idea-a", "idea-b")]
    assert [len(results) for results in series] == [3, 3, 3]
    best = [Result(*map(max, zip(*results, strict=True))) for results in series]
    shipped, uniform, own = best
    for part in ("score", "proxy"):
        ranked = [getattr(result, part) for result in (start, shipped, uniform, own)]
        assert ranked == sorted(ranked), part
    assert uniform.score - shipped.score > 0.2
    assert abs(own.score - reference.score) < 0.05
    method = (tmp_path / "bench/workspace/method.py").read_text()
    assert "without class 0" in method


def test_a_replay_that_runs_out_of_time_publishes_what_it_has(
    pack: Pack, store: AssetStore, tmp_path: Path
) -> None:
    bench = Bench(pack, store, tmp_path / "bench")
    bench.env["DEADLINE_RESERVE_SECONDS"] = bench.env["MAX_WALL_TIME_SECONDS"] = "1"
    assert "stopped early" in bench.step("OUTPUT_DIR=/out/short bash run.sh")
    assert len(bench.results("short")) == 1


def test_two_runs_give_the_same_bytes(pack: Pack, store: AssetStore, tmp_path: Path) -> None:
    bench = Bench(pack, store, tmp_path / "bench")
    for name in ("one", "two"):
        bench.step(f"OUTPUT_DIR=/out/{name} bash run.sh")
    assert tree_digest(bench.folder / "out/one") == tree_digest(bench.folder / "out/two")


def test_the_commands_prepare_check_and_list(
    engine: ContainerEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ORCH_ASSETS", str(tmp_path / "assets"))
    assert orch(["task"]) == Exit.OK
    assert "digits_class0" in capsys.readouterr().out
    assert orch(["task", "check", "digits_class0", "--json"]) == Exit.OK
    warnings = json.loads(capsys.readouterr().out)
    assert {fault["severity"] for fault in warnings} == {"warning"}
    assert orch(["task", "prepare", "digits_class0", "--json"]) == Exit.OK
    assert len(json.loads(capsys.readouterr().out)) == 6
    assert orch(["task", "check", "digits_class0"]) == Exit.OK
    assert capsys.readouterr().out == "digits_class0: no faults\n"


def test_a_faulty_pack_ends_the_check_with_65(
    engine: ContainerEngine, pack: Pack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "a copy:1"
    shutil.copytree(pack.folder, copy)
    (copy / "task.yaml").write_text(pack.document.text + "titel: x\n")
    line = pack.document.text.count("\n") + 1
    assert orch(["task", "check", str(copy)]) == Exit.TASK_PACK
    said = capsys.readouterr().out
    assert said == f"task.yaml:{line}: titel: unknown key (did you mean title?)\n"
