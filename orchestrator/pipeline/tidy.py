"""Collect the garbage: remove what is provably ours and finished, and say why the rest stays.

What goes: containers of ended runs, and overdue ones of no run; volumes, views and half-written
files that a killed supervisor left with a run that has ended since; reservations of dead holders;
images that a newer build has replaced. What no command may remove is not looked for: records,
receipts, journals, candidates, checkpoints, logs. What a candidate wrote stays too, because
nothing else holds it. A run is looked at under its supervisor's lock, so that nothing is taken
from one that lives, or that is being adopted.
"""

import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path

from orchestrator.domain.roles import Phase
from orchestrator.errors import InfrastructureError, OrchError, UsageError
from orchestrator.evidence.context import Context
from orchestrator.evidence.rooms import views_of
from orchestrator.evidence.walk import Visit, walk
from orchestrator.lifecycle.machine import is_terminal
from orchestrator.pipeline import drive, strays
from orchestrator.pipeline.finish import ended_runs
from orchestrator.pipeline.reconcile import HOSTS, VOLUMES, every_run, reconcile
from orchestrator.pipeline.versions import require_known
from orchestrator.ports import OldImages
from orchestrator.report import lookup
from orchestrator.storage.durable import unfinished
from orchestrator.storage.journal import read_journal
from orchestrator.storage.layout import RunFolder
from orchestrator.storage.records import load
from orchestrator.storage.supervisor import is_supervised, supervising
from receipts.complete import Completeness, check

_LOOK_EVERY, _LOOKS = 0.02, 50
_BLOCK = 512
"""The unit of ``st_blocks``, whatever the file system (stat(2))."""
_YOUNG = 3600.0
"""Seconds within which an image without a name may be one that is being built."""


class Kind(StrEnum):
    """What can be left behind."""

    RUN = "run"
    CONTAINER = "container"
    VOLUME = "volume"
    VIEWS = "views"
    FILE = "file"
    FOLDER = "folder"
    RESERVATION = "reservation"
    IMAGE = "image"


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that was found. ``kept`` says why it stays; empty when it went, or would go.

    ``size`` in bytes; 0 where it takes nothing worth counting, or cannot be told.
    """

    kind: Kind
    name: str
    size: int
    kept: str = ""


@dataclass(slots=True)
class Broom:
    """Removes what it is shown, unless this is only a look, and keeps the list."""

    dry_run: bool
    items: list[Item] = field(default_factory=list)

    def sweep(self, kind: Kind, name: str, size: int, remove: Callable[[], object]) -> None:
        """Remove one thing; one that cannot be removed is kept, with the reason."""
        kept = ""
        if not self.dry_run:
            try:
                remove()
            except (OrchError, OSError) as trouble:
                kept = str(trouble)
        self.items.append(Item(kind, name, size, kept))

    def keep(self, kind: Kind, name: str, why: str, size: int = 0) -> None:
        """Leave one thing."""
        self.items.append(Item(kind, name, size, why))


def collect(ctx: Context, images: OldImages, *, dry_run: bool) -> tuple[Item, ...]:
    """Deal with runs whose supervisors are gone, then remove what is left over.

    Args:
        dry_run: only look; no run is dealt with either.
    """
    broom = Broom(dry_run)
    if not dry_run:
        _sweep_containers(ctx, broom)
        broom.items = [item for item in broom.items if not item.kept]  # judged again below
        reconcile(ctx)
    _sweep_containers(ctx, broom)
    ended = ended_runs(ctx)
    for folder in ctx.runs.runs():
        _sweep_run(ctx, broom, folder, ended)
    _keep_half_written(ctx, broom)
    _sweep_reservations(ctx, broom)
    _sweep_images(ctx, broom, images)
    return tuple(broom.items)


def _sweep_containers(ctx: Context, broom: Broom) -> None:
    for stray in strays.containers(ctx, every_run(ctx)):
        name = stray.container.name
        if stray.kept:
            broom.keep(Kind.CONTAINER, name, stray.kept)
        elif stray.run is not None and not _is_let_go(stray.run.root):
            broom.keep(Kind.CONTAINER, name, "its supervisor is alive, and removes it itself")
        else:
            broom.sweep(Kind.CONTAINER, name, 0, stray.container.remove)


def _sweep_run(ctx: Context, broom: Broom, folder: RunFolder, ended: frozenset[str]) -> None:
    name = lookup.path_id(folder)
    if why := _why_kept(ctx, folder, ended):
        broom.keep(Kind.RUN, name, why)
        return
    try:
        with nullcontext() if broom.dry_run else supervising(folder.root):
            _sweep_volumes(ctx, broom, folder, name)
            _sweep_views(ctx, broom, folder, name)
            _sweep_files(broom, folder, name)
    except UsageError as alive:
        broom.keep(Kind.RUN, name, str(alive))


def _why_kept(ctx: Context, folder: RunFolder, ended: frozenset[str]) -> str:
    """Say why nothing of a run is touched; "" when it has ended, provably."""
    if folder.root.resolve() != ctx.runs.root.resolve() / lookup.path_id(folder):
        return "it is reached through a link, which orch never makes"
    if is_supervised(folder.root) and not (folder.complete.exists() and _is_let_go(folder.root)):
        return "its supervisor is alive"
    if not folder.plan.exists():
        return "it was begun and never registered"
    try:
        return _why_unfinished(folder, ended)
    except (OrchError, OSError) as fault:
        return str(fault)


def _is_let_go(root: Path) -> bool:
    """Wait a moment for whoever still holds the lock of a run that has ended: he is leaving."""
    pause = threading.Event()
    for _ in range(_LOOKS):
        if not is_supervised(root):
            return True
        pause.wait(_LOOK_EVERY)
    return False


def _why_unfinished(folder: RunFolder, ended: frozenset[str]) -> str:
    """Say what of a run's ending is not there; "" when nothing is missing.

    Raises:
        TaskPackError: one of its records cannot be read.
    """
    kind = drive.KINDS[type(folder)]
    require_known(folder)
    plan = load(folder.plan, strays.PLANS[type(folder)])
    state = read_journal(folder.journal, kind).state
    found = check(folder.complete)
    if state is None or not is_terminal(kind, state):
        return "it has not ended"
    if found.completeness is Completeness.COMPLETE:
        return ""
    if found.completeness is Completeness.CORRUPT:
        return found.reason
    # A run that ended before any phase began has no receipts, and no marker.
    bare = plan.run_id in ended and not folder.receipts.exists()
    return "" if bare else "its ending is not written whole"


def _sweep_volumes(ctx: Context, broom: Broom, folder: RunFolder, run: str) -> None:
    for volume in VOLUMES:
        place, name = folder.root / volume, f"{run}/{volume}"
        try:
            left = ctx.volumes.left(place)
        except InfrastructureError as stranger:
            broom.keep(Kind.VOLUME, name, str(stranger))
            continue
        if left is not None:
            broom.sweep(Kind.VOLUME, name, left, partial(_close_volume, ctx, place))
        elif _holds_something(place):
            why = "what its containers wrote, which nothing else holds"
            broom.keep(Kind.FOLDER, name, why, _taken(place))


def _close_volume(ctx: Context, place: Path) -> None:
    if (opened := ctx.volumes.adopt(place)) is not None:
        opened.close()


def _holds_something(place: Path) -> bool:
    try:
        return place.is_dir() and not place.is_symlink() and any(place.iterdir())
    except PermissionError:
        return True  # whoever shut it has written it


def _taken(place: Path) -> int:
    """Add up the blocks of a folder's files; of one that may not be read, what may."""
    blocks = 0
    with suppress(OrchError, OSError):
        for entry in walk(place, lambda _: True):
            if entry.visit is Visit.SEEN:
                blocks += entry.status.st_blocks
    return blocks * _BLOCK


def _sweep_views(ctx: Context, broom: Broom, folder: RunFolder, run: str) -> None:
    for host in HOSTS:
        views = views_of(folder.root / "logs" / host)
        name = f"{run}/logs/{views.name}"
        try:
            left = ctx.views.left(views)
        except InfrastructureError as stranger:
            broom.keep(Kind.VIEWS, name, str(stranger))
            continue
        if left:
            broom.sweep(Kind.VIEWS, name, 0, partial(ctx.views.close, views))


def _sweep_files(broom: Broom, folder: RunFolder, run: str) -> None:
    """Remove the ballast and what a killed writer left where nobody but orch writes."""
    root = folder.root
    places = [root, root / "candidate", root / "receipts", *root.glob("validate/*")]
    places += [root / "logs" / host for host in HOSTS]
    places += [place for score in root.glob("checkpoint-*") for place in (score, score / "out")]
    left = [path for place in places for path in unfinished(place)]
    ballast = root / drive.BALLAST
    for path in (*([ballast] if ballast.is_file() else []), *left):
        size = path.lstat().st_blocks * _BLOCK
        broom.sweep(Kind.FILE, f"{run}/{path.relative_to(root)}", size, path.unlink)


def _keep_half_written(ctx: Context, broom: Broom) -> None:
    """Name what may be half of a record that somebody is writing now: no lock tells."""
    runs = ctx.runs
    for place in (runs.root, runs.keys, *(config.root for config in runs.configs())):
        for path in unfinished(place):
            why = "an orch may be writing it; remove it by hand when none is at work here"
            name = str(path.relative_to(runs.root))
            broom.keep(Kind.FILE, name, why, path.lstat().st_blocks * _BLOCK)


def _sweep_reservations(ctx: Context, broom: Broom) -> None:
    for path in ctx.ledger.left(sweep=not broom.dry_run):
        if not broom.dry_run and path.exists():
            broom.keep(Kind.RESERVATION, str(path), "it belongs to another user; it counts no more")
        else:
            broom.items.append(Item(Kind.RESERVATION, str(path), 0))


def _sweep_images(ctx: Context, broom: Broom, images: OldImages) -> None:
    named, unreadable = _named_images(ctx)
    now = ctx.clock.utc().timestamp()
    for image in images.all():
        name = image.id.removeprefix("sha256:")[:12]
        if why := named.get(image.id, unreadable):
            broom.keep(Kind.IMAGE, name, why, image.size)
        elif image.used_by:
            broom.keep(Kind.IMAGE, name, f"container {image.used_by} needs it", image.size)
        elif now - image.created < _YOUNG:
            broom.keep(Kind.IMAGE, name, "made within the hour, and may be being built", image.size)
        else:
            broom.sweep(Kind.IMAGE, name, image.size, partial(images.remove, image))


def _named_images(ctx: Context) -> tuple[dict[str, str], str]:
    """Map the engine's id of each image that a plan names to why it stays.

    The second is why any other stays as well: a plan that cannot be read; "" where all can.
    """
    named: dict[str, str] = {}
    for folder in every_run(ctx):
        try:
            plan = load(folder.plan, strays.PLANS[type(folder)])
        except (OrchError, OSError) as fault:
            return {}, f"it may be that run's: {fault}"
        for phase in Phase:
            named.setdefault(plan.image_of(phase).engine_id, f"{lookup.path_id(folder)} names it")
    return named, ""
