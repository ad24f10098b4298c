"""Edits of numbered lines: what an agent is told, and that read-only lines stay as they are."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.evidence.editing import MAX_FILE, MOST_CREATED, Editing, Source, Span, spans_of

TEXT = "".join(f"line {n}\n" for n in range(1, 11))


def editing(*ranges: str, text: str = TEXT) -> Editing:
    return Editing(
        ("bench",),
        {"bench/custom.py": Source(text, spans_of(ranges)), "bench/fixed.py": Source("fixed\n")},
        frozenset({"bench/picture.png"}),
    )


def custom(made: Editing) -> list[str]:
    return made.files["bench/custom.py"].lines


def args(**wanted: Any) -> dict[str, Any]:
    return {"filename": "bench/custom.py", **wanted}


def test_a_replacement_answers_with_the_new_range_and_the_numbered_lines_around_it() -> None:
    made = editing("3-6")
    said = made.edit(args(op="replace", start_line=4, end_line=4, content="a\nb\n", after_line=99))
    assert said == (
        "Replaced lines 4-4 by 2. Editable lines of bench/custom.py now: 3-7\n"
        "     1| line 1\n"
        "     2| line 2\n"
        "     3  line 3\n"
        "     4  a\n"
        "     5  b\n"
        "     6  line 5\n"
        "     7  line 6\n"
        "     8| line 7\n"
        "     9| line 8\n"
        "    10| line 9"
    )
    assert made.changed() == {"bench/custom.py": TEXT.replace("line 4\n", "a\nb\n")}


def test_ranges_below_an_edit_move_and_those_above_do_not() -> None:
    made = editing("1-2", "4-5", "8-9")
    said = made.edit(args(op="insert", after_line=5, content="x\ny\nz"))
    assert (
        "Inserted 3 lines after 5. Editable lines of bench/custom.py now: 1-2, 4-8, 11-12" in said
    )
    assert custom(made)[4:9] == ["line 5", "x", "y", "z", "line 6"]


def test_a_replacement_by_nothing_deletes_and_what_is_empty_may_be_filled_again() -> None:
    made = editing("3-4", "6-6")
    said = made.edit(args(op="replace", start_line="3", end_line=4.0))
    assert "now: after 2, 4-4" in said
    assert custom(made)[:3] == ["line 1", "line 2", "line 5"]
    assert "now: 3-3, 5-5" in made.edit(args(op="insert", after_line=2, content="new"))
    assert custom(made)[:4] == ["line 1", "line 2", "new", "line 5"]


def test_an_insertion_right_above_a_range_belongs_to_it() -> None:
    made = editing("3-4")
    assert "now: 3-5" in made.edit(args(op="insert", after_line=2, content="x"))
    assert made.edit(args(op="insert", after_line=1, content="x")).startswith("Error: nothing may")


def test_a_created_file_is_editable_whole_and_undone_away() -> None:
    made = editing("3-4")
    said = made.edit({"op": "create", "filename": "bench/sub//new.py", "content": "a\nb"})
    assert said.startswith("Created bench/sub/new.py with 2 lines. Editable lines of")
    assert made.changed() == {"bench/sub/new.py": "a\nb\n"}
    made.edit({"op": "replace", "filename": "bench/sub/new.py", "start_line": 1, "end_line": 2})
    assert made.changed() == {"bench/sub/new.py": ""}
    assert made.undo({"n": 2}) == "Undid 2 edits.\nbench/sub/new.py is gone."
    assert made.changed() == {}


def test_undo_takes_back_the_last_edits_with_their_ranges() -> None:
    made = editing("3-4")
    for word in ("a", "b", "c"):
        made.edit(args(op="insert", after_line=2, content=word))
    assert made.undo({}) == "Undid 1 edit.\nbench/custom.py is editable in 3-6."
    assert made.undo({"n": 9}) == "Error: n must be from 1 to 2."
    assert made.undo({"n": 0}) == "Error: n must be from 1 to 2."
    made.undo({"n": 2})
    assert (custom(made), made.changed()) == (TEXT.splitlines(), {})
    assert made.undo({}) == "Error: nothing to undo."
    assert made.edits == 3


def test_a_view_shows_what_may_change_and_what_may_not() -> None:
    made = editing("3-4")
    said = made.view(args(start_line=2, end_line=3))
    assert said == "bench/custom.py, editable: 3-4\n     2| line 2\n     3  line 3"
    assert made.view({"filename": "bench/fixed.py"}) == (
        "bench/fixed.py, editable: none\n     1| fixed"
    )
    assert len(editing("1-1", text="x\n" * 5000).view(args()).splitlines()) == 402


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ({"op": "nonsense", "filename": "other/x.py"}, "must lie in an allowed package: bench"),
        ({"op": "replace"}, "must lie in an allowed package"),
        ({"op": "create", "filename": "/etc/passwd", "content": ""}, "an allowed package"),
        ({"op": "create", "filename": ["bench"], "content": ""}, "an allowed package"),
        ({"op": "create", "filename": "bench/../x", "content": ""}, "is no name of a file"),
        ({"op": "create", "filename": "bench/.git/config"}, "is no name of a file"),
        ({"op": "create", "filename": "bench/a\x00b"}, "is no name of a file"),
        ({"op": "create", "filename": "bench/\ud800"}, "is no name of a file"),
        ({"op": "create", "filename": "bench/" + "x" * 256}, "is no name of a file"),
        ({"op": "create", "filename": "bench"}, "is a folder"),
        ({"op": "create", "filename": "bench/custom.py"}, "is there already"),
        ({"op": "create", "filename": "bench/picture.png"}, "is there already"),
        ({"op": "create", "filename": "bench/custom.py/x.py"}, "is no folder"),
        (args(op="delete"), "op must be one of replace, insert, create"),
        (args(op="replace", start_line=2, end_line=3), "are not editable; editable: 3-6"),
        (args(op="replace", start_line=5, end_line=4), "start_line 5 is after end_line 4"),
        (args(op="replace", start_line=True, end_line=4), "start_line must be a number"),
        (args(op="replace", start_line=float("inf"), end_line=4), "start_line must be a number"),
        (args(op="replace", start_line="9" * 5000, end_line=4), "start_line must be a number"),
        (args(op="replace", start_line=4, end_line=4, content=7), "content must be text"),
        (args(op="insert", content="x"), "after_line must be a number"),
        (args(op="insert", after_line=4, content="x" * MAX_FILE), "would be larger"),
        ({"op": "insert", "filename": "bench/picture.png"}, "is no text; the files are:"),
        ({"op": "insert", "filename": "bench/no.py"}, "is not there; the files are:"),
        ({"op": "insert", "filename": "bench/fixed.py", "after_line": 0}, "editable: none"),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing(wanted: dict[str, Any], why: str) -> None:
    made = editing("3-6")
    said = made.edit(wanted)
    assert said.startswith("Error: ")
    assert why in said
    assert (made.changed(), made.edits) == ({}, 0)


def test_not_any_number_of_files_is_created() -> None:
    made = editing("3-6")
    said = [
        made.edit({"op": "create", "filename": f"bench/{number}.py", "content": ""})
        for number in range(MOST_CREATED + 1)
    ]
    assert "no more than" in said[-1]
    assert len(made.changed()) == MOST_CREATED


def test_half_a_character_becomes_a_mark() -> None:
    made = editing("3-6")
    made.edit(args(op="insert", after_line=3, content="\ud800"))
    assert custom(made)[3] == "?"


SPANS = st.lists(st.integers(1, 12), max_size=6, unique=True).map(
    lambda cuts: tuple(
        Span(start, end) for start, end in zip(sorted(cuts)[::2], sorted(cuts)[1::2], strict=False)
    )
)
NUMBER = st.integers(0, 16)
CONTENT = st.sampled_from(["", "\n", "one", "one\n", "one\ntwo", "\n\n", "one\n\n"])
EDIT = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["replace", "insert", "undo"]),
        "filename": st.just("bench/custom.py"),
        "start_line": NUMBER,
        "end_line": NUMBER,
        "after_line": NUMBER,
        "content": CONTENT,
        "n": st.integers(1, 3),
    }
)


def fixed(source: Source) -> list[list[str]]:
    """The read-only lines, stretch by stretch: above, between and below the ranges."""
    lines, cuts, found = source.lines, [0], []
    for span in source.spans:
        cuts += [span.start - 1, span.end]
    cuts.append(len(lines))
    for start, end in zip(cuts[::2], cuts[1::2], strict=True):
        assert 0 <= start <= end <= len(lines)
        found.append(lines[start:end])
    return found


@given(SPANS, st.lists(EDIT, max_size=12), st.booleans())
def test_whatever_is_edited_the_ranges_follow_and_no_other_line_changes(
    spans: tuple[Span, ...], edits: list[dict[str, Any]], ended: bool
) -> None:
    text = "\n".join(f"line {n}" for n in range(1, 13)) + ("\n" if ended else "")
    shipped = Source(text, spans)
    made = Editing(("bench",), {"bench/custom.py": shipped})
    done = [shipped]
    for wanted in edits:
        before = made.files["bench/custom.py"]
        said = made.undo(wanted) if wanted["op"] == "undo" else made.edit(wanted)
        now = made.files["bench/custom.py"]
        assert fixed(now) == fixed(shipped)
        if said.startswith("Error"):
            assert now == before
        elif wanted["op"] == "undo":
            del done[-wanted["n"] :]
            assert now == done[-1]
        else:
            done.append(now)
            content = wanted["content"].removesuffix("\n")
            grown = (content.count("\n") + 1) if wanted["content"] else 0
            if wanted["op"] == "replace":
                grown -= wanted["end_line"] - wanted["start_line"] + 1
            assert len(now.lines) == len(before.lines) + grown
