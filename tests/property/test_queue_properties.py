"""Any row reads back as it was written, and no row spoils another."""

import string

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.queue import COLUMNS, TAKEN, Job, JobKind, JobStatus
from orchestrator.storage.queue_table import (
    HEADER,
    Reader,
    escape,
    job_of,
    line_of,
    render,
    row_of,
    unescape,
)

_ANY = st.text(st.characters(), max_size=40)
_HARSH = st.text(
    st.sampled_from("\\\t\n\r-=+@\"'x0u1\x00\x1b\x7f\x85\u2028\u202e\ud800é "), max_size=12
)
_TEXTS = st.one_of(_ANY, _HARSH)
_TIMES = st.one_of(
    st.just(""),
    st.datetimes()
    .map(lambda t: t.strftime("%4Y-%m-%dT%H:%M:%S.") + "123Z")
    .filter(lambda text: len(text) == len("2026-01-01T00:00:00.123Z")),
)
_NAMES = st.text(string.ascii_letters + string.digits, min_size=1, max_size=12)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    status = draw(st.sampled_from(JobStatus))
    taken = status in TAKEN
    return Job(
        job=draw(_NAMES),
        kind=draw(st.sampled_from(JobKind)),
        config=draw(_TEXTS),
        attempt=draw(_TEXTS),
        replay=draw(_TEXTS),
        series=draw(st.sampled_from(["", "official", "seed-3", "ablation-12"])),
        status=status,
        outcome=draw(_TEXTS),
        exit=draw(st.one_of(st.none(), st.integers(0, 255))),
        tries=draw(st.integers(0, 1000)),
        not_before=draw(_TIMES),
        priority=draw(st.integers(-999, 999)),
        host=draw(_TEXTS.filter(bool) if taken else _TEXTS),
        gpu=draw(_TEXTS),
        pid=draw(st.integers(1, 10**7) if taken else st.one_of(st.none(), st.integers(1, 10**7))),
        created=draw(_TIMES),
        updated=draw(_TIMES),
        note=draw(_TEXTS),
    )


@given(jobs())
def test_a_row_reads_back_as_it_was_written(job: Job) -> None:
    line = line_of(job)
    assert line.count(b"\t") == len(COLUMNS) - 1
    assert b"\n" not in line
    assert job_of(line) == job
    table = Reader().read(render([row_of(job)]))
    assert (table.faults, [job_of(row.line) for row in table.rows]) == ((), [job])


@given(_TEXTS)
def test_a_cell_is_harmless_and_loses_nothing(value: str) -> None:
    cell = escape(value)
    assert unescape(cell) == value
    assert cell
    assert cell.encode()
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in cell)
    assert cell == "-" or cell[0] not in '-=+@"'


@given(st.lists(jobs(), max_size=6, unique_by=lambda job: job.job), st.data())
def test_cut_anywhere_all_rows_before_the_cut_are_read(
    found: list[Job], data: st.DataObject
) -> None:
    whole = render(map(row_of, found))
    cut = data.draw(st.integers(0, len(whole)))
    table = Reader().read(whole[:cut])
    sound = whole[:cut].count(b"\n") - 1
    assert [job_of(row.line) for row in table.rows][: max(0, sound)] == found[: max(0, sound)]
    assert len(table.rows) <= max(0, sound) + 1


@given(
    st.lists(jobs(), max_size=5, unique_by=lambda job: job.job), st.binary(max_size=80), st.data()
)
def test_bytes_in_between_take_no_row_away(
    found: list[Job], noise: bytes, data: st.DataObject
) -> None:
    lines = render(map(row_of, found)).split(b"\n")
    at = data.draw(st.integers(1, len(lines) - 1))
    spoiled = b"\n".join((*lines[:at], noise, *lines[at:]))
    table = Reader().read(spoiled)
    assert [job_of(row.line) for row in table.rows][: len(found)] == found
    assert HEADER.encode() not in [row.line for row in table.rows]


@given(st.lists(jobs(), max_size=5, unique_by=lambda job: job.job))
def test_reading_twice_is_reading_once(found: list[Job]) -> None:
    reader, data = Reader(), render(map(row_of, found))
    assert reader.read(data) == reader.read(data) == Reader().read(data)
