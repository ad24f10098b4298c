"""Whatever is in a checkpoint's files, the validator for language models gives a verdict."""

import importlib.util
import json
import struct
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.config import bundled
from orchestrator.domain.outputs import ValidatorOutput

CONFIG = json.dumps({"architectures": ["A"], "hidden_size": 2, "tie_word_embeddings": True})
INDEX = "model.safetensors.index.json"
ROWS: dict[str, Any] = {
    "model.embed_tokens.weight": {"dtype": "F32", "shape": [3, 2], "data_offsets": [0, 24]},
    "model.norm.weight": {"dtype": "BF16", "shape": [2], "data_offsets": [24, 28]},
}


def _load() -> ModuleType:
    path = bundled("harness") / "validators/hf_causal_lm.py"
    spec = importlib.util.spec_from_file_location("hf_causal_lm_validator", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(path.parent)])
        spec.loader.exec_module(module)
    return module


validator = _load()


def _file(rows: Any, data: bytes = bytes(28)) -> bytes:
    head = json.dumps(rows).encode()
    return struct.pack("<Q", len(head)) + head + data


WHOLE = {
    "config.json": CONFIG.encode(),
    "model-1.safetensors": _file(ROWS),
    INDEX: json.dumps(
        {"metadata": {}, "weight_map": dict.fromkeys(ROWS, "model-1.safetensors")}
    ).encode(),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for folder in ("anchor", "ckpt", "out"):
        (root / folder).mkdir()
    for name, content in WHOLE.items():
        (root / "anchor" / name).write_bytes(content)
    return root


def _verdict(place: Path, files: dict[str, bytes]) -> ValidatorOutput:
    for name in WHOLE:
        (place / "ckpt" / name).unlink(missing_ok=True)
    for name, content in files.items():
        (place / "ckpt" / name).write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORCH_CHECKPOINT_DIR", str(place / "ckpt"))
        patch.setenv("ORCH_ANCHOR", str(place / "anchor"))
        patch.setenv("OUTPUT_DIR", str(place / "out"))
        validator.main(load=lambda *_: None)
    found = ValidatorOutput.model_validate_json((place / "out/validation.json").read_bytes())
    assert found.valid == (not found.reason)
    return found


def test_the_whole_one_is_valid(place: Path) -> None:
    assert _verdict(place, WHOLE).valid


_FAST = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@_FAST
@given(name=st.sampled_from(sorted(WHOLE)), at=st.floats(0, 1), new=st.binary(max_size=12))
def test_mutated_bytes_get_a_verdict(place: Path, name: str, at: float, new: bytes) -> None:
    whole = WHOLE[name]
    start = int(at * len(whole))
    mutated = whole[:start] + new + whole[start + max(1, len(new)) :]
    _verdict(place, WHOLE | {name: mutated})


@_FAST
@given(name=st.sampled_from(sorted(WHOLE)), cut=st.floats(0, 0.999))
def test_a_file_cut_anywhere_is_never_valid(place: Path, name: str, cut: float) -> None:
    whole = WHOLE[name]
    assert not _verdict(place, WHOLE | {name: whole[: int(cut * len(whole))]}).valid


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)
_ROW = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "F8_E5M2", "BOOL", "?"]) | _JSON,
        "shape": st.lists(st.integers(-1, 2**64), max_size=20) | _JSON,
        "data_offsets": st.lists(st.integers(-1, 2**64), max_size=3) | _JSON,
    }
)


@_FAST
@given(
    rows=st.dictionaries(st.sampled_from([*ROWS, "lm_head.weight", "x"]) | st.text(), _ROW | _JSON)
    | _JSON,
    data=st.binary(max_size=40),
)
def test_any_header_gets_a_verdict(place: Path, rows: Any, data: bytes) -> None:
    _verdict(place, WHOLE | {"model-1.safetensors": _file(rows, data)})


@_FAST
@given(config=_JSON, index=_JSON, places=_JSON)
def test_any_json_beside_the_weights_gets_a_verdict(
    place: Path, config: Any, index: Any, places: Any
) -> None:
    _verdict(place, WHOLE | {"config.json": json.dumps(config).encode()})
    _verdict(place, WHOLE | {INDEX: json.dumps(index).encode()})
    _verdict(place, WHOLE | {INDEX: json.dumps({"metadata": {}, "weight_map": places}).encode()})
