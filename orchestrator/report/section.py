"""What a report is made of: headings with facts and tables under them."""

from dataclasses import dataclass

Fact = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings. ``numeric`` counts the columns, from the right, that hold figures."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: int = 0


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with facts and tables under it."""

    title: str
    facts: tuple[Fact, ...] = ()
    tables: tuple[Table, ...] = ()
