"""The folders behind one container: what is bound where (pure), and the owner that opens them."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Self

from orchestrator.domain.container import ContainerSpec, Mount
from orchestrator.errors import ContainerLeftRunning, InfrastructureError
from orchestrator.evidence.context import Context
from orchestrator.evidence.requests import RequestBox
from orchestrator.ports import SizeLimit, Volume
from orchestrator.storage.durable import make_folder, write_file, write_json
from orchestrator.storage.ledger import Reservation

CONTROL_SIZE = 16 * 1024**2
HARNESS = "/opt/harness"
_LOGS = PurePosixPath("/logs")


def writable_mounts(workspace: Path, out: Path) -> tuple[Mount, ...]:
    """Bind the two folders that a candidate's code may write to."""
    return (Mount(workspace, "/workspace", writable=True), Mount(out, "/out", writable=True))


def host_mounts(host: Path) -> tuple[Mount, ...]:
    """Bind what the host writes: ``/logs``, and our passwd so that every uid has an entry."""
    return (Mount(host, "/logs"), Mount(host / "passwd", "/etc/passwd"))


def control_mounts(control: Path) -> tuple[Mount, ...]:
    """Bind the small volume that takes requests and the agent's own logs."""
    return (
        Mount(control / "run", "/run/orch", writable=True),
        Mount(control / "agent", "/logs/agent", writable=True),
    )


def harness_mounts(harness: Path, *names: str) -> tuple[Mount, ...]:
    """Bind files of our harness one by one, over whatever the image has there."""
    return tuple(Mount(harness / name, f"{HARNESS}/{name}") for name in names)


@dataclass(slots=True)
class Rooms:
    """Writable volumes, host-written files and views of what is shared, of a phase's containers.

    Use as a context manager: every volume opened through it is closed, in reverse order, unless
    the operator left the container running.
    """

    ctx: Context
    host: Path
    """Folder for what the host writes; see ``host_mounts``."""
    held: Reservation | None = None
    """Whose promised disk the volumes use up; None where none was promised."""
    limits: dict[str, str] = field(default_factory=dict)
    scratch: Path | None = None
    _stack: ExitStack = field(default_factory=ExitStack)
    _deferred: ExitStack = field(default_factory=ExitStack)
    _volumes: list[Volume] = field(default_factory=list)
    _views: int = 0
    _outlived_by: tuple[type[Exception], ...] = (ContainerLeftRunning,)

    def __enter__(self) -> Self:
        self.close_views()  # a supervisor that was killed may have left some open
        make_folder(self.host.parent, exist_ok=True)
        make_folder(self.host, exist_ok=True)
        make_folder(self.host / "agent", exist_ok=True)  # mount points under a read-only bind
        make_folder(self.host / "answers", exist_ok=True)
        accounts = self.ctx.users.accounts().encode()
        write_file(self.host / "passwd", accounts, replace=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close_views()
        if isinstance(error, self._outlived_by):
            self._stack.pop_all()  # the container is left running, and its folders with it
        with self._stack:
            self._deferred.close()

    def outlive(self, error: type[Exception]) -> None:
        """Leave the folders to a container that runs on, should ``error`` end the supervision."""
        self._outlived_by = (*self._outlived_by, error)

    def volume(self, folder: Path, size: int, target: str) -> Volume:
        """Open a size-limited folder that the agent's user owns; closed with the rooms."""
        opened = self.ctx.volumes.create(folder, size, owner=self.ctx.users.agent)
        self._hold(opened)
        if self.held is not None and opened.size_limit is SizeLimit.LOOP:
            self.held.allocated(size)
        self.limits[target] = opened.size_limit.value
        return opened

    def adopt(self, folder: Path, size: int) -> Volume:
        """Take over a volume that a supervisor which is gone left open; closed with the rooms.

        Raises:
            InfrastructureError: it is not there any more.
        """
        found = self.ctx.volumes.adopt(folder, size)
        if found is None:
            raise InfrastructureError(f"{folder} is gone; what the container left cannot be read")
        self._hold(found)
        return found

    def _hold(self, volume: Volume) -> None:
        self._stack.callback(volume.close)
        self._volumes.append(volume)

    def outgrown(self) -> bool:
        """Tell whether one of the volumes holds more than its size."""
        return any(volume.outgrown() for volume in self._volumes)

    def close_views(self) -> None:
        """Close the host's side of every view; a container that runs keeps its own."""
        self.ctx.views.close(views_of(self.host))

    def shield(self, spec: ContainerSpec) -> ContainerSpec:
        """Give a container its own view of every read-only folder that others may see too.

        What the host writes for this phase alone is bound as it is. The views are needed until the
        container has started; see ``close_views``.
        """
        seen: dict[Path, Path] = {}
        mounts = []
        for mount in spec.mounts:
            source = mount.source
            if mount.writable or source.is_relative_to(self.host):
                mounts.append(mount)
                continue
            folder = source if source.is_dir() else source.parent
            if folder not in seen:
                self._views += 1
                view = views_of(self.host) / f"{self._views:03d}"
                seen[folder] = self.ctx.views.open(folder, view)
            mounts.append(replace(mount, source=seen[folder] / source.relative_to(folder)))
        return replace(spec, mounts=tuple(mounts))

    def open_scratch(self, folder: Path, size: int) -> None:
        """Open one volume for a whole phase whose containers each get a folder of it as /out."""
        self.scratch = self.volume(folder, size, "/out").path

    def scratch_folder(self, tag: str) -> Path:
        """Make a container's own ``/out`` in the phase's scratch volume."""
        if self.scratch is None:
            raise ValueError("open_scratch comes first")
        folder = self.scratch / tag
        make_folder(folder)
        _own(folder, self.ctx.users.agent)
        return folder

    def scratch_mounts(self, tag: str, targets: tuple[str, ...]) -> tuple[Mount, ...]:
        """Bind further folders of the scratch volume, empty and a container's own."""
        mounts = []
        for number, target in enumerate(targets, 1):
            below = PurePosixPath(target)
            if below.is_relative_to(_LOGS):  # a mount point under a read-only bind
                make_folder(self.host / below.relative_to(_LOGS), exist_ok=True)
            folder = self.scratch_folder(f"{tag}-{number}")
            mounts.append(Mount(folder, target, writable=True))
        return tuple(mounts)

    def defer(self, close: Callable[[], None]) -> None:
        """Close something else with the rooms."""
        self._deferred.callback(close)

    def deadline(self, deadline_ns: int, wall: float) -> None:
        """Write ``/logs/deadline.json`` for ``timer.sh``: advice, the host keeps the time."""
        record = {"deadline_boottime_ns": str(deadline_ns), "wall_s": wall}
        write_json(self.host / "deadline.json", record, replace=True)

    def control(self, folder: Path) -> RequestBox:
        """Open the small volume behind ``control_mounts`` and the box of requests in it."""
        opened = self.volume(folder, CONTROL_SIZE, "/run/orch")
        for name in ("run", "agent"):
            make_folder(opened.path / name, exist_ok=True)
            _own(opened.path / name, self.ctx.users.agent)
        return RequestBox(opened.path / "run", self.host / "answers")


def views_of(host: Path) -> Path:
    """Where the views of a phase's containers lie, beside what the host writes for them."""
    return host.with_name(f"{host.name}-views")


def _own(folder: Path, owner: tuple[int, int]) -> None:
    """Give a folder to the agent's user; an ordinary user's agent is that user already."""
    if os.geteuid() == 0:
        os.chown(folder, *owner)
