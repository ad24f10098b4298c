"""What a pack's ``task.yaml`` promises and its folder must keep, as rules that find faults."""

import os
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path, PurePosixPath

from orchestrator.domain.roles import Phase, is_visible
from orchestrator.domain.source import ScriptSource
from orchestrator.domain.task import CommandValidator, TaskSpec
from orchestrator.storage.located_yaml import Loc

Finding = tuple[Loc, str]
_LEFT_OUT = frozenset({"__pycache__", ".git"})


def files_of(folder: Path) -> list[Path]:
    """List every file and link of a pack; compiled Python and ``.git`` are no part of it."""
    found: list[Path] = []
    for here, folders, files in os.walk(folder):
        links = [name for name in folders if (Path(here) / name).is_symlink()]
        folders[:] = [name for name in folders if name not in _LEFT_OUT and name not in links]
        found += [Path(here) / name for name in (*files, *links) if not name.endswith(".pyc")]
    return sorted(found, key=os.fsencode)


def shown_with(folder: Path, command: str) -> Path:
    """Return what a phase gets to see of a script: its folder, or at the top the script alone."""
    script = folder / command
    return script if len(PurePosixPath(command).parts) == 1 else script.parent


def _missing_files(folder: Path, spec: TaskSpec) -> Iterator[Finding]:
    for loc, relative, wanted in _named_paths(spec):
        path = folder / relative
        if not path.resolve().is_relative_to(folder.resolve()):
            yield loc, f"{relative} leads out of the pack"
        elif not (path.is_dir() if wanted == "folder" else path.is_file()):
            yield loc, f"{relative}: no such {wanted} in the pack"


def _named_paths(spec: TaskSpec) -> Iterator[tuple[Loc, str, str]]:
    yield ("instructions",), spec.instructions, "file"
    if not spec.workspace.in_image:
        yield ("workspace", "from"), spec.workspace.source, "folder"
    elif spec.workspace.add:
        yield ("workspace", "add"), spec.workspace.add, "folder"
    yield ("score", "command"), spec.score.command, "file"
    if spec.proxy and not spec.proxy.in_image:
        yield ("proxy", "command"), spec.proxy.command, "file"
    if spec.script:
        yield ("script",), spec.script, "file"
    for case, question in spec.answer.cases.items() if spec.answer else ():
        yield ("answer", "cases", case), question, "file"
    if isinstance(spec.validate_.validator, CommandValidator):
        yield ("validate", "validator", "command"), spec.validate_.validator.command, "file"
    for loc, script in _scripts(spec):
        yield loc, script, "file"


def _scripts(spec: TaskSpec) -> Iterator[tuple[Loc, str]]:
    for name, asset in spec.assets.items():
        if isinstance(asset.source, ScriptSource):
            yield ("assets", name, "source", "prepare"), asset.source.prepare


def _special_files(folder: Path, spec: TaskSpec) -> Iterator[Finding]:
    del spec
    for path in files_of(folder):
        if not (path.is_symlink() or path.is_file()):
            yield (), f"{path.relative_to(folder)}: neither a file, a folder nor a link"


def _run_script(folder: Path, spec: TaskSpec) -> Iterator[Finding]:
    run = folder / spec.workspace.source / "run.sh"
    here = not spec.workspace.in_image and run.parent.is_dir()
    if here and not (run.is_file() and os.access(run, os.X_OK)):
        yield ("workspace", "from"), "must hold an executable run.sh"


def _edited_workspace(folder: Path, spec: TaskSpec) -> Iterator[Finding]:
    del folder
    if spec.edit is not None and spec.workspace.in_image:
        yield ("workspace", "from"), "what is edited by lines must be a folder of the pack"


def _exposures(folder: Path, spec: TaskSpec) -> Iterator[Finding]:
    """Find what would show an exploration how the final data or the score is made."""
    shown: dict[str, Path] = {}
    shipped = spec.workspace.add if spec.workspace.in_image else spec.workspace.source
    if shipped is not None:
        shown["the workspace"] = (folder / shipped).resolve()
    if spec.proxy and not spec.proxy.in_image:
        shown["the proxy's folder"] = shown_with(folder, spec.proxy.command).resolve()
    hidden: dict[Loc, str] = {("score", "command"): spec.score.command, **dict(_scripts(spec))}
    for loc, relative in hidden.items():
        for what, where in shown.items():
            if (folder / relative).resolve().is_relative_to(where):
                yield loc, f"{relative} lies in {what}, which the exploration sees"


def _nested_assets(folder: Path, spec: TaskSpec) -> Iterator[Finding]:
    del folder
    for name in spec.assets:
        path = PurePosixPath(name)
        if any(PurePosixPath(other) in path.parents for other in spec.assets):
            yield ("assets", name), "lies inside another asset"


def _shared_places(folder: Path, spec: TaskSpec) -> Iterator[Finding]:
    """Find assets that lie in each other's place in the sight of one phase."""
    del folder
    places = {name: PurePosixPath(asset.at or name) for name, asset in spec.assets.items()}
    for phase in Phase:
        seen = [
            name
            for name, asset in spec.assets.items()
            if is_visible(asset.role, phase, frozenset(asset.also))
        ]
        for name, other in permutations(seen, 2):
            nested = PurePosixPath(other) in PurePosixPath(name).parents  # told already
            if not nested and places[other] in {places[name], *places[name].parents}:
                yield ("assets", name), f"lies in the place of {other}, which {phase} sees too"


def _overlap_names(folder: Path, spec: TaskSpec) -> Iterator[Finding]:
    del folder
    for name, asset in spec.assets.items():
        for other in asset.overlap:
            if other not in spec.assets or other == name:
                yield ("assets", name, "overlap"), f"{other!r} is no other asset"


def _download_names(folder: Path, spec: TaskSpec) -> Iterator[Finding]:
    del folder
    used: set[str] = set()
    for name, asset in spec.assets.items():
        if isinstance(asset.source, ScriptSource):
            used.update(asset.source.inputs)
            for other in asset.source.inputs:
                if other not in spec.downloads:
                    yield ("assets", name, "source", "from"), f"{other!r} is none of the downloads"
    for name in sorted(spec.downloads.keys() - used):
        yield ("downloads", name), "no asset is made from it"


FOLDER_RULES: tuple[Callable[[Path, TaskSpec], Iterator[Finding]], ...] = (
    _missing_files,
    _special_files,
    _run_script,
    _edited_workspace,
    _exposures,
    _nested_assets,
    _shared_places,
    _overlap_names,
    _download_names,
)
"""What ``task.yaml`` promises and its folder must keep."""
