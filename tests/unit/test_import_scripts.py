"""The scripts of an imported pack that run what the image brings, here on the host."""

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from orchestrator.config import bundled
from orchestrator.domain.outputs import EvaluatorOutput, ValidatorOutput

PATHS = ("/logs/verifier", "/assets/data/tests", "/workspace", "/tests", "/ckpt", "/out")


def script(name: str) -> Path:
    return bundled("templates") / "import" / name


def module(name: str) -> ModuleType:
    """Load a script without running what it does as one."""
    spec = importlib.util.spec_from_file_location(Path(name).stem, script(name))
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


EVALUATE, VALIDATE = module("ai4ai_evaluate.py"), module("ai4ai_validate.py")
HARBOR = module("harbor_evaluate.py")


class Bench:
    """A folder in place of a container's file system, and one script in it."""

    def __init__(self, folder: Path, name: str, **source: Any) -> None:
        self.folder, self.script = folder, folder / "opt" / name
        text = script(name).read_text()
        for path in PATHS:
            (folder / path[1:]).mkdir(parents=True, exist_ok=True)
            text = text.replace(f'Path("{path}', f'Path("{folder}{path}')
        self.script.parent.mkdir()
        self.script.write_text(text)
        self.script.with_name("source.json").write_text(json.dumps(source))

    def run(self) -> int:
        return subprocess.run([sys.executable, self.script], check=False).returncode

    def out(self, name: str) -> Any:
        return json.loads((self.folder / "out" / name).read_text())


def writes(path: Path, document: object, code: int) -> list[str]:
    """Return a command that writes a document and exits."""
    text = json.dumps(document)
    return [sys.executable, "-c", f"open({str(path)!r}, 'w').write({text!r}); exit({code})"]


def test_what_the_sources_evaluator_says_goes_on_without_its_words(tmp_path: Path) -> None:
    said = {"metric": "m", "status": "rejected", "reason": "row 7 is in the weights"}
    argv = writes(tmp_path / "out/summary.json", said, 1)
    bench = Bench(tmp_path, "ai4ai_evaluate.py", argv=argv, metric="m")
    assert bench.run() == 0
    assert bench.out("summary.json") == {"status": "invalid", "reason": "rejected"}
    assert bench.out("source-summary.json") == said


def test_an_evaluator_that_writes_nothing_has_failed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "ai4ai_evaluate.py", argv=["true"], metric="m")
    assert bench.run() == 1
    assert not list((tmp_path / "out").iterdir())


def test_a_score_and_all_numbers_beside_it_go_on_and_no_text() -> None:
    found = EVALUATE.ours(
        {
            "metric": "accuracy",
            "status": "passed",
            "score": 0.5,
            "n": 3,
            "ok": True,
            "evaluator_seed": 7,
            "Seeds": {"first": 8},
            "rows": [1, 2, 3],
            "reference": "row 7: the capital of France",
            "candidate": {"loss": 1.5, "text": "secret", "deep": {"er": 2}},
            "a name of many words": 1,
            "broken": math.inf,
        },
        "accuracy",
    )
    assert found == {
        "status": "scored",
        "metrics": {
            "accuracy": 0.5,
            "score": 0.5,
            "n": 3.0,
            "candidate.loss": 1.5,
            "candidate.deep.er": 2.0,
        },
    }
    EvaluatorOutput.model_validate(found)


@pytest.mark.parametrize(
    "said",
    [
        {"metric": "another", "score": 0.5},
        {"metric": "accuracy", "status": "failed", "score": 0.5},
        {"metric": "accuracy", "status": "incomplete", "score": 0.5},
        {"metric": "accuracy"},
        {"metric": "accuracy", "score": True},
        {"metric": "accuracy", "score": "0.5"},
        {"metric": "accuracy", "score": math.nan},
        [1],
    ],
)
def test_what_is_neither_a_score_nor_a_refusal_is_a_failure_of_the_evaluator(said: object) -> None:
    assert EVALUATE.ours(said, "accuracy") is None


def test_only_so_many_numbers_go_on_the_shallow_ones_first() -> None:
    rows = {f"row{number}": number for number in range(2000)}
    found = EVALUATE.ours({"metric": "m", "rows": rows, "score": 1.0, "n": 7}, "m")
    EvaluatorOutput.model_validate(found)
    assert len(found["metrics"]) == 501
    assert (found["metrics"]["m"], found["metrics"]["n"]) == (1.0, 7.0)


@pytest.mark.parametrize(
    ("said", "code", "exit_code", "reason"),
    [
        ({"status": "valid", "details": {}}, 0, 0, ""),
        ({"status": "invalid", "reason": "ValueError: no"}, 0, 0, "not_loadable"),
        ({"status": "valid"}, 1, 1, None),
        ({"status": "unsure"}, 0, 1, None),
        ([], 0, 1, None),
    ],
)
def test_what_the_sources_validator_says_goes_on(
    tmp_path: Path, said: object, code: int, exit_code: int, reason: str | None
) -> None:
    argv = writes(tmp_path / "out/validation.json", said, code)
    bench = Bench(tmp_path, "ai4ai_validate.py", argv=argv, kind="file", payload="model.pt")
    (tmp_path / "ckpt/model.pt").write_bytes(b"x")
    assert bench.run() == exit_code
    if reason is not None:
        found = ValidatorOutput.model_validate(bench.out("validation.json"))
        assert (found.valid, found.reason) == (not reason, reason)


@pytest.mark.parametrize(
    ("kind", "files", "whole"),
    [
        ("file", {}, False),
        ("file", {"model.pt": b""}, False),
        ("file", {"model.pt": b"x"}, True),
        ("weights", {"a.safetensors": b""}, False),
        ("weights", {"a.safetensors": b"x"}, True),
        ("weights", {"sub/a.safetensors": b"x"}, False),
        ("model", {"a.bin": b"x"}, False),
        ("model", {"a.bin": b"x", "config.json": b"{}"}, True),
        ("model", {"a.bin": b"x", "adapter_config.json": b"{}"}, True),
        ("model", {"config.json": b"{}"}, False),
    ],
)
def test_the_form_of_a_checkpoint_is_its_kinds(
    tmp_path: Path, kind: str, files: dict[str, bytes], whole: bool
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    payload = tmp_path / "model.pt" if kind == "file" else tmp_path
    assert VALIDATE.is_whole(kind, payload) is whole


def test_a_checkpoint_without_its_form_is_refused_before_anything_runs(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "ai4ai_validate.py", argv=["false"], kind="model", payload=".")
    assert bench.run() == 0
    assert bench.out("validation.json")["reason"] == "incomplete"


def test_harbors_tests_find_what_was_published_where_it_lay(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "harbor_evaluate.py", workdir=f"{tmp_path}/workspace")
    (tmp_path / "ckpt/answer.txt").write_text("42\n")
    reward = f"{tmp_path}/logs/verifier/reward.txt"
    test = f"[ $(cat answer.txt) = 42 ] && echo 0.75 > {reward}\nexit 1"
    (tmp_path / "assets/data/tests/test.sh").write_text(test)
    assert bench.run() == 0
    assert bench.out("summary.json") == {"status": "scored", "metrics": {"reward": 0.75}}


@pytest.mark.parametrize(
    ("files", "rewards"),
    [
        ({"reward.txt": "1\n"}, {"reward": 1.0}),
        ({"reward.json": "0.5"}, {"reward": 0.5}),
        (
            {"reward.txt": "0", "reward.json": '{"reward": 1, "style": 0.5}'},
            {"reward": 1.0, "style": 0.5},
        ),
    ],
)
def test_rewards_of_harbor_are_read_as_it_reads_them(
    tmp_path: Path, files: dict[str, str], rewards: dict[str, float]
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert HARBOR.rewards(tmp_path) == rewards


@pytest.mark.parametrize(
    "written",
    ["", "nan", "yes", '{"reward": true}', '{"style": 1}', '{"reward": NaN}', '{"reward": "1"}'],
)
def test_without_a_finite_reward_the_tests_have_failed(tmp_path: Path, written: str) -> None:
    name = "reward.json" if written.startswith("{") else "reward.txt"
    (tmp_path / name).write_text(written)
    with pytest.raises(ValueError, match=r"."):
        HARBOR.rewards(tmp_path)
    with pytest.raises(OSError, match=r"reward"):
        HARBOR.rewards(tmp_path / "nothing")
