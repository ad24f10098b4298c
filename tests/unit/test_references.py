"""Reference points are written into a task.yaml, and nothing else of it changes."""

import json
import stat
from pathlib import Path

import pytest

from orchestrator.domain.task import ReferencePoint
from orchestrator.errors import TaskPackError
from orchestrator.storage.pack import load_pack
from orchestrator.storage.references import with_references, write_references
from tests.unit.pack_help import TASK, make_pack

START = ReferencePoint(
    name="start",
    value=1e-07,
    components={"retain_acc": 0.9, "forget_acc": 1.0},
    note="scoring 0.9 s, 84 MiB of memory; run: 4dad26d0 'of' \"pack\" #1, " + "word " * 40,
)
SHIPPED = ReferencePoint(name="shipped", value=0.4943)

ENDINGS = {
    "absent": "",
    "absent, and no newline at the end": "patch: off",
    "empty": "reference: []  # later\npatch: off\n",
    "in one line": "reference: [{name: paper, value: 0.5}]  # theirs\npatch: off\n",
    "in one line, of ours too": "reference: [{name: start}, {name: paper, value: 0.5}]\n",
    "in a block": """\
reference:  # published
  # of the paper
  - {name: paper, value: 0.5}  # table 2
  # the end of them
patch: off  # on
""",
    "far from its dash": "reference:\n  -    name: paper\n       value: 0.5\npatch: off\n",
    "at the margin": "reference:\n- name: paper\n  value: 0.5\n\n# more\npatch: off\n",
    "in blocks, of ours too": """\
reference:
  - name: shipped  # as it was
    note: measured by hand
    components:
      a: 1.0

  # from the paper
  - name: paper
    value: 0.5  # table 2

# the end
patch: off
""",
    "last of all": "reference:\n  - name: paper\n    value: 0.5\n# the very end\n",
    "a long text": "reference:\n  - name: paper\n    note: >\n      some\n      words\n",
}


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_points_are_added_or_put_in_place_of_their_namesakes(tmp_path: Path, ending: str) -> None:
    task = make_pack(tmp_path / "pack", TASK + ending)
    before = load_pack(task)
    others = [p for p in before.spec.reference if p.name not in {"start", "shipped"}]
    write_references(before, [START, SHIPPED])
    after = load_pack(task)
    found = {point.name: point for point in after.spec.reference}
    assert (found["start"], found["shipped"]) == (START, SHIPPED)
    assert [found[point.name] for point in others] == others
    assert len(after.spec.reference) == len(others) + 2
    rest = before.spec.model_copy(update={"reference": ()})
    assert after.spec.model_copy(update={"reference": ()}) == rest
    assert after.digest != before.digest
    kept = [line.partition("#")[2] for line in (TASK + ending).splitlines() if "#" in line]
    replaced = {" as it was"}  # stood inside of what was replaced
    assert [text for text in kept if f"#{text}" not in task.read_text()] == [
        text for text in kept if text in replaced
    ]


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_writing_the_same_again_changes_nothing(tmp_path: Path, ending: str) -> None:
    task = make_pack(tmp_path / "pack", TASK + ending)
    write_references(load_pack(task), [START, SHIPPED])
    once = task.read_text()
    write_references(load_pack(task), [START, SHIPPED])
    assert task.read_text() == once


def test_every_other_line_stays_as_it_was(tmp_path: Path) -> None:
    task = make_pack(tmp_path / "pack", TASK + ENDINGS["in a block"])
    write_references(load_pack(task), [SHIPPED])
    lines = (TASK + ENDINGS["in a block"]).splitlines()
    at = lines.index("  - {name: paper, value: 0.5}  # table 2") + 1
    written = [*lines[:at], "  - {name: shipped, value: 0.4943}", *lines[at:]]
    assert task.read_text().splitlines() == written


def test_the_files_mode_stays(tmp_path: Path) -> None:
    task = make_pack(tmp_path / "pack")
    task.chmod(0o640)
    write_references(load_pack(task), [SHIPPED])
    assert stat.S_IMODE(task.stat().st_mode) == 0o640


def test_a_pack_that_was_changed_meanwhile_is_left_as_it_is(tmp_path: Path) -> None:
    task = make_pack(tmp_path / "pack")
    pack = load_pack(task)
    (task.parent / "evaluator/final_eval.py").write_text("other\n")
    with pytest.raises(TaskPackError, match="was changed while it was measured"):
        write_references(pack, [SHIPPED])
    assert task.read_text() == TASK


def test_a_file_in_one_line_cannot_be_edited_and_is_said_to_be(tmp_path: Path) -> None:
    task = make_pack(tmp_path / "pack")
    document = load_pack(task).document.data
    task.write_text(json.dumps(document))
    pack = load_pack(task)
    with pytest.raises(TaskPackError, match="no reference can be written"):
        with_references(pack, [SHIPPED])
    assert task.read_text() == json.dumps(document)


def test_what_another_value_would_suffer_from_is_not_written(tmp_path: Path) -> None:
    text = TASK + "title: |\n  ends without a newline"
    task = make_pack(tmp_path / "pack", text)
    with pytest.raises(TaskPackError, match="no reference can be written"):
        write_references(load_pack(task), [SHIPPED])
    assert task.read_text() == text
