"""``orch task new`` makes a pack that is sound from the start."""

import os
import stat
from pathlib import Path

import pytest

from orchestrator.agents.scripted import load_script
from orchestrator.cli.app import run as orch
from orchestrator.config import bundled
from orchestrator.errors import Exit, TaskPackError, UsageError
from orchestrator.storage.pack import examine, load_pack
from orchestrator.storage.starter import start_pack


@pytest.mark.parametrize("text", ["[" * 100_000, "- 2024-13-45\n", "- {run: [\n"])
def test_a_script_that_cannot_be_read_is_the_packs_fault(tmp_path: Path, text: str) -> None:
    script = tmp_path / "demo.yaml"
    script.write_text(text)
    with pytest.raises(TaskPackError, match="is not YAML"):
        load_script(script)


def test_a_new_pack_has_no_fault_and_its_folders_name(tmp_path: Path) -> None:
    task = start_pack(tmp_path / "my-task_1.0")
    pack, faults = examine(task)
    assert not faults
    assert pack is not None
    assert pack.spec.name == "my-task_1.0"
    assert pack.spec.script is not None
    assert load_script(pack.folder / pack.spec.script)
    assert os.access(pack.solution / "run.sh", os.X_OK)


def test_nothing_of_the_template_but_its_name_is_changed(tmp_path: Path) -> None:
    template = bundled("templates") / "task"
    folder = start_pack(tmp_path / "a").parent
    files = {p.relative_to(template) for p in template.rglob("*") if "__pycache__" not in p.parts}
    assert {p.relative_to(folder) for p in folder.rglob("*")} == files
    for path in files:
        made, shipped = folder / path, template / path
        if made.is_file():
            assert stat.S_IMODE(made.stat().st_mode) == stat.S_IMODE(shipped.stat().st_mode)
            text = shipped.read_text().replace("name: new_task", 'name: "a"')
            assert made.read_text() == text


def test_a_template_is_no_task_that_comes_with_orch() -> None:
    with pytest.raises(UsageError):
        load_pack(Path("new_task"))


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_what_is_there_is_left_alone(tmp_path: Path, kind: str) -> None:
    there = tmp_path / "task"
    if kind == "folder":
        there.mkdir()
    elif kind == "file":
        there.write_text("mine")
    else:
        there.symlink_to("nowhere")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match="is there already"):
        start_pack(there)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["a b", ".hidden", "-x", "a\n", "ä", "a" * 65])
def test_a_name_that_would_be_trouble_later_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="name of a task"):
        start_pack(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_is_no_folder_is_the_operators_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be used"):
        start_pack(tmp_path / "file/task")


def test_what_a_killed_command_left_does_no_harm(tmp_path: Path) -> None:
    left = tmp_path / ".task.new/evaluator"
    left.mkdir(parents=True)
    (left / "stale.py").write_text("")
    start_pack(tmp_path / "task")
    assert [path.name for path in tmp_path.iterdir()] == ["task"]
    assert not (tmp_path / "task/evaluator/stale.py").exists()


def test_the_command_says_what_to_do_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert orch(["task", "new", "mine"]) is Exit.OK
    said = capsys.readouterr().out
    for command in ("orch task prepare mine", "orch task check mine", "orch explore mine"):
        assert command in said
    assert orch(["task", "new", "mine"]) is Exit.USAGE
