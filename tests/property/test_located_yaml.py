import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.storage.located_yaml import parse, set_in_mapping

_TEXT = st.text(alphabet=st.characters(codec="utf-8", categories=("L", "N", "P", "Zs")), max_size=9)
_SCALAR = st.none() | st.booleans() | st.integers() | _TEXT
_TREE = st.dictionaries(
    _TEXT, st.dictionaries(_TEXT, _SCALAR | st.lists(_SCALAR), min_size=1), min_size=1
)


@given(data=_TREE, flow=st.none() | st.booleans(), pick=st.data())
def test_setting_one_key_leaves_the_other_data_alone(
    data: dict[str, dict[str, object]], flow: bool | None, pick: st.DataObject
) -> None:
    text = yaml.safe_dump(data, default_flow_style=flow, allow_unicode=True, sort_keys=False)
    document, faults = parse(text)
    assert document is not None
    assert not faults
    assert document.data == data
    name = pick.draw(st.sampled_from(sorted(data)))
    edited, faults = parse(set_in_mapping(document, (name,), "digest", "tree:v1:sha256:00"))
    assert edited is not None
    assert not faults
    assert edited.data == {**data, name: {**data[name], "digest": "tree:v1:sha256:00"}}
