"""What the validators of weights say of files that torch and transformers write, in their image."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import docker
import pytest

from orchestrator.config import Settings, bundled
from tests.large_images import require_image

pytestmark = pytest.mark.docker

SETTINGS = Settings.from_environment()
CASES = Path(__file__).with_name("weight_cases.py")
VALID = ""


@pytest.fixture(scope="module")
def verdicts() -> Mapping[str, Any]:
    """One container for all: importing is what takes the time."""
    image = require_image("hf-cpu")
    client = docker.DockerClient(base_url=SETTINGS.engine_address)
    answer = client.containers.run(
        image,
        ["python3", "/cases.py"],
        network_mode="none",
        read_only=True,
        remove=True,
        tmpfs={"/tmp": "size=64m"},
        user="10001:10001",
        volumes={
            str(CASES): {"bind": "/cases.py", "mode": "ro"},
            str(bundled("harness")): {"bind": "/opt/harness", "mode": "ro"},
        },
    )
    client.close()
    found: Mapping[str, Any] = json.loads(answer)
    return found


@pytest.mark.parametrize(
    ("case", "reason"),
    {
        "anchor": VALID,
        "shards": VALID,
        "shards whose index says more": VALID,
        "a file without metadata": VALID,
        "bfloat16": VALID,
        "head that is the embedding": VALID,
        "head that is not the embedding": "tied_weights",
        "head of its own": VALID,
        "large numbers": VALID,
        "output that is not finite": "nonfinite",
        "output that need not be finite": VALID,
        "code": VALID,
        "by the configuration": VALID,
        "a layer too few": "missing_tensor",
        "a layer too many": "unexpected_tensor",
        "another shape": "shape_mismatch",
        "state": VALID,
        "state as a container judges it": VALID,
        "state without an anchor": VALID,
        "state of another shape": "shape_mismatch",
        "state of another dtype": "dtype_mismatch",
        "state that is not finite": "nonfinite",
        "state that need not be finite": VALID,
        "state that lacks a tensor": "missing_tensor",
        "state with one more": "unexpected_tensor",
        "tensor larger than its storage": "corrupt_file",
        "sparse tensor": "unexpected_value",
        "tensor of nothing": "unexpected_value",
        "a list in itself": "unexpected_value",
        "two tensors of one name": "unexpected_value",
        "eight bits": VALID,
        "eight bits, not finite": "nonfinite",
        "CK-09 tensor cut by one byte": "corrupt_file",
        "CK-09 old format": "corrupt_file",
        "CK-18 pickle": "pickle_refused",
        "CK-18 module": "pickle_refused",
    }.items(),
)
def test_a_verdict_is_the_right_one(verdicts: Mapping[str, Any], case: str, reason: str) -> None:
    assert verdicts[case]["reason"] == reason, verdicts[case]
    assert verdicts[case]["valid"] == (reason == VALID)


def test_every_case_has_a_verdict_to_expect(verdicts: Mapping[str, Any]) -> None:
    (marker,) = (m for m in test_a_verdict_is_the_right_one.pytestmark if m.name == "parametrize")
    assert verdicts.keys() - {"pwned"} == dict(marker.args[1]).keys()


def test_CK_18_loading_runs_nothing_of_a_checkpoint(verdicts: Mapping[str, Any]) -> None:
    assert verdicts["pwned"] is False
    assert "modeling_x.py" in verdicts["code"]["detail"]


def test_what_was_counted_is_told(verdicts: Mapping[str, Any]) -> None:
    for case, arrays in {"anchor": 11, "shards": 11, "head that is the embedding": 12}.items():
        assert (verdicts[case]["arrays"], verdicts[case]["parameters"]) == (arrays, 2272)
    assert (verdicts["state"]["arrays"], verdicts["state"]["parameters"]) == (2, 7)
