"""What the validator of PyTorch state judges without loading anything, in 200 MB and 5 s."""

import json
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config import bundled
from orchestrator.domain.task import BuiltinValidator
from tests.unit.weights_help import Payload, Tensors, bounded, safetensors, tensor

VALIDATOR = bundled("harness") / "validators" / BuiltinValidator.TORCH_STATE.file
WEIGHTS: Tensors = {"w": tensor("F32", 2, 3), "n": tensor("I64", 1)}
FILE = "state.safetensors"


def save(folder: Path, tensors: Tensors = WEIGHTS, name: str = FILE) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(safetensors(tensors))
    return folder


def validate(
    checkpoint: Path, anchor: Path | None, *, finite: bool = True
) -> subprocess.CompletedProcess[str]:
    out = checkpoint.parent / "out"
    out.mkdir(exist_ok=True)
    places = {"ORCH_CHECKPOINT_DIR": checkpoint, "OUTPUT_DIR": out, "ORCH_ANCHOR": anchor or ""}
    return subprocess.run(
        [sys.executable, "-S", VALIDATOR],
        env={
            "PATH": os.environ["PATH"],
            "ORCH_ALLOW_NONFINITE": "0" if finite else "1",
            **{name: str(path) for name, path in places.items()},
        },
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=bounded,
    )


def verdict(checkpoint: Path, anchor: Path | None, *, finite: bool = True) -> dict[str, Any]:
    done = validate(checkpoint, anchor, finite=finite)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((checkpoint.parent / "out/validation.json").read_text())
    assert found["valid"] == (not found["reason"])
    return found


@pytest.fixture
def anchor(tmp_path: Path) -> Path:
    return save(tmp_path / "anchor")


def test_a_whole_checkpoint_is_valid(tmp_path: Path, anchor: Path) -> None:
    checkpoint = save(tmp_path / "c")
    (checkpoint / "notes.json").write_text("{}")
    assert verdict(checkpoint, anchor) == {
        "valid": True, "reason": "", "detail": "", "arrays": 2, "parameters": 7,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({"w": WEIGHTS["w"]}, "missing_tensor"),
        ({**WEIGHTS, "more": tensor("F32", 1)}, "unexpected_tensor"),
        ({**WEIGHTS, "w": tensor("F32", 3, 2)}, "shape_mismatch"),
        ({**WEIGHTS, "w": tensor("BF16", 2, 3)}, "dtype_mismatch"),
        ({**WEIGHTS, "w": tensor("F32", 2, 3, data=b"\x00\x00\x80\x7f" * 6)}, "nonfinite"),
    ],
)
def test_tensors_are_the_anchors_and_finite(
    tmp_path: Path, anchor: Path, tensors: Tensors, reason: str
) -> None:
    assert verdict(save(tmp_path / "c", tensors), anchor)["reason"] == reason
    lenient = verdict(tmp_path / "c", anchor, finite=False)["reason"]
    assert lenient == ("" if reason == "nonfinite" else reason)


def test_without_state_in_the_anchor_any_state_will_do_but_none_will_not(tmp_path: Path) -> None:
    (tmp_path / "anchor").mkdir()
    (tmp_path / "none").mkdir()
    for anchor in (tmp_path / "anchor", None):
        assert verdict(save(tmp_path / "c"), anchor)["arrays"] == 2
        assert verdict(tmp_path / "none", anchor)["reason"] == "missing_weights"


def test_CK_06_a_checkpoint_that_was_cut_off_has_no_weights(tmp_path: Path, anchor: Path) -> None:
    checkpoint = tmp_path / "c"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text("{}")
    found = verdict(checkpoint, anchor)
    assert (found["reason"], found["detail"]) == (
        "missing_weights",
        f"{FILE}: not in the checkpoint",
    )


def test_CK_07_one_file_of_several_that_is_not_there_is_named(tmp_path: Path, anchor: Path) -> None:
    save(anchor, name="second.safetensors")
    found = verdict(save(tmp_path / "c"), anchor)
    assert found["reason"] == "missing_weights"
    assert "second.safetensors" in found["detail"]


WHOLE = safetensors(WEIGHTS)


@pytest.mark.parametrize(
    "broken", [WHOLE[:-1], b"", (2**60).to_bytes(8, "little") + WHOLE[8:], WHOLE + b"0"]
)
def test_CK_09_a_broken_file_is_corrupt(tmp_path: Path, anchor: Path, broken: bytes) -> None:
    checkpoint = save(tmp_path / "c")
    (checkpoint / FILE).write_bytes(broken)
    assert verdict(checkpoint, anchor)["reason"] == "corrupt_file"


def _archive(path: Path, *, packed: bool = False) -> bytes:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("state/data.pkl", pickle.dumps({}))
        method = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
        archive.writestr("state/data/0", bytes(1000), method)
    return path.read_bytes()


def test_CK_09_an_archive_that_is_cut_empty_or_packed_is_corrupt(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    path = tmp_path / "c/state.pt"
    whole = _archive(path)
    for broken in (whole[:-1], b"", whole[:-22], pickle.dumps({}), _archive(path, packed=True)):
        path.write_bytes(broken)
        assert verdict(tmp_path / "c", None)["reason"] == "corrupt_file"
    path.write_bytes(whole)
    assert "No module named 'torch'" in validate(tmp_path / "c", None).stderr


@pytest.mark.parametrize("name", ["model.pkl", "modeling.py", "optimizer.ckpt", "w.npy"])
def test_CK_18_what_is_no_state_is_refused_and_never_opened(
    tmp_path: Path, anchor: Path, name: str
) -> None:
    checkpoint = save(tmp_path / "c")
    (checkpoint / name).write_bytes(pickle.dumps(Payload(tmp_path / "pwned")))
    found = verdict(checkpoint, anchor)
    assert found["reason"] == "unexpected_file"
    assert name in found["detail"]
    assert not (tmp_path / "pwned").exists()


def test_a_link_is_refused(tmp_path: Path, anchor: Path) -> None:
    checkpoint = tmp_path / "c"
    checkpoint.mkdir()
    (checkpoint / FILE).symlink_to(anchor / FILE)
    assert verdict(checkpoint, anchor)["reason"] == "unexpected_file"


def test_a_file_far_larger_than_the_anchors_is_refused_unread(tmp_path: Path, anchor: Path) -> None:
    checkpoint = save(tmp_path / "c")
    with (checkpoint / FILE).open("r+b") as file:
        file.truncate(2 * 1024**2)
    assert verdict(checkpoint, anchor)["reason"] == "too_large"


def test_json_beside_the_weights_is_small_and_well_formed(tmp_path: Path, anchor: Path) -> None:
    for text in ("{", "[" * 100_000, f'"{"x" * 1024**2}"'):
        (save(tmp_path / "c") / "notes.json").write_text(text)
        assert verdict(tmp_path / "c", anchor)["reason"] in {"corrupt_file", "too_large"}


def test_an_anchor_that_is_broken_is_no_verdict(tmp_path: Path, anchor: Path) -> None:
    (anchor / FILE).write_bytes(WHOLE[:-1])
    done = validate(save(tmp_path / "c"), anchor)
    assert done.returncode == 1
    assert "the anchor is not usable" in done.stderr
