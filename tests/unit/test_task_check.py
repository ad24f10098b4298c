import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from orchestrator.adapters.fake_clock import FakeClock
from orchestrator.adapters.in_memory import InMemoryEngine
from orchestrator.errors import UsageError
from orchestrator.evidence.tree import tree_digest
from orchestrator.phases.task_check import CheckPorts, run
from orchestrator.storage.assets import AssetStore, seal
from orchestrator.storage.located_yaml import parse, set_in_mapping
from orchestrator.storage.pack import Fault, Severity, load_pack
from tests.unit.pack_help import TASK, line_of, make_pack

RNG = np.random.default_rng(3)
TRAIN, FINAL = (RNG.integers(0, 17, (5, 64)) / 16.0 for _ in range(2))
NUMPY = "/usr/local/lib/python3.11/dist-packages/numpy/__init__.py"
WEIGHTS = RNG.normal(size=(4, 9))


def _npy(rows: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, rows)
    return content.getvalue()


class Bench:
    """A prepared pack and an engine with one image."""

    def __init__(self, folder: Path, **assets: np.ndarray) -> None:
        contents = {"models/start": WEIGHTS, "data/train": TRAIN, "data/final": FINAL} | {
            name.replace("_", "/"): rows for name, rows in assets.items()
        }
        self.store = AssetStore(folder / "store")
        self.text = TASK
        self.task = make_pack(folder / "pack")
        for name, rows in contents.items():
            made = folder / "made" / name
            made.mkdir(parents=True)
            (made / "rows.npy").write_bytes(_npy(rows))
            seal(made)
            digest = tree_digest(made)
            self.store.adopt(load_pack(self.task), name, made, digest)
            document, _ = parse(self.text)
            assert document is not None
            self.text = set_in_mapping(document, ("assets", name), "digest", digest)
        self.task.write_text(self.text)
        self.images: dict[str, Mapping[str, bytes]] = {"orch/cpu-numpy:1": {NUMPY: b""}}

    def engine(self) -> InMemoryEngine:
        return InMemoryEngine(images=self.images, clock=FakeClock())

    def check(self, engine: InMemoryEngine | None = None) -> tuple[Fault, ...]:
        return run(self.task, CheckPorts(engine or self.engine(), self.store))


def test_a_sound_prepared_pack_has_no_fault(tmp_path: Path) -> None:
    assert not Bench(tmp_path).check()


def test_final_rows_in_the_train_role_are_an_error_at_the_assets_line(tmp_path: Path) -> None:
    bench = Bench(tmp_path, data_train=np.concatenate([TRAIN, FINAL[:2] * 16]))
    (fault,) = bench.check()
    assert fault.line == line_of(bench.text, "data/final")
    assert fault.severity is Severity.ERROR
    assert "2 of its rows are also in data/train, rows.npy" in fault.message


def test_a_declared_overlap_is_no_fault(tmp_path: Path) -> None:
    bench = Bench(tmp_path, data_train=FINAL)
    bench.task.write_text(
        bench.text.replace("role: final", "role: final\n    overlap: [data/train]")
    )
    assert not bench.check()


@pytest.mark.parametrize(
    ("validator", "held", "lacks"),
    [
        ("hf-causal-lm", ["numpy", "torch"], "transformers"),
        ("hf-causal-lm", [], "torch, transformers"),
        ("torch-state", ["torch/nn", "torchvision"], "torch"),
        ("hf-causal-lm", ["torch", "transformers"], None),
        ("torch-state", ["torch"], None),
    ],
)
def test_an_image_without_what_the_validator_needs_is_an_error(
    tmp_path: Path, validator: str, held: list[str], lacks: str | None
) -> None:
    bench = Bench(tmp_path)
    phase = f"validate: {{image: hf-cpu, validator: {validator}}}"
    bench.task.write_text(f"{bench.text}\n{phase}\n")
    bench.images["orch/hf-cpu:1"] = {
        f"/usr/lib/python3/site-packages/{name}/__init__.py": b"" for name in held
    }
    faults = bench.check()
    assert [fault.where for fault in faults] == ["validate.image"] * bool(lacks)
    assert not lacks or faults[0].message == f"lacks what the validator needs: {lacks}"
    assert all(fault.severity is Severity.ERROR for fault in faults)


def test_final_rows_in_a_candidates_image_are_an_error(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    rows = "\n".join(",".join(map(str, [*row, label])) for label, row in enumerate(FINAL * 16))
    bench.images["orch/cpu-numpy:1"] = {NUMPY: b"", "/usr/lib/sklearn/digits.csv": rows.encode()}
    (fault,) = bench.check()
    assert fault.severity is Severity.ERROR
    assert "5 rows of data/final are in image cpu-numpy, /usr/lib/sklearn" in fault.message


def test_a_changed_asset_is_an_error_with_both_digests(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    pack = load_pack(bench.task)
    file = bench.store.locate(pack, "data/train") / "rows.npy"
    file.chmod(0o644)
    file.write_bytes(_npy(TRAIN + 1))
    (fault,) = bench.check()
    assert fault.where == "assets.data/train.digest"
    assert tree_digest(file.parent) in fault.message
    assert fault.message.endswith("(orch task prepare mends it)")


def test_what_could_not_be_looked_at_is_a_warning(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.task.write_text(TASK)
    bench.images.clear()
    down = bench.engine()
    down.go_down()
    for engine in (bench.engine(), down):
        faults = bench.check(engine)
        assert {fault.severity for fault in faults} == {Severity.WARNING}
        assert sum("no locked digest" in fault.message for fault in faults) == 3
        assert sum("image" in fault.where for fault in faults) == 1


def test_faults_of_the_text_and_of_the_rows_come_together(tmp_path: Path) -> None:
    bench = Bench(tmp_path, data_train=FINAL)
    (bench.task.parent / "instruction.md").unlink()
    (bench.task.parent / "solution/run.sh").chmod(0o644)
    messages = " ".join(map(str, bench.check()))
    for part in ("instruction.md: no such file", "executable run.sh", "also in data/train"):
        assert part in messages


@pytest.mark.parametrize(
    "text", [b"\xff", b"{{ nope }}", b"{{ 1/0 }}", b"{{ ''.__class__ }}", b"{{ range(10**9) }}"]
)
def test_an_instruction_that_cannot_be_rendered_is_a_fault(tmp_path: Path, text: bytes) -> None:
    bench = Bench(tmp_path)
    (bench.task.parent / "instruction.md").write_bytes(text)
    (fault,) = bench.check()
    assert ": instructions: " in str(fault)
    assert "instruction.md: " in str(fault)


def test_text_without_a_meaning_is_reported_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.task.write_text(bench.text + "titel: x\n")
    (fault,) = bench.check()
    assert str(fault).endswith("titel: unknown key (did you mean title?)")


def test_no_task_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        run(tmp_path / "none", CheckPorts(Bench(tmp_path).engine(), AssetStore(tmp_path)))


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"/workspace/run.sh": b""}, ""),
        ({"/workspace/train.py": b""}, "holds no executable run.sh"),
        ({"/opt/x": b""}, "has no /workspace"),
    ],
)
def test_a_shipped_solution_in_an_image_is_looked_at(
    tmp_path: Path, files: dict[str, bytes], said: str
) -> None:
    bench = Bench(tmp_path)
    text = bench.task.read_text()
    bench.task.write_text(text.replace("from: solution/", "from: image"))
    bench.images = {"orch/cpu-numpy:1": {NUMPY: b"", **files}}
    found = [fault for fault in bench.check() if fault.where == "workspace.from"]
    assert [said in fault.message for fault in found] == [True] * bool(said)
    bench.images = {}
    assert not [fault for fault in bench.check() if fault.where == "workspace.from"]
