"""Write an imported task as a pack: whole, checked, or not at all."""

import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from typing_extensions import override

from orchestrator.errors import TaskPackError, UsageError
from orchestrator.importing.model import Imported
from orchestrator.storage.durable import folder_faults, write_file
from orchestrator.storage.pack import examine

NOTES = "IMPORTED.md"
_WIDTH = 96


class _Plain(yaml.SafeDumper):
    """Writes what stands at two places twice, for a pack's file has no aliases."""

    @override
    def ignore_aliases(self, data: Any) -> bool:
        return True


def write(imported: Imported, folder: Path) -> None:
    """Write the pack into a folder that is not there yet, or empty.

    Raises:
        UsageError: something is there, or it cannot be made.
        TaskPackError: what came of the source is no sound pack.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UsageError(f"{folder} is there already", remedy="name another: --to DIR")
    with folder_faults("the pack", folder, "name another: --to DIR"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            _fill(imported, made, folder)
            _, faults = examine(made)
            if faults:
                raise TaskPackError(
                    "\n".join(f"{imported.name} as a pack: {fault}" for fault in faults),
                    remedy="nothing was written: the source says what no pack can",
                )
            made.chmod(0o755)
            made.rename(folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)


def next_steps(imported: Imported, folder: Path) -> tuple[str, ...]:
    """Say what comes after an import."""
    pack = shlex.quote(str(folder))
    prepare = (f"orch task prepare {pack} --from DIR",) if imported.brought else ()
    return (f"orch task check {pack}", *prepare, f"orch explore {pack} --dry-run")


def _fill(imported: Imported, made: Path, folder: Path) -> None:
    text = yaml.dump(
        dict(imported.task), Dumper=_Plain, sort_keys=False, default_flow_style=None, width=_WIDTH
    )
    head = f"# {imported.origin}, as orch task import read it; {NOTES} says what is different.\n"
    documents = {
        **imported.files,
        "task.yaml": (head + text).encode(),
        NOTES: ("\n".join(_notes(imported, folder)) + "\n").encode(),
    }
    for name, content in documents.items():
        path = made / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, content)
        path.chmod(0o755 if path.suffix == ".sh" else 0o644)


def _notes(imported: Imported, folder: Path) -> Iterator[str]:
    """Say what is different, and what to bring, in Markdown."""
    yield f"# {imported.name}"
    yield ""
    yield f"Made by `orch task import` from {imported.origin}."
    if imported.differences:
        yield from ("", "## Kept in another way", "")
        yield from (f"- {difference}" for difference in imported.differences)
    if imported.brought:
        yield from ("", "## Assets to bring", "")
        yield f"`orch task prepare {shlex.quote(folder.name)} --from DIR` takes these from `DIR`:"
        yield ""
        for name, what in imported.brought.items():
            yield f"- `{name}`" + (f": {what}" if what else "")
