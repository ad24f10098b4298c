"""Whether a container's user can read what is mounted from a checkout or a pack."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from orchestrator.domain.task import CommandValidator
from orchestrator.errors import UsageError
from orchestrator.sandbox import Users
from orchestrator.storage.pack import Pack

_NEEDED = {stat.S_IFDIR: 0o5, stat.S_IFREG: 0o4}


def require_readable(harness: Path, pack: Pack, users: Users) -> None:
    """Hold the modes of the harness and of the pack's scripts against the agent's user.

    Inside a container a file that cannot be read looks like a script that is broken.

    Raises:
        UsageError: one cannot be read; the remedy opens it.
    """
    for folder in (harness, *_scripts(pack)):
        for path in (folder, *folder.rglob("*")):
            status = path.lstat()
            needed = _NEEDED.get(stat.S_IFMT(status.st_mode), 0)
            if "__pycache__" not in path.parts and needed & ~_granted(status, users.agent):
                raise UsageError(
                    f"{path} cannot be read by user {users.agent[0]}, as whom containers run",
                    remedy=f"chmod -R go+rX {folder}",
                )


def _scripts(pack: Pack) -> Iterator[Path]:
    """Name what phases mount of a pack, besides assets and the solution, which are copies."""
    spec = pack.spec
    commands = [spec.score.command]
    if isinstance(spec.validate_.validator, CommandValidator):
        commands.append(spec.validate_.validator.command)
    if spec.proxy is not None and not spec.proxy.in_image:
        commands.append(spec.proxy.command)
    for command in commands:
        yield pack.script_mount(command, "/").source


def _granted(status: os.stat_result, user: tuple[int, int]) -> int:
    """Return the three bits that count for ``user``: owner's, group's or everybody's."""
    uid, gid = user
    shift = 6 if status.st_uid == uid else 3 if status.st_gid == gid else 0
    return status.st_mode >> shift & 0o7
