"""Processes that outlive us on purpose: the watchdog of a run."""

import os
import sys
from pathlib import Path

from typing_extensions import override

from orchestrator.config import Settings
from orchestrator.ports import Guards

_WATCHDOG = Path(__file__).resolve().parent.parent / "watchdog.py"
_STREAMS = (0, 1, 2)
_children: set[int] = set()
"""Watchdogs of this process that may have ended and are still to be waited for."""


class DetachedGuards(Guards):
    """Starts ``orchestrator/watchdog.py`` with an interpreter that loads as little as can be."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @override
    def watch(self, root: Path, descriptors: tuple[int, ...]) -> int:
        _reap()
        adopter = (sys.executable, "-m", "orchestrator", "adopt", str(root))
        inherited = ",".join(map(str, descriptors))
        argv = (sys.executable, "-I", "-S", str(_WATCHDOG), str(root), inherited, *adopter)
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        streams = [(os.POSIX_SPAWN_DUP2, nothing, stream) for stream in _STREAMS]
        # A descriptor that is copied onto itself stays open in the child (posix_spawn(3)).
        handed = [(os.POSIX_SPAWN_DUP2, number, number) for number in descriptors]
        try:
            child = os.posix_spawn(
                argv[0],
                argv,
                self._settings.environment(),
                file_actions=[*streams, *handed],
                setsid=True,
            )
        finally:
            os.close(nothing)
        _children.add(child)
        return child


def _reap() -> None:
    """Let go of watchdogs that have ended, and of those that a process we were forked from has."""
    for child in tuple(_children):
        try:
            ended = os.waitpid(child, os.WNOHANG) != (0, 0)
        except ChildProcessError:
            ended = True
        if ended:
            _children.discard(child)
