"""Whatever is in a checkpoint's file, the NumPy validator gives a verdict."""

import importlib.util
import io
import warnings
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.config import bundled


def _load() -> ModuleType:
    path = bundled("harness") / "validators/numpy.py"
    spec = importlib.util.spec_from_file_location("numpy_validator", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


validator = _load()
ARRAYS = {"w1": np.ones((3, 4)), "b1": np.zeros(4, dtype=np.float32)}


def _whole(*, compressed: bool) -> bytes:
    content = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(content, **ARRAYS)
    return content.getvalue()


WHOLE = (_whole(compressed=False), _whole(compressed=True))


@pytest.fixture(scope="module")
def anchor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("anchor")
    (folder / "weights.npz").write_bytes(WHOLE[0])
    return folder


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(
    whole=st.sampled_from(WHOLE),
    hits=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=6),
    end=st.integers(0, 2) | st.just(0),
)
def test_any_damage_is_a_verdict(
    anchor: Path,
    tmp_path: Path,
    whole: bytes,
    hits: list[tuple[float, int]],
    end: int,
) -> None:
    damaged = bytearray(whole)
    for place, value in hits:
        damaged[int(place * len(damaged))] = value
    (tmp_path / "weights.npz").write_bytes(damaged[: len(damaged) - end])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile warns of names given twice
        with suppress(validator.Invalid):  # a verdict; anything else that is raised is a crash
            validator.check(tmp_path, validator.expected(anchor), finite=True)
