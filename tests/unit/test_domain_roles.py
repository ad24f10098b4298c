from itertools import product

import pytest

from orchestrator.domain.roles import VISIBLE_ROLES, WIDENABLE, DataRole, Phase, is_visible


def test_the_table_is_this() -> None:
    assert {
        phase.value: {role.value for role in roles} for phase, roles in VISIBLE_ROLES.items()
    } == {
        "explore": {"anchor", "train", "proxy"},
        "replay": {"anchor", "train"},
        "validate": {"anchor"},
        "score": {"reference", "final"},
    }
    assert dict(WIDENABLE) == {
        Phase.SCORE: {DataRole.ANCHOR, DataRole.TRAIN},
        Phase.VALIDATE: {DataRole.TRAIN},
    }


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("role", [DataRole.FINAL, DataRole.REFERENCE])
def test_only_score_ever_sees_final_data(role: DataRole, phase: Phase) -> None:
    assert is_visible(role, phase, frozenset(Phase)) is (phase is Phase.SCORE)


def test_widening_adds_only_what_a_candidate_sees_anyway() -> None:
    widened = {
        (role.value, phase.value)
        for role, phase in product(DataRole, Phase)
        if is_visible(role, phase, frozenset(Phase)) and not is_visible(role, phase)
    }
    assert widened == {("anchor", "score"), ("train", "score"), ("train", "validate")}


def test_the_tables_cannot_be_changed() -> None:
    for table in (VISIBLE_ROLES, WIDENABLE):
        with pytest.raises(TypeError):
            table[Phase.EXPLORE] = frozenset(DataRole)  # type: ignore[index]
