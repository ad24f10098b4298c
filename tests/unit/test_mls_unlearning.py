"""The pack mls_unlearning without torch: its measures, its readers of data sets, its task files."""

import gzip
import io
import json
import math
import runpy
import statistics
import struct
import sys
import tarfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from orchestrator.agents.editor import load
from orchestrator.config import bundled
from orchestrator.domain.outputs import EvaluatorOutput
from orchestrator.domain.roles import DataRole, Phase, is_visible
from orchestrator.domain.source import ScriptSource, UrlSource
from orchestrator.evidence.instruction import render
from orchestrator.storage.pack import Pack, bundled_packs, load_pack

PACK = bundled("tasks") / "mls_unlearning"
TASKS = ("task", "mnist", "fmnist", "cifar10")
BASELINES = ("retain_finetune", "negative_gradient", "bad_teacher", "scrub")
measures = SimpleNamespace(**runpy.run_path(str(PACK / "evaluator/measures.py")))
weight_files = SimpleNamespace(
    **runpy.run_path(str(bundled("harness") / "validators/weight_files.py"))
)
prepare = SimpleNamespace(**runpy.run_path(str(PACK / "prepare.py")))


@pytest.mark.parametrize(
    ("retain_acc", "forget_acc", "auc", "score"),
    [
        (0.7047, 0.0, 0.4072, 0.7658),
        (0.4572, 0.0, 0.4775, 0.6599),
        (0.7485, 0.0, 0.6209, 0.7092),
        (0.7100, 0.0, 0.4865, 0.7412),
    ],
)
def test_the_published_scores_come_out(
    retain_acc: float, forget_acc: float, auc: float, score: float
) -> None:
    found = measures.unlearn_score(retain_acc, forget_acc, auc)
    assert found == pytest.approx(score, abs=5e-5)


@pytest.mark.parametrize("seed", range(5))
def test_the_auc_is_the_share_of_pairs_that_are_won_and_ties_count_half(seed: int) -> None:
    rng = np.random.default_rng(seed)
    members, others = (rng.integers(0, 6, size).tolist() for size in (17, 11))
    wins = sum((one > other) + (one == other) / 2 for one, other in product(members, others))
    assert measures.mann_whitney_auc(members, others) == pytest.approx(wins / (17 * 11))


def test_the_auc_at_its_ends_and_where_there_is_none() -> None:
    auc: Callable[..., float] = measures.mann_whitney_auc
    assert auc([0.9, 0.8], [0.1]) == 1.0
    assert auc([0.1], [0.9, 0.8]) == 0.0
    assert auc([0.5] * 3, [0.5] * 2) == 0.5
    assert all(map(math.isnan, (auc([], [0.1]), auc([0.1], []), auc([math.nan], [0.1]))))


def test_a_network_is_measured_on_the_rows_of_each_side() -> None:
    labels = [0, 0, 1, 2, 3]
    found = measures.measure([0, 1, 1, 2, 4], [0.9, 0.2, 0, 0, 0], labels, [0.1, 0.5], 0)
    assert found["retain_acc"] == pytest.approx(2 / 3)
    assert found["forget_acc"] == 0.5
    assert found["forget_mia_auc"] == 0.25
    assert found["unlearn_score"] == pytest.approx((2 / 3 + 0.5 + 0.75) / 3)
    assert found["auc_below_half"] == pytest.approx(0.25 / 3)


def test_an_auc_above_one_half_is_not_said_to_be_rewarded() -> None:
    found = measures.measure([1, 1], [0.1, 0.2], [0, 1], [0.9], 0)
    assert (found["forget_mia_auc"], found["auc_below_half"]) == (1.0, 0.0)


def test_a_class_without_rows_and_confidences_that_are_no_numbers_give_no_number() -> None:
    nothing = measures.measure([1], [0.5], [1], [0.9], 0)
    assert math.isnan(nothing["forget_acc"])
    sick = measures.measure([0, 1], [math.nan, 0.5], [0, 1], [0.9], 0)
    assert math.isnan(sick["unlearn_score"])
    flat = measures.over_seeds({42: sick, 123: sick})
    assert math.isnan(flat["unlearn_score"])
    assert math.isnan(flat["unlearn_score@sd"])


def test_seeds_are_summed_up_by_their_sample_standard_deviation() -> None:
    values = {42: 0.7658, 123: 0.6599, 456: 0.7092}
    flat = measures.over_seeds({seed: {"unlearn_score": v} for seed, v in values.items()})
    assert flat["unlearn_score"] == pytest.approx(statistics.fmean(values.values()))
    assert flat["unlearn_score@sd"] == pytest.approx(0.0529919)  # 0.0432677 by n
    assert {seed: flat[f"unlearn_score@{seed}"] for seed in values} == values
    EvaluatorOutput.model_validate({"status": "scored", "metrics": flat})


def idx(values: Any) -> bytes:
    array = np.asarray(values, dtype=np.uint8)
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def test_idx_files_are_read_packed_and_plain(tmp_path: Path) -> None:
    images = np.arange(3 * 8 * 8).reshape(3, 8, 8)
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx([7, 0, 9]))
    rows = prepare.read_idx(tmp_path, "t10k")
    assert rows.x.shape == (3, 1, 8, 8)
    assert np.array_equal(rows.x[:, 0], images)
    assert rows.y.tolist() == [7, 0, 9]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0",
        b"\0\0\x08\x03\0\0\0\x01",
        idx([1, 2])[:-1],
        idx([1, 2]) + b"\0",
        idx([1, 2]).replace(b"\x08", b"\x0d", 1),
        b"<html>",
    ],
    ids=["nothing", "a piece", "no lengths", "short", "long", "floats", "a page"],
)
def test_what_is_no_idx_file_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="IDX"):
        prepare.parse_idx(data)


def test_images_and_labels_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(np.zeros((3, 8, 8))))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx([7, 0]))
    with pytest.raises(ValueError, match="3 images and 2 labels"):
        prepare.read_idx(tmp_path, "train")


def batch(labels: list[int], fill: int = 0) -> bytes:
    pixels = np.arange(3 * 32 * 32, dtype=np.int64)
    return b"".join(
        bytes([label]) + ((pixels + fill + row) % 251).astype(np.uint8).tobytes()
        for row, label in enumerate(labels)
    )


def test_a_batch_of_cifar10_is_read_by_channel_row_and_column() -> None:
    rows = prepare.parse_cifar10(batch([3, 0]))
    assert rows.x.shape == (2, 3, 32, 32)
    assert rows.y.tolist() == [3, 0]
    assert rows.x[1, 2, 1, 5] == (2 * 1024 + 32 + 5 + 1) % 251


@pytest.mark.parametrize("data", [b"", batch([1])[:-1], batch([10])], ids=["none", "cut", "label"])
def test_what_is_no_batch_of_cifar10_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"batch|labels up to 10"):
        prepare.parse_cifar10(data)


def write_mnist(folder: Path, train: Any, test: Any) -> None:
    folder.mkdir(parents=True)
    for prefix, (x, y) in (("train", train), ("t10k", test)):
        images, labels = f"{prefix}-images-idx3-ubyte.gz", f"{prefix}-labels-idx1-ubyte.gz"
        (folder / images).write_bytes(gzip.compress(idx(x)))
        (folder / labels).write_bytes(gzip.compress(idx(y)))


def write_cifar10(folder: Path) -> None:
    folder.mkdir(parents=True)
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as archive:
        for number, name in enumerate(names):
            data = batch([number, 0, 1, 2], fill=10 * number)
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def made(out: Path, asset: str) -> tuple[Any, Any]:
    x, y = (np.load(out / asset / f"{name}.npy", allow_pickle=False) for name in "xy")
    assert (x.dtype, y.dtype) == (np.uint8, np.int64)
    return x, y


def test_the_assets_of_mnist_keep_test_images_out_of_the_training_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    train_x, test_x = (rng.integers(0, 256, (size, 28, 28)) for size in (40, 10))
    train_x[7], train_x[23] = test_x[2], test_x[2]
    labels = rng.integers(0, 10, 40), rng.integers(0, 10, 10)
    write_mnist(tmp_path / "in/mnist", (train_x, labels[0]), (test_x, labels[1]))
    prepare.main(tmp_path / "out", "mnist", tmp_path / "in")
    train, validation, test = (
        made(tmp_path / "out", f"data/{name}") for name in ("train", "validation", "test")
    )
    assert [len(rows[1]) for rows in (train, validation, test)] == [34, 4, 10]
    assert np.array_equal(test[0][:, 0], test_x)
    known = {image.tobytes(): label for image, label in zip(train_x, labels[0], strict=True)}
    seen = [*zip(*train, strict=True), *zip(*validation, strict=True)]
    assert all(known[image.astype(np.int64).tobytes()] == label for image, label in seen)
    assert len({image.tobytes() for image, _ in seen}) == 38
    assert not {image.tobytes() for image, _ in seen} & {image.tobytes() for image in test[0]}
    config = json.loads((tmp_path / "out/models/start/config.json").read_text())
    assert config["network"] == {"channels": 1, "size": 28, "width": 16, "classes": 10}
    assert (config["benchmark"], config["forget_class"]) == ("mnist-class0", 0)


def test_the_start_is_a_network_for_each_seed_that_validators_can_read(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "in/cifar10")
    prepare.main(tmp_path / "out", "cifar10", tmp_path / "in")
    files = [tmp_path / f"out/models/start/seed-{seed}.safetensors" for seed in (42, 123, 456)]
    shapes = [{name: found.shape for name, found in weight_files.header(f).items()} for f in files]
    assert shapes[0] == shapes[1] == shapes[2]
    assert shapes[0]["conv1.weight"] == (32, 3, 3, 3)
    assert shapes[0]["linear1.weight"] == (64, 64 * 8 * 8)
    assert shapes[0]["linear2.bias"] == (10,)
    assert len(shapes[0]) == 8
    assert len({file.read_bytes() for file in files}) == 3
    weights = prepare.initial({"channels": 3, "size": 32, "width": 32, "classes": 10}, 42)
    bound = 1 / math.sqrt(64 * 8 * 8)
    assert 0.99 * bound < np.abs(weights["linear1.weight"]).max() <= bound


def test_the_assets_of_cifar10_come_out_of_its_archive(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "in/cifar10")
    prepare.main(tmp_path / "out", "cifar10", tmp_path / "in")
    x, y = made(tmp_path / "out", "data/test")
    assert x.shape == (4, 3, 32, 32)
    assert y.tolist() == [5, 0, 1, 2]
    sizes = [len(made(tmp_path / "out", f"data/{name}")[1]) for name in ("train", "validation")]
    assert sizes == [18, 2]
    config = json.loads((tmp_path / "out/models/start/config.json").read_text())
    assert config["network"]["channels"] == 3


@pytest.fixture(params=TASKS)
def pack(request: pytest.FixtureRequest) -> Pack:
    return load_pack(PACK / f"{request.param}.yaml")


def test_each_data_set_is_a_task_of_its_own() -> None:
    packs = [load_pack(PACK / f"{name}.yaml") for name in TASKS]
    assert {pack.source for pack in packs} <= set(bundled_packs())
    assert len({pack.spec.name for pack in packs}) == len({pack.digest for pack in packs}) == 4
    assert load_pack(Path("mls_unlearning/mnist.yaml")) == packs[1]
    for rule in ("interface", "edit", "workspace", "checkpoints", "patch", "instructions"):
        assert len({repr(getattr(pack.spec, rule)) for pack in packs}) == 1
    assert len({repr((p.spec.score.metric, p.spec.score.note)) for p in packs}) == 1


def test_only_the_evaluator_sees_test_rows_and_only_a_test_sees_validation_rows(
    pack: Pack,
) -> None:
    seen = {
        phase: {
            name
            for name, asset in pack.spec.assets.items()
            if is_visible(asset.role, phase, frozenset(asset.also))
        }
        for phase in Phase
    }
    start, train = "models/start", "data/train"
    assert seen[Phase.EXPLORE] == {start, train, "data/validation"}
    assert seen[Phase.REPLAY] == {start, train}
    assert seen[Phase.SCORE] == {start, train, "data/test"}
    assert pack.spec.assets["data/test"].role is DataRole.FINAL


def test_each_data_set_is_read_from_what_is_fetched_for_it(pack: Pack) -> None:
    name = (pack.spec.prepare.env or {})["DATASET"]
    files: set[str] = set()
    if name != "digits":
        source = pack.spec.downloads[name]
        assert isinstance(source, UrlSource)
        files = set(source.urls)
    for asset in pack.spec.assets.values():
        assert isinstance(asset.source, ScriptSource)
        assert asset.source.inputs == ((name,) if files else ())
    wanted = {
        f"{p}-{k}-ubyte.gz" for p in ("train", "t10k") for k in ("images-idx3", "labels-idx1")
    }
    assert files == {"cifar10": {"cifar-10-binary.tar.gz"}, "digits": set()}.get(name, wanted)
    assert name in prepare.READERS


def test_the_evaluator_has_network_and_measures_of_its_own_and_they_are_the_same() -> None:
    for name in ("network.py", "measures.py"):
        shown = PACK / "solution/bench" / name
        assert (PACK / "evaluator" / name).read_bytes() == shown.read_bytes()
    code = "".join(path.read_text() for path in (PACK / "evaluator").glob("*.py"))
    assert "import bench" not in code
    assert "from bench" not in code


def test_weights_are_read_whatever_a_library_notes_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the validator accepts, the evaluator can read."""
    nn = SimpleNamespace(Module=object, functional=None)
    torch = SimpleNamespace(
        nn=nn, Tensor=np.ndarray, from_numpy=lambda array: array, no_grad=lambda: lambda it: it
    )
    for name, module in {"torch": torch, "torch.nn": nn, "torch.nn.functional": nn}.items():
        monkeypatch.setitem(sys.modules, name, module)
    header = {
        "__metadata__": {"format": "pt"},
        "w": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]},
    }
    text = json.dumps(header).encode()
    file = tmp_path / "seed-42.safetensors"
    file.write_bytes(struct.pack("<Q", len(text)) + text + np.array([1, 2], "<f4").tobytes())
    assert weight_files.header(file).keys() == {"w"}
    network = runpy.run_path(str(PACK / "evaluator/network.py"))
    (read,) = network["read_weights"](file).items()
    assert (read[0], read[1].tolist()) == ("w", [[1.0], [2.0]])


def test_harness_evaluator_and_start_have_the_seeds_of_mls_bench() -> None:
    for name in ("solution/bench/harness.py", "evaluator/final_eval.py", "prepare.py"):
        assert "\nSEEDS = (42, 123, 456)\n" in (PACK / name).read_text()


def test_the_editable_lines_are_all_of_the_method_and_nothing_else(pack: Pack) -> None:
    assert pack.spec.edit is not None
    source = load(pack, pack.spec.edit).files["bench/custom.py"]
    (span,) = source.spans
    first, empty = source.lines[: span.start - 1]
    assert first.endswith('All that follows may be edited; the harness around it is fixed."""')
    assert empty == ""
    assert span.end == len(source.lines)


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_changes_editable_lines_only(name: str) -> None:
    text = (PACK / "baselines" / f"{name}.py").read_text()
    shipped = (PACK / "solution/bench/custom.py").read_text()
    assert text.splitlines()[:2] == shipped.splitlines()[:2]
    assert "class UnlearningMethod:" in text
    assert text != shipped


def test_the_baselines_are_these_four() -> None:
    assert {path.stem for path in (PACK / "baselines").glob("*")} == set(BASELINES)


def test_agent_and_reader_are_told_that_an_auc_below_one_half_is_rewarded(pack: Pack) -> None:
    told = render(pack, pack.spec, wall=pack.spec.explore.wall)
    assert "An AUC below 0.5 is rewarded" in told
    assert "below 0.5 is rewarded" in pack.spec.score.note
    assert "auc_below_half" in pack.spec.score.components


def test_the_reference_points_are_the_baselines_and_add_up() -> None:
    points = {point.name: point for point in load_pack(PACK).spec.reference}
    assert set(BASELINES) <= set(points)
    for point in points.values():
        parts = (point.components[name] for name in ("retain_acc", "forget_acc"))
        score = measures.unlearn_score(*parts, point.components["forget_mia_auc"])
        assert point.value == pytest.approx(score)
    assert points["retain_finetune"].components["forget_acc"] > 0.5
    assert max(BASELINES, key=lambda name: points[name].value or 0) == "bad_teacher"
