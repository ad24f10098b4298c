"""Start a task pack: a copy of a small one that runs end to end and explains itself."""

import re
import shutil
from pathlib import Path

from orchestrator.config import bundled
from orchestrator.errors import UsageError
from orchestrator.storage.durable import folder_faults
from orchestrator.storage.located_yaml import read, set_in_mapping

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_UNFINISHED = ".{}.new"


def start_pack(folder: Path) -> Path:
    """Make a pack at ``folder``, named as it is; return its ``task.yaml``. Whole, or not at all.

    Raises:
        UsageError: there is something, it cannot be written there, or its name does not do for
            a task.
    """
    name = folder.name
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} does not do as the name of a task",
            remedy="take letters, digits, '_', '-' and '.', at most 64, a letter or digit first",
        )
    if folder.exists() or folder.is_symlink():
        raise UsageError(f"{folder} is there already", remedy="orch task new ANOTHER_NAME")
    made = folder.with_name(_UNFINISHED.format(name))
    with folder_faults("the folder", folder.parent, "orch task new PLACE/NAME, elsewhere"):
        shutil.rmtree(made, ignore_errors=True)
        shutil.copytree(
            bundled("templates") / "task",
            made,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        _name(made / "task.yaml", name)
        made.rename(folder)
    return folder / "task.yaml"


def _name(task: Path, name: str) -> None:
    document, _ = read(task)
    if document is None:
        raise AssertionError("our own template is no YAML")
    task.write_text(set_in_mapping(document, (), "name", name), encoding="utf-8")
