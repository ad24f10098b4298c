import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from orchestrator.domain.attempt import ConfigName, Series, slug
from orchestrator.domain.outputs import EvaluatorOutput
from orchestrator.domain.quantity import count, seconds, size


@pytest.mark.parametrize("name", ["official", "seed-1", "seed-9999", "ablation-12"])
def test_series_members_have_a_name(name: str) -> None:
    assert Series(name).name == name


@pytest.mark.parametrize(
    "name", ["", "seed", "seed-0", "seed-01", "seed-10000", "official-1", "Seed-1", "seed-1\n"]
)
def test_other_series_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not official"):
        Series(name)


@given(st.text())
def test_a_slug_is_a_safe_file_name(text: str) -> None:
    assert re.fullmatch(r"[a-z0-9_][a-z0-9_-]{0,39}", slug(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("Qwen/Qwen3:8b", "qwen-qwen3-8b"), ("caf\u00e9 \u2603", "cafe"), ("../..", "x"), ("", "x")],
)
def test_slugs_are_readable(text: str, expected: str) -> None:
    assert slug(text) == expected


def test_configs_that_slug_alike_differ_in_their_folder() -> None:
    one = ConfigName("a", "task", "org/model", "high")
    two = ConfigName("a", "task", "org:model", "high")
    assert one.folder != two.folder
    assert one.folder.startswith("a__task__org-model__high__")
    assert ConfigName("a__b", "c", "d", "e").folder != ConfigName("a", "b__c", "d", "e").folder


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (90, 90.0),
        ("45", 45.0),
        ("15m", 900.0),
        ("12h", 43200.0),
        ("1.5 h", 5400.0),
        ("2d", 172800.0),
        ("250ms", 0.25),
    ],
)
def test_durations(value: object, expected: float) -> None:
    assert seconds(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(5, 5), ("2g", 2 * 1024**3), ("256KiB", 262144), ("64MiB", 64 * 1024**2), ("1kb", 1000),
     ("1.5k", 1536), ("1T", 1024**4)],
)  # fmt: skip
def test_sizes(value: object, expected: int) -> None:
    assert size(value) == expected


def test_counts_are_decimal() -> None:
    assert [count(v) for v in ("20M", "5k", 7, "1G")] == [20_000_000, 5000, 7, 1_000_000_000]


@pytest.mark.parametrize("parse", [seconds, size, count])
@pytest.mark.parametrize(
    "value",
    [
        *(True, None, "", "abc", "-1", "1x", "1 2", "\u0661", [], "nan", "1e3"),
        *(float("inf"), -float("nan"), 10**400, "9" * 400),
    ],
    ids=lambda value: repr(value)[:9] + type(value).__name__,
)
def test_what_is_no_quantity_is_refused(parse: object, value: object) -> None:
    assert callable(parse)
    with pytest.raises(ValueError):
        parse(value)


@pytest.mark.parametrize(
    "said",
    [
        {"status": "invalid", "reason": "row 3 of the final data reads: the answer is 42"},
        {"status": "scored", "metrics": {"the answer is 42": 1.0}},
        {"status": "scored", "metrics": {"m": 1.0}, "baselines": {"start": {"a row\nof it": 1.0}}},
        {"status": "scored", "metrics": {"m": True}},
        {"status": "scored", "metrics": {"m": "0.5"}},
        {"status": "scored", "metrics": {"m": [0.5, True]}},
        {"status": "scored", "metrics": {}, "baselines": {"start": {"m": "0.5"}}},
    ],
)
def test_an_evaluator_gets_words_and_numbers_out_and_no_text(said: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        EvaluatorOutput.model_validate(said)
    assert EvaluatorOutput.model_validate({"status": "invalid", "reason": "start_weights"})
    whole = EvaluatorOutput.model_validate({"status": "scored", "metrics": {"m": 1, "n": [1, 0.5]}})
    assert whole.metrics == {"m": 1.0, "n": (1.0, 0.5)}
