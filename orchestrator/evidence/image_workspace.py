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
    added = None if pack.spec.workspace.add is None else pack.folder / pack.spec.workspace.add
    parts = [image.digest, *([] if added is None else [tree_digest(added)])]
    place = store.workspaces / "-".join(part.rpartition(":")[2] for part in parts)
    unusable = folder_faults("the folder of assets", store.root, "name another: ORCH_ASSETS")
    with unusable, storage_faults(place):
        place.mkdir(parents=True, exist_ok=True)
        with locked(store.workspaces / ".lock"):
            found = _intact(place) or _taken_out(engine, image.reference, added, place)
    run = found / "run.sh"
    if run.is_symlink() or not run.is_file() or not run.stat().st_mode & 0o100:
        raise TaskPackError(
            f"{WORKSPACE} of image {image.reference} holds no executable run.sh",
            remedy="choose the image that brings the shipped solution: task.yaml, image",
        )
    return replace(pack, pristine=found)


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
    engine.copy_out(reference, WORKSPACE, new)
    tree = new / Path(WORKSPACE).name
    if added is not None:
        shutil.copytree(added, tree, symlinks=True, dirs_exist_ok=True)
    seal(tree)
    final = place / tree_digest(tree).rpartition(":")[2]
    tree.chmod(0o755)  # a folder one may not write to cannot be moved by an ordinary user
    tree.rename(final)
    final.chmod(0o555)
    new.rmdir()
    return final
