"""Write what an engine hands out as a tar into a folder of this host."""

import tarfile
from pathlib import Path
from typing import IO


def untar(archive: IO[bytes], into: Path) -> None:
    """Write the folders, files and links of a tar as it streams by, compressed or not.

    A link is written as it is, wherever it points; nothing is written through one, and nothing
    outside ``into``. Whatever else the tar holds is left out.

    Raises:
        tarfile.TarError: it is broken, or wants to write elsewhere.
    """
    with tarfile.open(fileobj=archive, mode="r|*") as tar:
        tar.extractall(into, filter=_plain)  # noqa: S202 - the filter keeps it inside


def _plain(member: tarfile.TarInfo, into: str) -> tarfile.TarInfo | None:
    if member.islnk():  # a second name of a file: of one of the tar's own
        target = Path(into, member.linkname).resolve()
        if not target.is_relative_to(Path(into).resolve()):
            raise tarfile.LinkOutsideDestinationError(member, str(target))
    plain = member.isreg() or member.isdir() or member.issym() or member.islnk()
    return tarfile.tar_filter(member, into) if plain else None
