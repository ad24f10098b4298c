"""The built-in NumPy validator, run as the container runs it."""

import io
import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.config import bundled

VALIDATOR = bundled("harness") / "validators/numpy.py"
WEIGHTS = {"w1": np.ones((3, 4)), "b1": np.zeros(4, dtype=np.float32)}


def _save(folder: Path, arrays: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    np.savez(folder / "weights.npz", **arrays)
    return folder


def _validate(tmp_path: Path, checkpoint: Path, **env: str) -> dict[str, Any]:
    anchor = tmp_path / "anchor"
    if not anchor.exists():
        _save(anchor, WEIGHTS)
        (anchor / "config.json").write_text("{}")
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    places = {"ORCH_CHECKPOINT_DIR": checkpoint, "OUTPUT_DIR": out, "ORCH_ANCHOR": anchor}
    subprocess.run(
        [sys.executable, VALIDATOR],
        env={"PATH": os.environ["PATH"], **{k: str(v) for k, v in places.items()}, **env},
        check=True,
        timeout=60,
    )
    verdict: dict[str, Any] = json.loads((out / "validation.json").read_text())
    return verdict


def test_a_whole_checkpoint_is_valid(tmp_path: Path) -> None:
    checkpoint = _save(tmp_path / "c", {name: array + 1 for name, array in WEIGHTS.items()})
    (checkpoint / "notes.json").write_text('{"epoch": 3}')
    verdict = _validate(tmp_path, checkpoint)
    assert verdict == {"valid": True, "reason": "", "detail": "", "arrays": 2, "parameters": 16}


def test_plain_array_files_are_compared_too(tmp_path: Path) -> None:
    for name in ("anchor", "c"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "w.npy", np.ones(5))
    assert _validate(tmp_path, tmp_path / "c")["valid"]


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"w1": WEIGHTS["w1"]}, "missing_array"),
        ({**WEIGHTS, "w9": np.ones(2)}, "unexpected_array"),
        ({**WEIGHTS, "b1": np.zeros(5, dtype=np.float32)}, "shape_mismatch"),
        ({**WEIGHTS, "b1": np.zeros(4)}, "dtype_mismatch"),
        ({**WEIGHTS, "w1": np.full((3, 4), np.nan)}, "nonfinite"),
        ({**WEIGHTS, "w1": np.full((3, 4), np.inf)}, "nonfinite"),
        ({**WEIGHTS, "w1": np.array([[None]])}, "object_dtype"),
        ({**WEIGHTS, "w1": np.zeros(2, dtype=[("a", "f8")])}, "object_dtype"),
    ],
)
def test_arrays_that_are_not_the_anchors_are_refused(
    tmp_path: Path, arrays: dict[str, Any], reason: str
) -> None:
    verdict = _validate(tmp_path, _save(tmp_path / "c", arrays))
    assert (verdict["valid"], verdict["reason"]) == (False, reason)


def test_nonfinite_weights_are_valid_where_the_task_allows_them(tmp_path: Path) -> None:
    checkpoint = _save(tmp_path / "c", {**WEIGHTS, "w1": np.full((3, 4), np.nan)})
    assert _validate(tmp_path, checkpoint, ORCH_ALLOW_NONFINITE="1")["valid"]


def test_CK_06_a_checkpoint_without_its_weights_is_invalid(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c/config.json").write_text("{}")
    verdict = _validate(tmp_path, tmp_path / "c")
    assert (verdict["valid"], verdict["reason"]) == (False, "missing_weights")
    assert "weights.npz" in verdict["detail"]


def _npy(array: Any) -> bytes:
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def _archive(*members: tuple[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in members:
            archive.writestr(name, data)
    return content.getvalue()


_W1, _B1 = _npy(WEIGHTS["w1"]), _npy(WEIGHTS["b1"])
_WHOLE = _archive(("w1.npy", _W1), ("b1.npy", _B1))
_HUGE = _W1.replace(b"(3, 4), }", b"(3" + b"0" * 15 + b", 4), }")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "corrupt_file"),
        (_WHOLE[:-1], "corrupt_file"),
        (_WHOLE[: len(_WHOLE) // 2], "corrupt_file"),
        (_WHOLE.replace(b"\x00\x00\xf0?", b"\x00\x00\xf1?", 1), "corrupt_file"),
        (_archive(("w1.npy", _W1[:-1]), ("b1.npy", _B1)), "corrupt_file"),
        (_archive(("w1.npy", _W1 + b"x"), ("b1.npy", _B1)), "corrupt_file"),
        (_archive(("w1.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31))), "corrupt_file"),
        (_archive(("w1.npy", _HUGE)), "shape_mismatch"),
        (_archive(("w1.npy", _W1.replace(b"'shape'", b"'sh' * 9"))), "corrupt_file"),
        (_archive(("w1.npy", pickle.dumps(WEIGHTS["w1"]))), "corrupt_file"),
        (_archive(*[(f"a{n}", b"") for n in range(10_001)]), "corrupt_file"),
    ],
)
def test_CK_09_damaged_files_are_invalid_and_no_crash(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c/weights.npz").write_bytes(content)
    verdict = _validate(tmp_path, tmp_path / "c")
    assert (verdict["valid"], verdict["reason"]) == (False, reason)


def test_a_member_given_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    with pytest.warns(UserWarning, match="Duplicate name"):
        twice = _archive(("w1.npy", _W1), ("b1.npy", _B1), ("w1.npy", _W1))
    (tmp_path / "c/weights.npz").write_bytes(twice)
    assert _validate(tmp_path, tmp_path / "c")["reason"] == "corrupt_file"


class _Touch:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["weights.npz", "pytorch_model.bin"])
def test_CK_18_a_pickle_in_a_checkpoint_is_never_run(tmp_path: Path, name: str) -> None:
    canary = tmp_path / "pwned"
    checkpoint = _save(tmp_path / "c", WEIGHTS)
    hostile = np.empty((3, 4), dtype=object)
    hostile[:] = _Touch(canary)
    if name == "weights.npz":
        np.savez(checkpoint / name, **{**WEIGHTS, "w1": hostile})
    else:
        (checkpoint / name).write_bytes(pickle.dumps(_Touch(canary)))
    assert not _validate(tmp_path, checkpoint)["valid"]
    assert not canary.exists()


@pytest.mark.parametrize("spoil", ["link.json", "fifo.json", "huge.json", "bad.json", "deep.json"])
def test_nothing_but_arrays_and_small_json_is_accepted(tmp_path: Path, spoil: str) -> None:
    checkpoint = _save(tmp_path / "c", WEIGHTS)
    path = checkpoint / spoil
    match spoil:
        case "link.json":
            path.symlink_to(tmp_path / "anchor/config.json")
        case "fifo.json":
            os.mkfifo(path)
        case "huge.json":
            path.write_text("[" + " " * 1024**2 + "]")
        case "bad.json":
            path.write_bytes(b"\xff")
        case _:
            path.write_text("[" * 100_000)
    assert not _validate(tmp_path, checkpoint)["valid"]


def test_a_broken_anchor_is_a_crash_not_a_verdict(tmp_path: Path) -> None:
    (tmp_path / "anchor").mkdir()
    (tmp_path / "anchor/weights.npz").write_bytes(_WHOLE[:-1])
    checkpoint = _save(tmp_path / "c", WEIGHTS)
    with pytest.raises(subprocess.CalledProcessError):
        _validate(tmp_path, checkpoint)
    assert not (tmp_path / "out/validation.json").exists()
