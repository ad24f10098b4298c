"""The formulas of the TOFU evaluation against published figures and numbers taken by hand."""

import importlib.util
import math
from types import ModuleType

import pytest

from orchestrator.config import bundled
from orchestrator.domain.records import ScoredCheckpoint, ScoreStatus, best_of
from orchestrator.domain.task import Direction

NAN, INFINITY = math.nan, math.inf


def _formulas() -> ModuleType:
    path = bundled("tasks") / "tofu_npo_llama3p2_1b/evaluator/formulas.py"
    spec = importlib.util.spec_from_file_location("tofu_formulas", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tofu = _formulas()
START = tofu.Point(0.707805, 0.597131)


@pytest.mark.parametrize(
    ("predicted", "expected"),
    [("1234", 1.0), ("9234", 0.75), ("1239", 0.25), ("9994", 0.25), ("9999", 0.25), ("1934", 0.5)],
)
def test_extraction_strength_is_the_share_of_the_end_that_is_right(
    predicted: str, expected: float
) -> None:
    assert tofu.extraction_strength(list(map(int, predicted)), [1, 2, 3, 4]) == expected


def test_extraction_strength_at_its_edges() -> None:
    assert tofu.extraction_strength([9], [1]) == 1.0
    assert tofu.extraction_strength([], []) == 0.0
    with pytest.raises(ValueError, match="1 predictions for 2 tokens"):
        tofu.extraction_strength([1], [1, 2])


def _by_definition(predicted: list[int], answer: list[int]) -> float:
    for k in range(len(answer)):
        if predicted[k:] == answer[k:]:
            break
    return 1 - k / len(answer)


def test_extraction_strength_is_what_its_definition_says() -> None:
    answer = [1, 2, 3, 4, 5]
    for wrong in range(2**5):
        predicted = [token + 10 * (wrong >> at & 1) for at, token in enumerate(answer)]
        found = tofu.extraction_strength(predicted, answer)
        assert found == pytest.approx(_by_definition(predicted, answer), abs=1e-15)


def test_probability_and_its_share_among_options() -> None:
    assert tofu.probability(math.log(4)) == pytest.approx(0.25)
    assert tofu.probability_with_options(0.3, [0.1, 0.2]) == pytest.approx(0.5)
    assert tofu.probability_with_options(0.3, [0.1, 0.2]) < 0.5  # the 1e-10 below the line
    assert tofu.probability_with_options(0.0, [0.0, 0.0]) == 0.0


def test_the_truth_ratio_averages_the_losses_of_wrong_answers() -> None:
    ratio = tofu.truth_ratio(math.log(2), [math.log(4), math.log(16)])
    assert ratio == pytest.approx(0.125 / 0.5, rel=1e-9)  # exp of the mean, not the mean of exps
    assert tofu.truth_ratio(800.0, [0.0]) == pytest.approx(1e10)
    assert tofu.truthfulness([0.25, 1.0, 7.0]) == pytest.approx(0.25)


def test_the_harmonic_mean_of_the_nine_parts() -> None:
    assert len(tofu.UTILITY_PARTS) == 9
    parts = dict.fromkeys(tofu.UTILITY_PARTS, 0.5)
    assert tofu.model_utility(parts) == pytest.approx(0.5)
    parts["world_facts_rouge"] = 0.1
    assert tofu.model_utility(parts) == pytest.approx(9 / (8 / 0.5 + 1 / 0.1))
    assert tofu.model_utility({**parts, "retain_truth_ratio": 0.0}) == 0.0
    with pytest.raises(KeyError):
        tofu.model_utility(dict.fromkeys(tofu.UTILITY_PARTS[1:], 1.0))
    for values in ([], [0.5, -0.1]):
        with pytest.raises(ValueError, match="no harmonic mean"):
            tofu.harmonic_mean(values)


def _score(start: tuple[float, float], strength: float, candidate: tuple[float, float]) -> float:
    points = tofu.Point(*start), tofu.Point(strength, 0.5), tofu.Point(*candidate)
    score: float = tofu.balance(*points).balanced_unlearning_score
    return score


def test_the_balanced_score_of_known_points() -> None:
    start = (0.80, 0.75)
    assert _score(start, 0.10, (0.25, 0.70)) == pytest.approx(0.8531855956, abs=5e-11)
    assert _score(start, 0.10, start) == 0.0
    assert _score(start, 0.10, (0.0, 0.0)) == 0.0
    assert _score(start, 0.10, (0.05, 0.80)) == 1.0
    full = tofu.balance(START, tofu.Point(0.06, 0.5), tofu.Point(0.02, 0.955492 * 0.597131))
    assert full.forget_progress == 1.0
    assert full.utility_retention == pytest.approx(0.955492)
    assert full.balanced_unlearning_score == pytest.approx(0.9772397102, abs=3e-7)


@pytest.mark.parametrize("reference", [0.0552, 0.059, 0.063436, 0.09])
def test_the_shipped_solution_scores_as_published(reference: float) -> None:
    assert 0.8847 < _score(START, reference, (0.063436, 0.478673)) < 0.8899


def test_the_best_of_the_three_published_checkpoints_is_the_one_in_the_middle() -> None:
    published = {7800: 0.9756664461, 9100: 0.9772397102, 9960: 0.9771339901}
    scores = []
    for progress, score in published.items():
        retention = score / (2 - score)  # all progress made
        found = _score(START, 0.06, (0.05, retention * START.model_utility))
        assert found == pytest.approx(score, abs=5e-11)
        scores.append(
            ScoredCheckpoint(
                checkpoint=f"checkpoint-{progress}",
                progress=progress,
                status=ScoreStatus.SCORED,
                value=found,
                reason="",
                summary_sha256="sha256:" + "0" * 64,
            )
        )
    best = best_of(tuple(scores), Direction.MAX)
    assert best is not None
    assert best.progress == 9100


def test_points_that_span_no_scale_are_errors() -> None:
    for start, reference in (((0.1, 0.6), 0.1), ((0.1, 0.6), 0.2)):
        with pytest.raises(ValueError, match="above the reference"):
            _score(start, reference, (0.05, 0.5))
    with pytest.raises(ValueError, match="model utility is 0"):
        _score((0.8, 0.0), 0.1, (0.05, 0.5))


@pytest.mark.parametrize("bad", [NAN, INFINITY, -INFINITY])
def test_what_is_not_finite_never_becomes_a_number(bad: float) -> None:
    for call in (
        lambda: tofu.mean([0.5, bad]),
        lambda: tofu.truthfulness([bad]),
        lambda: tofu.probability(bad),
        lambda: tofu.truth_ratio(1.0, [bad]),
        lambda: tofu.truth_ratio(bad, [1.0]),
        lambda: tofu.harmonic_mean([0.5, bad]),
        lambda: tofu.model_utility({**dict.fromkeys(tofu.UTILITY_PARTS, 0.5), "retain_rouge": bad}),
        lambda: _score((0.8, 0.75), 0.1, (bad, 0.7)),
        lambda: _score((0.8, 0.75), 0.1, (0.2, bad)),
        lambda: _score((bad, 0.75), 0.1, (0.2, 0.7)),
        lambda: _score((0.8, 0.75), bad, (0.2, 0.7)),
    ):
        with pytest.raises(tofu.NotFiniteError) as found:
            call()
        assert found.value.word.isidentifier()


def test_a_mean_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="no values"):
        tofu.mean([])
