"""Record what a program does to a folder, and make any earlier state of it again.

``recording`` puts itself in place of the functions of ``os`` that change files, notes each call
below the folder it watches, and who made it. ``Disk`` is a file system in memory that takes these
operations one by one and keeps apart what a kill leaves (everything done) and what a loss of power
may leave (only names and bytes that an fsync has covered).
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import Any
from unittest import mock

Snapshot = Mapping[str, bytes | str | None]
"""A tree by path: a file's bytes, a link's target, None for a folder."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One change. ``by`` is the innermost module of ours that made it."""

    kind: str
    path: str
    by: str
    other: str = ""
    data: bytes = b""
    offset: int = 0


@dataclass(slots=True)
class _File:
    live: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    target: str | None = None


@dataclass(slots=True)
class _Folder:
    live: dict[str, "_File | _Folder"] = field(default_factory=dict)
    synced: dict[str, "_File | _Folder"] = field(default_factory=dict)


class Disk:
    """A file system that tells what is durable from what is merely done."""

    def __init__(self) -> None:
        self._root = _Folder()

    def apply(self, op: Operation) -> None:  # noqa: C901 - one case for each kind
        """Do one operation."""
        folder, name = self._place(op.path)
        match op.kind:
            case "mkdir":
                folder.live[name] = _Folder()
            case "create":
                folder.live[name] = _File()
            case "symlink":
                folder.live[name] = _File(target=op.other)
            case "write":
                self.write(op, len(op.data))
            case "truncate":
                file = self._file(op.path)
                del file.live[op.offset :]
                file.live.extend(bytes(op.offset - len(file.live)))
            case "fsync":
                node = self._node(op.path)
                if isinstance(node, _Folder):
                    node.synced = dict(node.live)
                else:
                    node.synced = bytes(node.live)
            case "link":
                there, new = self._place(op.other)
                there.live[new] = folder.live[name]
            case "rename":
                there, new = self._place(op.other)
                there.live[new] = folder.live.pop(name)
            case "remove":
                del folder.live[name]
            case _:
                raise ValueError(op.kind)

    def write(self, op: Operation, count: int) -> None:
        """Do the first ``count`` bytes of a write."""
        file = self._file(op.path)
        file.live.extend(bytes(max(0, op.offset - len(file.live))))
        file.live[op.offset : op.offset + count] = op.data[:count]

    def snapshot(self, *, names: bool, contents: bool) -> Snapshot:
        """Read the tree: all names or the synced ones, all contents or the synced ones."""
        return dict(_walk(self._root, "", names=names, contents=contents))

    def _node(self, path: str) -> "_File | _Folder":
        node: _File | _Folder = self._root
        for part in Path(path).parts:
            assert isinstance(node, _Folder), path
            node = node.live[part]
        return node

    def _file(self, path: str) -> _File:
        node = self._node(path)
        assert isinstance(node, _File), path
        return node

    def _place(self, path: str) -> tuple[_Folder, str]:
        parent, _, name = path.rpartition("/")
        node = self._node(parent)
        assert isinstance(node, _Folder), path
        return node, name


def _walk(
    folder: _Folder, at: str, *, names: bool, contents: bool
) -> Iterator[tuple[str, bytes | str | None]]:
    for name, node in (folder.live if names else folder.synced).items():
        if isinstance(node, _Folder):
            yield at + name, None
            yield from _walk(node, f"{at}{name}/", names=names, contents=contents)
        elif node.target is not None:
            yield at + name, node.target
        else:
            yield at + name, bytes(node.live) if contents else node.synced


def write_out(snapshot: Snapshot, folder: Path) -> None:
    """Make a tree on the real disk; ``folder`` exists and is empty."""
    for name, content in snapshot.items():
        place = folder / name
        match content:
            case None:
                place.mkdir()
            case str():
                place.symlink_to(content)
            case bytes():
                place.write_bytes(content)


class _Recorder:
    def __init__(self, root: Path, passed_over: Callable[[str], bool]) -> None:
        self._root = os.path.realpath(root)
        self._passed_over = passed_over
        self._lock = RLock()
        self._real: dict[str, Callable[..., Any]] = {}
        self.operations: list[Operation] = []

    def patches(self) -> Iterator[Any]:
        """Stand in for every function of ``os`` that changes something."""
        for name in (
            *("open", "write", "pwrite", "fsync", "fdatasync", "ftruncate", "posix_fallocate"),
            *("link", "rename", "replace", "unlink", "remove", "rmdir", "mkdir", "symlink"),
        ):
            self._real[name] = getattr(os, name)
            yield mock.patch.object(os, name, self._stand_in(name))

    def _stand_in(self, name: str) -> Callable[..., Any]:
        note = getattr(self, f"_{_SAME.get(name, name)}")

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                return note(self._real[name], *args, **kwargs)

        return call

    def _note(self, kind: str, path: str | None, **more: Any) -> None:
        if path is not None and not self._passed_over(path):
            self.operations.append(Operation(kind, path, _ours(), **more))

    def _inside(self, path: Any, at: int | None = None) -> str | None:
        """Name a path from the watched folder, itself ``""``; None for one outside."""
        text = os.fsdecode(path)
        if not text.startswith("/"):
            text = os.path.join(os.readlink(f"/proc/self/fd/{at}") if at else os.getcwd(), text)  # noqa: PTH109,PTH115,PTH118
        text = os.path.normpath(text)
        return text[len(self._root) + 1 :] if f"{text}/".startswith(f"{self._root}/") else None

    def _held(self, descriptor: int) -> str | None:
        return self._inside(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115

    def _open(self, real: Any, path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        inside = self._inside(path, kwargs.get("dir_fd"))
        if inside is None or not flags & os.O_CREAT:
            return int(real(path, flags, *args, **kwargs))
        at = kwargs.get("dir_fd")
        try:
            os.stat(path, dir_fd=at, follow_symlinks=False)
        except FileNotFoundError:
            opened = int(real(path, flags, *args, **kwargs))
            self._note("create", inside)
            return opened
        return int(real(path, flags, *args, **kwargs))

    def _write(self, real: Any, descriptor: int, data: Any) -> int:
        inside = self._held(descriptor)
        if inside is None:
            return int(real(descriptor, data))
        written = int(real(descriptor, data))
        offset = os.lseek(descriptor, 0, os.SEEK_CUR) - written
        self._note("write", inside, data=bytes(data)[:written], offset=offset)
        return written

    def _pwrite(self, real: Any, descriptor: int, data: Any, offset: int) -> int:
        written = int(real(descriptor, data, offset))
        self._note("write", self._held(descriptor), data=bytes(data)[:written], offset=offset)
        return written

    def _fsync(self, real: Any, descriptor: int) -> None:
        # The data are a test's: what counts is the order, and the real thing takes its time.
        held = self._held(descriptor)
        if held is not None and self.operations[-1] == Operation("create", held, _ours()):
            # Written through a buffered file, which does not come by here.
            self._note("write", held, data=Path(f"/proc/self/fd/{descriptor}").read_bytes())
        self._note("fsync", held)

    def _ftruncate(self, real: Any, descriptor: int, size: int) -> None:
        real(descriptor, size)
        self._note("truncate", self._held(descriptor), offset=size)

    def _posix_fallocate(self, real: Any, descriptor: int, offset: int, size: int) -> None:
        real(descriptor, offset, size)
        self._note("truncate", self._held(descriptor), offset=os.fstat(descriptor).st_size)

    def _link(self, real: Any, source: Any, target: Any, **kwargs: Any) -> None:
        real(source, target, **kwargs)
        self._note("link", self._inside(source), other=self._inside(target))

    def _rename(self, real: Any, source: Any, target: Any, **kwargs: Any) -> None:
        real(source, target, **kwargs)
        self._note("rename", self._inside(source), other=self._inside(target))

    def _remove(self, real: Any, path: Any, **kwargs: Any) -> None:
        inside = self._inside(path, kwargs.get("dir_fd"))
        real(path, **kwargs)
        self._note("remove", inside)

    def _mkdir(self, real: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        real(path, *args, **kwargs)
        self._note("mkdir", self._inside(path, kwargs.get("dir_fd")))

    def _symlink(self, real: Any, target: Any, path: Any, **kwargs: Any) -> None:
        real(target, path, **kwargs)
        inside = self._inside(path, kwargs.get("dir_fd"))
        self._note("symlink", inside, other=os.fsdecode(target))


_SAME = {"fdatasync": "fsync", "replace": "rename", "unlink": "remove", "rmdir": "remove"}


def _ours() -> str:
    """Name the innermost module of ours among the callers."""
    frame = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.partition(".")[0] in {"orchestrator", "receipts"}:
            return name
        frame = frame.f_back  # type: ignore[assignment]
    return ""


@contextmanager
def recording(root: Path, passed_over: Callable[[str], bool]) -> Iterator[list[Operation]]:
    """Note every change below ``root``, but for paths that ``passed_over`` names."""
    recorder = _Recorder(root, passed_over)
    running = list(recorder.patches())
    for patch in running:
        patch.start()
    try:
        yield recorder.operations
    finally:
        for patch in running:
            patch.stop()


@dataclass(frozen=True)
class Crash:
    """A state of the disk; ``power``: only what was synced is sure to be there."""

    at: int
    what: str
    power: bool
    tree: Snapshot


def crashes(operations: Sequence[Operation]) -> Iterator[Crash]:
    """Go through every prefix, whole and torn, with and without what was not synced."""
    disk = Disk()
    yield Crash(0, "nothing yet", False, {})
    for at, op in enumerate(operations, start=1):
        what = f"{op.kind} {op.path}"
        if op.kind == "write":
            disk.write(op, len(op.data) // 2)
            yield Crash(at, f"half of {what}", False, disk.snapshot(names=True, contents=True))
        disk.apply(op)
        for names in (True, False):
            for contents in (True, False):
                power = not (names and contents)
                tree = disk.snapshot(names=names, contents=contents)
                yield Crash(at, what, power, tree)
