"""What ``receipts`` says for itself, so that it stands alone, is what orch says."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.domain.attempt import Entry, RunKind
from orchestrator.domain.roles import VISIBLE_ROLES, WIDENABLE, Phase
from orchestrator.evidence.tree import tree_digest
from orchestrator.lifecycle.machine import TRANSITIONS, Event, is_terminal
from orchestrator.storage import chain
from orchestrator.storage.journal import Journal
from receipts import journal
from receipts.errors import MalformedError
from receipts.statement import PhaseName
from receipts.tree import tree_identity
from receipts.verify_edges import ROLES, WIDENED
from receipts.verify_model import ENDINGS, PROVES, Kind, Step
from tests.unit.records_help import TickingClock

KINDS = {
    Kind.ATTEMPT: RunKind.ATTEMPT,
    Kind.REPLAY: RunKind.REPLAY,
    Kind.SCORING: RunKind.SCORING,
}


@pytest.mark.parametrize("kind", Kind)
def test_the_endings_are_the_machines(kind: Kind) -> None:
    table = TRANSITIONS[KINDS[kind]]
    endings = {
        event.value for (_, event), state in table.items() if is_terminal(KINDS[kind], state)
    }
    assert ENDINGS[kind] == endings


@pytest.mark.parametrize("phase", Phase)
def test_the_roles_are_the_one_tables(phase: Phase) -> None:
    assert ROLES[PhaseName(phase.value)] == {role.value for role in VISIBLE_ROLES[phase]}


def test_the_other_phases_see_no_more_than_replay() -> None:
    assert ROLES[PhaseName.GATE] == ROLES[PhaseName.REPLAY]
    assert ROLES[PhaseName.SUBMIT] == ROLES[PhaseName.COLLECT] == frozenset()
    assert ROLES.keys() == set(PhaseName)
    assert {
        PhaseName(phase.value): {r.value for r in roles} for phase, roles in WIDENABLE.items()
    } == dict(WIDENED)


def test_every_entry_is_known() -> None:
    assert {entry.value for entry in Entry} == {"explore", "patch", "checkpoint"}


def test_every_step_says_what_it_proves() -> None:
    assert PROVES.keys() == set(Step)


def test_a_journal_reads_the_same_on_both_sides(tmp_path: Path) -> None:
    path = tmp_path / "lifecycle.jsonl"
    written = Journal(path, RunKind.ATTEMPT, "r", TickingClock())
    for event in (Event.REGISTERED, Event.EXPLORE_STARTED, Event.NOTED):
        written.append(event, name="ä", n=2**60)
    read, ours = journal.read_journal(path), chain.read_chain(path)
    assert (read.head, read.torn, read.fault) == (ours.head, ours.torn, "")
    assert [line.model_dump() for line in read.lines] == [
        {name: getattr(entry, name) for name in journal.Line.model_fields} for entry in ours.entries
    ]


names = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=20)
names = names.filter(lambda name: name not in {".", ".."} and len(name.encode()) < 200)
trees = st.recursive(
    st.binary(max_size=50) | st.just(None),
    lambda below: st.dictionaries(names, below, max_size=4),
    max_leaves=10,
)


def _make(folder: Path, tree: object) -> None:
    for name, what in tree.items() if isinstance(tree, dict) else ():
        path = folder / name
        if isinstance(what, dict):
            path.mkdir()
            _make(path, what)
        elif what is None:
            path.symlink_to("../%41 elsewhere")
        else:
            path.write_bytes(what)
            path.chmod(0o755 if len(what) % 2 else 0o644)


@settings(max_examples=60)
@given(tree=st.dictionaries(names, trees, max_size=5))
def test_a_tree_has_one_identity(
    tmp_path_factory: pytest.TempPathFactory, tree: dict[str, object]
) -> None:
    root = tmp_path_factory.mktemp("tree")
    _make(root, tree)
    assert tree_identity(root) == tree_digest(root)


def test_a_tree_is_read_no_further_than_it_was_recorded(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / str(number)).write_bytes(b"x" * 10)
    assert tree_identity(tmp_path, max_entries=10, max_bytes=100) == tree_digest(tmp_path)
    with pytest.raises(MalformedError, match="more than 9 files"):
        tree_identity(tmp_path, max_entries=9)
    with pytest.raises(MalformedError, match="more bytes"):
        tree_identity(tmp_path, max_bytes=99)
    with pytest.raises(MalformedError, match="not a folder"):
        tree_identity(tmp_path / "0")
