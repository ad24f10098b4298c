import unicodedata

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from orchestrator.cli.render import table
from orchestrator.report.text import clean, one_line

ANY = st.text(st.characters(exclude_categories=()))
TURNING = {"RLO", "LRO", "RLE", "LRE", "PDF", "RLI", "LRI", "FSI", "PDI"}


@given(ANY)
def test_nothing_that_acts_is_left(text: str) -> None:
    cleaned = clean(text)
    for character in cleaned:
        assert character in "\t\n" or unicodedata.category(character) not in {"Cc", "Cs"}
        assert unicodedata.bidirectional(character) not in TURNING
    assert clean(cleaned) == cleaned
    cleaned.encode()


@given(st.text(st.characters(categories=("L", "N", "P", "S", "Zs"))))
def test_harmless_text_is_left_alone(text: str) -> None:
    assert clean(text) == text


@given(ANY)
def test_one_line_is_one_line(text: str) -> None:
    assert len(one_line(text).splitlines()) <= 1


@given(st.lists(st.tuples(ANY, ANY), max_size=5))
def test_columns_begin_at_the_same_cell(rows: list[tuple[str, str]]) -> None:
    lines = table(("first", "second"), rows)
    width = max(cell_len(one_line(cell)) for cell in ("first", *(row[0] for row in rows)))
    assert len(lines) == len(rows) + 1
    for line, (first, second) in zip(lines[1:], rows, strict=True):
        padded = one_line(first) + " " * (width + 2 - cell_len(one_line(first)))
        assert line == (padded + one_line(second)).rstrip()
