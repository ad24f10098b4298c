"""What is mounted where, as the kernel says (proc(5), ``/proc/self/mountinfo``)."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

_ESCAPED = re.compile(rb"\\([0-7]{3})")
_TARGET = 4
_TABLE = Path("/proc/self/mountinfo")


@dataclass(frozen=True, slots=True)
class Mounted:
    """One mount: the kind of its file system, and what it was made from."""

    kind: str
    source: Path

    def backing(self) -> Path | None:
        """Return the file behind a loop device, also when its name is gone; None for others."""
        told = Path("/sys/class/block", self.source.name, "loop/backing_file")
        if self.source.parent != Path("/dev") or not told.exists():
            return None
        return Path(told.read_text(encoding="utf-8", errors="surrogateescape").rstrip("\n"))


def mounted_at(folder: Path) -> Mounted | None:
    """Return what is mounted on ``folder``, the topmost of several; None when nothing is."""
    found = None
    for line in _TABLE.read_bytes().splitlines():
        fields, _, rest = line.partition(b" - ")
        if _unescaped(fields.split(b" ")[_TARGET]) == folder:
            kind, source, *_ = rest.split(b" ")
            found = Mounted(kind.decode(), _unescaped(source))
    return found


def _unescaped(field: bytes) -> Path:
    """Read a name back in which the kernel wrote blanks and backslashes as octal numbers."""
    return Path(os.fsdecode(_ESCAPED.sub(lambda match: bytes([int(match.group(1), 8)]), field)))
