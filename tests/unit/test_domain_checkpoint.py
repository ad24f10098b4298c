import random
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.checkpoint import EntryKind, Numbered, Passed, Published, select


def _folders(*names: str) -> list[Published]:
    return [Published(name.encode(), EntryKind.FOLDER, 0) for name in names]


def _progress(entries: list[Published]) -> list[int]:
    return [found.progress for found in select(entries)[0]]


def test_CK_01_progress_is_ordered_as_a_number() -> None:
    names = ("checkpoint-9", "checkpoint-10", "checkpoint-99", "checkpoint-100", "checkpoint-1000")
    assert _progress(_folders(*names))[:3] == [1000, 100, 99]


def test_CK_03_a_name_without_a_number_alone_is_passed_over() -> None:
    others = (
        "checkpoint-best", "checkpoint-final", "checkpoint-200_backup", "checkpoint-300-tmp",
        "checkpoint-",
    )  # fmt: skip
    found, passed = select(_folders("checkpoint-100", *others))
    assert found == (Numbered(100, b"checkpoint-100"),)
    assert {p.name.decode() for p in passed} == set(others)
    assert {p.reason for p in passed} == {"not_a_checkpoint_name"}


def test_CK_05_equal_progress_is_ordered_by_the_bytes_of_the_name() -> None:
    entries = _folders("checkpoint-10", "checkpoint-010", "checkpoint-0010", "checkpoint-9")
    for order in permutations(entries):
        found = select(order)[0]
        assert found[:3] == (
            Numbered(10, b"checkpoint-0010"),
            Numbered(10, b"checkpoint-010"),
            Numbered(10, b"checkpoint-10"),
        )


def test_CK_05_times_do_not_order() -> None:
    entries = [
        Published(b"checkpoint-1", EntryKind.FOLDER, 900),
        Published(b"checkpoint-2", EntryKind.FOLDER, 100),
    ]
    assert _progress(entries) == [2, 1]


def test_CK_15_links_are_never_checkpoints() -> None:
    entries = [
        Published(b"checkpoint-20", EntryKind.FOLDER, 0),
        Published(b"latest", EntryKind.LINK, 0),
        Published(b"checkpoint-50", EntryKind.LINK, 0),
        Published(b"checkpoint-60", EntryKind.LINK, 0),
        Published(b"checkpoint-70", EntryKind.OTHER, 0),
    ]
    found, passed = select(entries)
    assert found == (Numbered(20, b"checkpoint-20"),)
    assert passed == (
        Passed(b"checkpoint-50", "symlink"),
        Passed(b"checkpoint-60", "symlink"),
        Passed(b"checkpoint-70", "not_a_folder"),
        Passed(b"latest", "not_a_checkpoint_name"),
    )


@pytest.mark.parametrize(
    "name",
    [
        b"checkpoint-1234567890123", "checkpoint-\u0661".encode(), b"checkpoint-+1",
        b"checkpoint--1", b"checkpoint-1.0", b"checkpoint-1\n", b"Checkpoint-1", b" checkpoint-1",
        b"checkpoint-\xff", b"",
    ],
)  # fmt: skip
def test_only_ascii_digits_up_to_twelve_are_progress(name: bytes) -> None:
    assert select([Published(name, EntryKind.FOLDER, 0)])[0] == ()


def test_what_changed_after_the_deadline_is_passed_over() -> None:
    entries = [Published(b"checkpoint-%d" % n, EntryKind.FOLDER, n) for n in (99, 100, 101)]
    found, passed = select(entries, deadline_ns=100)
    assert [f.progress for f in found] == [100, 99]
    assert passed == (Passed(b"checkpoint-101", "changed_after_deadline"),)


@given(
    st.lists(
        st.builds(
            Published,
            st.binary(max_size=20) | st.from_regex(rb"checkpoint-[0-9]{1,13}", fullmatch=True),
            st.sampled_from(EntryKind),
            st.integers(0, 200),
        ),
        unique_by=lambda entry: entry.name,
    ),
    st.none() | st.integers(0, 200),
    st.randoms(use_true_random=False),
)
def test_every_entry_is_judged_once_in_one_order(
    entries: list[Published], deadline: int | None, rng: random.Random
) -> None:
    found, passed = select(entries, deadline_ns=deadline)
    assert sorted([f.name for f in found] + [p.name for p in passed]) == sorted(
        entry.name for entry in entries
    )
    assert [f.progress for f in found] == sorted((f.progress for f in found), reverse=True)
    rng.shuffle(entries)
    assert select(entries, deadline_ns=deadline) == (found, passed)
