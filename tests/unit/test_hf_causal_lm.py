"""The first step of the validator for causal language models, which loads nothing."""

import json
import math
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config import bundled
from orchestrator.domain.task import BuiltinValidator
from tests.unit.weights_help import SIZES, Payload, Tensors, bounded, safetensors, tensor

VALIDATOR = bundled("harness") / "validators" / BuiltinValidator.HF_CAUSAL_LM.file
STRUCTURE = f"""
import sys
sys.path.append({str(VALIDATOR.parent)!r})
import {VALIDATOR.stem} as validator
validator.main(load=lambda *_: None)
"""
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_size": 4,
    "vocab_size": 6,
    "tie_word_embeddings": True,
}
EMBEDDING, HEAD, LAYER = (
    "model.embed_tokens.weight",
    "lm_head.weight",
    "model.layers.0.mlp.up_proj.weight",
)
WEIGHTS: Tensors = {EMBEDDING: tensor("BF16", 6, 4), LAYER: tensor("BF16", 8, 4)}


def save(folder: Path, tensors: Tensors = WEIGHTS, **config: Any) -> Path:
    """Save a model in one file."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    (folder / "model.safetensors").write_bytes(safetensors(tensors))
    return folder


def save_shards(folder: Path, shards: Mapping[str, Tensors]) -> Path:
    """Save a model in shards."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for name, tensors in shards.items():
        (folder / name).write_bytes(safetensors(tensors))
    places = {name: shard for shard, tensors in shards.items() for name in tensors}
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


TWO = {
    "model-00001-of-00002.safetensors": {EMBEDDING: WEIGHTS[EMBEDDING]},
    "model-00002-of-00002.safetensors": {LAYER: WEIGHTS[LAYER]},
}


def validate(tmp_path: Path, checkpoint: Path, **env: str) -> dict[str, Any]:
    """Run the validator in 200 MB and 5 s of processor time."""
    anchor = tmp_path / "anchor"
    if not anchor.exists():
        save(anchor)
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    places = {"ORCH_CHECKPOINT_DIR": checkpoint, "OUTPUT_DIR": out, "ORCH_ANCHOR": anchor}
    subprocess.run(
        [sys.executable, "-c", STRUCTURE],
        env={"PATH": os.environ["PATH"], **{k: str(v) for k, v in places.items()}, **env},
        check=True,
        timeout=60,
        preexec_fn=bounded,
    )
    verdict: dict[str, Any] = json.loads((out / "validation.json").read_text())
    return verdict


def reason(tmp_path: Path, checkpoint: Path, **env: str) -> str:
    """Return the verdict's slug, "" for valid."""
    verdict = validate(tmp_path, checkpoint, **env)
    assert verdict["valid"] == (not verdict["reason"])
    return str(verdict["reason"])


def test_a_whole_checkpoint_is_valid(tmp_path: Path) -> None:
    checkpoint = save(tmp_path / "c")
    (checkpoint / "tokenizer.json").write_text("not even JSON")
    verdict = validate(tmp_path, checkpoint)
    assert verdict == {"valid": True, "reason": "", "detail": "", "arrays": 2, "parameters": 56}


def test_shards_and_one_file_are_the_same_model(tmp_path: Path) -> None:
    assert reason(tmp_path, save_shards(tmp_path / "c", TWO)) == ""


def test_a_float_may_be_kept_in_other_bits(tmp_path: Path) -> None:
    wide = {EMBEDDING: tensor("F32", 6, 4), LAYER: tensor("F16", 8, 4)}
    assert reason(tmp_path, save(tmp_path / "c", wide)) == ""


def test_CK_06_a_checkpoint_that_was_cut_off_has_no_weights(tmp_path: Path) -> None:
    checkpoint = save(tmp_path / "c")
    (checkpoint / "model.safetensors").unlink()
    assert reason(tmp_path, checkpoint) == "missing_weights"


def test_CK_07_a_missing_shard_is_named(tmp_path: Path) -> None:
    checkpoint = save_shards(tmp_path / "c", TWO)
    (checkpoint / "model-00002-of-00002.safetensors").unlink()
    verdict = validate(tmp_path, checkpoint)
    assert verdict["reason"] == "missing_shard"
    assert "model-00002-of-00002.safetensors" in verdict["detail"]


WHOLE = safetensors(WEIGHTS)


def _described(**changes: Any) -> bytes:
    head = {LAYER: {"dtype": "BF16", "shape": [8, 4], "data_offsets": [0, 64]} | changes}
    text = json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + bytes(64)


BROKEN = {
    "cut_by_one_byte": WHOLE[:-1],
    "empty": b"",
    "length_2_60": struct.pack("<Q", 2**60) + WHOLE[8:],
    "length_all_ones": struct.pack("<Q", 2**64 - 1) + WHOLE[8:],
    "no_length": WHOLE[:7],
    "cut_in_header": WHOLE[:40],
    "one_more_byte": WHOLE + b"\0",
    "large_header": struct.pack("<Q", 5 * 1024**2) + b" " * 5 * 1024**2,
    "deep_header": struct.pack("<Q", 2 * 1024**2) + b"[" * 2 * 1024**2,
    "list_header": struct.pack("<Q", 2) + b"[]",
    "short_tensor": _described(data_offsets=[0, 63]),
    "backward": _described(data_offsets=[64, 0]),
    "beyond": _described(data_offsets=[0, 2**70]),
    "bool_offset": _described(data_offsets=[True, 64]),
    "negative_shape": _described(shape=[8, -4]),
    "float_shape": _described(shape=[8, 4.0]),
    "many_dimensions": _described(shape=[1] * 40 + [32]),
    "huge_shape": _described(shape=[2**62] * 16),
    "unknown_dtype": _described(dtype="F31"),
    "list_dtype": _described(dtype=["BF16"]),
    "extra_key": _described(extra=1),
    "not_utf8": WHOLE.replace(b"up_proj", b"\xff\xfeproj"[:7]),
    "same_key_twice": WHOLE.replace(b'"dtype"', b'"shape"', 1),
    "bad_metadata": WHOLE.replace(b'"__metadata__": {', b'"__metadata__": 1, "a": {'),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_CK_09_a_broken_file_is_corrupt_within_five_seconds_and_200_MB(
    tmp_path: Path, broken: str
) -> None:
    checkpoint = save(tmp_path / "c")
    (checkpoint / "model.safetensors").write_bytes(BROKEN[broken])
    assert reason(tmp_path, checkpoint) == "corrupt_file"


def _overlapping() -> bytes:
    row = {"dtype": "BF16", "shape": [8, 4], "data_offsets": [0, 64]}
    text = json.dumps({LAYER: row, EMBEDDING: row}).encode()
    return struct.pack("<Q", len(text)) + text + bytes(64)


def test_tensors_that_share_bytes_are_corrupt(tmp_path: Path) -> None:
    checkpoint = save(tmp_path / "c")
    (checkpoint / "model.safetensors").write_bytes(_overlapping())
    assert "overlap" in validate(tmp_path, checkpoint)["detail"]


def test_CK_15_a_link_inside_a_checkpoint_is_not_followed(tmp_path: Path) -> None:
    checkpoint = save(tmp_path / "c")
    (checkpoint / "model.safetensors").rename(checkpoint / "real")
    (checkpoint / "model.safetensors").symlink_to("real")
    assert reason(tmp_path, checkpoint) == "unexpected_file"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "x.pt", "deep/y.PKL", "optimizer.pth"])
def test_CK_18_a_pickle_is_refused_and_never_opened(tmp_path: Path, name: str) -> None:
    checkpoint = save(tmp_path / "c")
    (checkpoint / name).parent.mkdir(exist_ok=True)
    (checkpoint / name).write_bytes(pickle.dumps(Payload(tmp_path / "pwned")))
    (checkpoint / name).chmod(0)
    verdict = validate(tmp_path, checkpoint)
    assert verdict["reason"] == "pickle_refused"
    assert name in verdict["detail"]
    assert not (tmp_path / "pwned").exists()


def test_CK_18_code_that_a_checkpoint_brings_is_noted_and_not_run(tmp_path: Path) -> None:
    evil = {"auto_map": {"AutoModelForCausalLM": "modeling_x.Model"}, "trust_remote_code": True}
    checkpoint = save(tmp_path / "c", **evil)
    (checkpoint / "modeling_x.py").write_text(f"open({str(tmp_path / 'pwned')!r}, 'w')")
    verdict = validate(tmp_path, checkpoint)
    assert verdict["valid"]
    assert verdict["detail"] == (
        "ignored: config.json auto_map, config.json trust_remote_code, modeling_x.py"
    )
    assert not (tmp_path / "pwned").exists()


NONFINITE = {
    "F64": [math.nan, math.inf, -math.inf],
    "F32": [math.nan, math.inf, -math.inf],
    "F16": [math.nan, math.inf, -math.inf],
}


@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        *(("F64", struct.pack("<d", value)) for value in NONFINITE["F64"]),
        *(("F32", struct.pack("<f", value)) for value in NONFINITE["F32"]),
        *(("F16", struct.pack("<e", value)) for value in NONFINITE["F16"]),
        *(("BF16", struct.pack("<f", value)[2:]) for value in NONFINITE["F32"]),
        ("F32", b"\x01\x00\x80\x7f"),
        ("BF16", b"\x81\xff"),
    ],
)
def test_numbers_that_are_not_finite_are_found_wherever_they_are(
    tmp_path: Path, dtype: str, number: bytes
) -> None:
    size = SIZES[dtype]
    largest = {"F64": "<d", "F32": "<f", "F16": "<e"}.get(dtype)
    fill = struct.pack(largest, -65504.0) if largest else b"\x7f\xff"
    data = fill * 23 + number
    weights = {EMBEDDING: tensor(dtype, 6, 4, data=data), LAYER: tensor(dtype, 8, 4)}
    assert len(data) == 24 * size
    assert reason(tmp_path, save(tmp_path / "c", weights)) == "nonfinite"
    assert reason(tmp_path, tmp_path / "c", ORCH_ALLOW_NONFINITE="1") == ""
    finite = {**weights, EMBEDDING: tensor(dtype, 6, 4, data=fill * 24)}
    assert reason(tmp_path, save(tmp_path / "d", finite)) == ""


def test_a_number_in_a_later_chunk_is_found_in_little_memory(tmp_path: Path) -> None:
    rows = 40 * 1024**2
    large = {EMBEDDING: tensor("BF16", rows), LAYER: WEIGHTS[LAYER]}
    save(tmp_path / "anchor", large)
    data = bytearray(2 * rows)
    checkpoint = save(tmp_path / "c", {**large, EMBEDDING: tensor("BF16", rows, data=bytes(data))})
    assert reason(tmp_path, checkpoint) == ""
    data[-2:] = b"\xc0\x7f"
    checkpoint = save(tmp_path / "d", {**large, EMBEDDING: tensor("BF16", rows, data=bytes(data))})
    assert reason(tmp_path, checkpoint) == "nonfinite"


@pytest.mark.parametrize(
    ("weights", "slug"),
    [
        ({**WEIGHTS, LAYER: tensor("BF16", 4, 8)}, "shape_mismatch"),
        ({**WEIGHTS, LAYER: tensor("I64", 8, 4)}, "dtype_mismatch"),
        ({**WEIGHTS, "model.extra": tensor("BF16", 1)}, "unexpected_tensor"),
        ({EMBEDDING: WEIGHTS[EMBEDDING]}, "missing_tensor"),
        ({LAYER: WEIGHTS[LAYER], HEAD: WEIGHTS[EMBEDDING]}, "missing_tensor"),
        ({**WEIGHTS, HEAD: tensor("BF16", 4, 6)}, "tied_weights"),
        ({**WEIGHTS, HEAD: tensor("BF16", 6, 4)}, ""),
    ],
)
def test_tensors_are_the_anchors(tmp_path: Path, weights: Tensors, slug: str) -> None:
    assert reason(tmp_path, save(tmp_path / "c", weights)) == slug


def test_a_head_of_its_own_must_be_there(tmp_path: Path) -> None:
    untied = {**WEIGHTS, HEAD: tensor("BF16", 6, 4)}
    save(tmp_path / "anchor", untied, tie_word_embeddings=False)
    config = {"tie_word_embeddings": False}
    assert reason(tmp_path, save(tmp_path / "c", untied, **config)) == ""
    assert reason(tmp_path, save(tmp_path / "d", WEIGHTS, **config)) == "missing_tensor"
    assert reason(tmp_path, save(tmp_path / "e", untied)) == "bad_config"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"hidden_size": 4, "hidden_size": 4}',
        json.dumps(CONFIG | {"hidden_size": 5}),
        json.dumps(CONFIG | {"architectures": ["Other"]}),
        json.dumps(CONFIG | {"tie_word_embeddings": "yes"}),
        json.dumps(CONFIG | {"rope_theta": math.nan}),
        json.dumps(CONFIG | {"pad": "x" * 1024**2}),
        "[" * 100_000,
        '{"n": ' + "9" * 10_000 + "}",
    ],
    ids=lambda text: text[:12] + str(len(text)),
)
def test_a_configuration_that_is_not_the_anchors_is_bad(tmp_path: Path, text: str) -> None:
    checkpoint = save(tmp_path / "c")
    (checkpoint / "config.json").write_text(text)
    assert reason(tmp_path, checkpoint) == "bad_config"


def _index(checkpoint: Path, **changes: Any) -> None:
    path = checkpoint / "model.safetensors.index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


FIRST, SECOND = TWO


@pytest.mark.parametrize(
    ("places", "slug"),
    [
        ({EMBEDDING: FIRST, LAYER: FIRST}, "unexpected_file"),
        ({EMBEDDING: SECOND, LAYER: FIRST}, "unexpected_tensor"),
        ({EMBEDDING: FIRST}, "unexpected_file"),
        ({EMBEDDING: FIRST, LAYER: SECOND, "model.more": SECOND}, "missing_tensor"),
        ({EMBEDDING: "../c/" + FIRST, LAYER: SECOND}, "corrupt_file"),
        ({EMBEDDING: "/etc/passwd", LAYER: SECOND}, "corrupt_file"),
        ({EMBEDDING: 1, LAYER: SECOND}, "corrupt_file"),
        ({}, "corrupt_file"),
        ([], "corrupt_file"),
    ],
)
def test_the_index_is_held_against_the_shards(tmp_path: Path, places: Any, slug: str) -> None:
    checkpoint = save_shards(tmp_path / "c", TWO)
    _index(checkpoint, weight_map=places)
    assert reason(tmp_path, checkpoint) == slug


def test_an_index_without_metadata_is_one_that_loaders_stumble_over(tmp_path: Path) -> None:
    checkpoint = save_shards(tmp_path / "c", TWO)
    _index(checkpoint, metadata=None)
    assert reason(tmp_path, checkpoint) == "corrupt_file"


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    both = {SECOND: {**TWO[FIRST], **TWO[SECOND]}, FIRST: TWO[FIRST]}
    checkpoint = save_shards(tmp_path / "c", both)
    assert reason(tmp_path, checkpoint) == "unexpected_tensor"


def test_weights_that_nothing_names_are_refused(tmp_path: Path) -> None:
    checkpoint = save(tmp_path / "c")
    (checkpoint / "adapter.safetensors").write_bytes(WHOLE)
    assert reason(tmp_path, checkpoint) == "unexpected_file"


def test_hostile_names_give_a_plain_verdict(tmp_path: Path) -> None:
    checkpoint = save(tmp_path / "c", {**WEIGHTS, "\ud800\x1b[2J": tensor("BF16", 1)})
    verdict = validate(tmp_path, checkpoint)
    assert verdict["reason"] == "unexpected_tensor"
    assert "\\ud800" in verdict["detail"]


def test_an_anchor_that_is_broken_is_no_verdict(tmp_path: Path) -> None:
    anchor = save(tmp_path / "anchor")
    (anchor / "model.safetensors").write_bytes(WHOLE[:-1])
    with pytest.raises(subprocess.CalledProcessError):
        validate(tmp_path, save(tmp_path / "c"))


def test_an_anchor_of_a_configuration_alone_leaves_names_and_shapes_to_the_loading(
    tmp_path: Path,
) -> None:
    anchor = save(tmp_path / "anchor")
    (anchor / "model.safetensors").unlink()
    other = {"model.other": tensor("F32", 3)}
    assert reason(tmp_path, save(tmp_path / "c", other)) == ""
    assert reason(tmp_path, save(tmp_path / "d", hidden_size=5)) == "bad_config"
    whole = {"model.other": tensor("I64", 3)}
    assert reason(tmp_path, save(tmp_path / "e", whole)) == "dtype_mismatch"


def test_without_torch_a_whole_checkpoint_gets_no_verdict_and_a_broken_one_does(
    tmp_path: Path,
) -> None:
    anchor, out = save(tmp_path / "anchor"), tmp_path / "out"
    out.mkdir()

    def run(checkpoint: Path) -> subprocess.CompletedProcess[str]:
        places = {"ORCH_CHECKPOINT_DIR": checkpoint, "OUTPUT_DIR": out, "ORCH_ANCHOR": anchor}
        return subprocess.run(
            [sys.executable, "-S", VALIDATOR],
            env={name: str(path) for name, path in places.items()},
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )

    crashed = run(anchor)
    assert crashed.returncode == 1
    assert crashed.stderr.endswith("No module named 'torch'\n")
    assert not list(out.iterdir())
    (tmp_path / "empty").mkdir()
    assert run(tmp_path / "empty").returncode == 0
    assert json.loads((out / "validation.json").read_text())["reason"] == "missing_weights"
