"""The shipped solution of a task whose image brings it along: taken out once, kept, held to itself.

It lies beside the assets in a folder that is named by the image's digest and, inside, by its own
tree's. So another image never shows through, and what was changed there is taken out again.
"""

import shutil
from dataclasses import replace
from pathlib import Path

from orchestrator.domain.image import image_reference
from orchestrator.domain.roles import Phase
from orchestrator.errors import AssetMismatchError, TaskPackError
from orchestrator.evidence.tree import tree_digest
from orchestrator.ports import ContainerEngine
from orchestrator.storage.assets import AssetStore, discard, seal
from orchestrator.storage.durable import folder_faults, make_folder, storage_faults
from orchestrator.storage.lock import locked
from orchestrator.storage.pack import Pack

WORKSPACE = "/workspace"


def with_workspace(engine: ContainerEngine, store: AssetStore, pack: Pack) -> Pack:
    """Return a pack with its shipped solution on this host.

    Raises:
        UsageError: the engine does not hold the replay's image, or it has no ``/workspace``; or
            the folder of assets cannot be used.
        StorageFullError: no space.
        TaskPackError: no executable ``run.sh`` is in it.
    """
    if not pack.spec.workspace.in_image:
        return pack
    image = engine.image(image_reference(pack.spec.resources(Phase.REPLAY).image))
    added = added_to(pack)
    parts = [image.digest, *([] if added is None else [tree_digest(added)])]
    place = store.workspaces / "-".join(part.rpartition(":")[2] for part in parts)
    unusable = folder_faults("the folder of assets", store.root, "name another: ORCH_ASSETS")
    with unusable, storage_faults(place):
        place.mkdir(parents=True, exist_ok=True)
        with locked(store.workspaces / ".lock"):
            found = _intact(place) or _taken_out(engine, image.reference, added, place)
    if not has_run_script(found):
        raise TaskPackError(
            f"{WORKSPACE} of image {image.reference} holds no executable run.sh",
            remedy="choose the image that brings the shipped solution: task.yaml, image",
        )
    return replace(pack, pristine=found)


def lay(engine: ContainerEngine, reference: str, added: Path | None, into: Path) -> Path:
    """Write an image's workspace, and what a pack adds to it, into an empty folder; return it.

    Raises:
        UsageError: the engine does not hold the image, or it has no ``/workspace``.
    """
    engine.copy_out(reference, WORKSPACE, into)
    tree = into / Path(WORKSPACE).name
    if added is not None:
        _lay_over(added, tree)
    return tree


def has_run_script(tree: Path) -> bool:
    """Tell whether a shipped solution can be run."""
    run = tree / "run.sh"
    return not run.is_symlink() and run.is_file() and bool(run.stat().st_mode & 0o100)


def added_to(pack: Pack) -> Path | None:
    """Return the folder of a pack that is laid over what its image brings."""
    return None if pack.spec.workspace.add is None else pack.folder / pack.spec.workspace.add


def _lay_over(added: Path, tree: Path) -> None:
    """Put files over others; nothing is written through a link that an image has."""
    for source in sorted(added.rglob("*")):
        target, folder = tree / source.relative_to(added), _is_folder(source)
        if folder and _is_folder(target):
            continue
        if _is_folder(target):
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
        if folder:
            target.mkdir()
        else:
            shutil.copy2(source, target, follow_symlinks=False)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _intact(place: Path) -> Path | None:
    """Return what was taken out before, if it is still that; whatever else lies there goes."""
    for found in sorted(place.iterdir()):
        if _digest(found).rpartition(":")[2] == found.name:
            return found
        discard(found)
    return None


def _digest(folder: Path) -> str:
    try:
        return tree_digest(folder)
    except AssetMismatchError:
        return ""


def _taken_out(engine: ContainerEngine, reference: str, added: Path | None, place: Path) -> Path:
    new = place / ".new"
    make_folder(new)
    tree = lay(engine, reference, added, new)
    seal(tree)
    final = place / tree_digest(tree).rpartition(":")[2]
    tree.chmod(0o755)  # a folder one may not write to cannot be moved by an ordinary user
    tree.rename(final)
    final.chmod(0o555)
    new.rmdir()
    return final
