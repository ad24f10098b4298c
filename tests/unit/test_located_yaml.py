import pytest

from orchestrator.storage.located_yaml import Document, parse, set_in_mapping


def _document(text: str) -> Document:
    document, faults = parse(text)
    assert document is not None
    assert not faults
    return document


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a:\n  b:  # c\n    x: 1\n", 'a:\n  b:  # c\n    k: "v"\n    x: 1\n'),
        ("a: {b: {x: 1}}\n", 'a: {b: {k: "v", x: 1}}\n'),
        ("a: {b: { x: 1}}\n", 'a: {b: {k: "v", x: 1}}\n'),
        ("a:\n  b:\n    k: old  # why\n    x: 1\n", 'a:\n  b:\n    k: "v"  # why\n    x: 1\n'),
        ("a:\n  b:\n    k:\n    x: 1\n", 'a:\n  b:\n    k: "v"\n    x: 1\n'),
        ("a:\r\n  b:\r\n    x: 1\r\n", 'a:\r\n  b:\r\n    k: "v"\n    x: 1\r\n'),
    ],
)
def test_one_value_is_set_and_nothing_else_changes(before: str, after: str) -> None:
    text = set_in_mapping(_document(before), ("a", "b"), "k", "v")
    assert text == after
    assert _document(text).data == {"a": {"b": {"k": "v", "x": 1}}}


def test_a_blank_that_yaml_does_not_know_is_part_of_a_key() -> None:
    text = set_in_mapping(_document("a: {\N{NO-BREAK SPACE}x: 1}\n"), ("a",), "k", "v")
    assert _document(text).data == {"a": {"k": "v", "\N{NO-BREAK SPACE}x": 1}}


def test_a_value_that_is_no_mapping_cannot_hold_a_key() -> None:
    with pytest.raises(KeyError):
        set_in_mapping(_document("a: 1\n"), ("a",), "k", "v")


def test_lines_fall_back_to_the_nearest_enclosing_value() -> None:
    document = _document("a:\n  b:\n    - x\n    - {c: 1}\n")
    assert document.line("a", "b", 1, "c") == 4
    assert document.line("a", "missing", "deeper") == 1
    assert document.line() == 1
