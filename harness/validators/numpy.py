"""Judge whether a checkpoint of NumPy arrays is whole and shaped like the anchor.

Runs in the validate container. It reads /ckpt (``.npy``, ``.npz`` and small ``.json`` files) and
the anchor in $ORCH_ANCHOR, and writes /out/validation.json::

    {"valid": bool, "reason": "<slug>", "detail": str, "arrays": n, "parameters": n}

Exit status 0 for either verdict; anything else is a crash of this program or of the machine.
Headers are matched against the one form NumPy writes, never evaluated, and nothing larger than the
anchor's own array is read.
"""

import errno
import json
import math
import os
import re
import sys
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

# This file has the name of the package it needs.
sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).parent]

import numpy as np  # noqa: E402

MAX_HEADER = 64 * 1024
MAX_JSON = 1024 * 1024
MAX_FILES = 10_000
_MAGIC = b"\x93NUMPY"
_HEADER = re.compile(
    rb"\{'descr': '([<>|=][biufc][0-9]{1,2})', 'fortran_order': (?:True|False),"
    rb" 'shape': \(((?:[0-9]{1,18},? ?)*)\), ?\} *\n?"
)
_DAMAGE = (ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)
_DAMAGE_ERRNO = {None, errno.EINVAL}
"""What zipfile's own seeks and decoders say of broken offsets; any other OSError is the disk's."""


class Invalid(Exception):  # noqa: N818 - a verdict, not an error
    """The checkpoint is not acceptable: ``reason`` is a slug, ``detail`` says where."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Shape(NamedTuple):
    """What a header promises."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes of the array's data."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def header(stream: IO[bytes], name: str) -> Shape:
    """Read an array's header and leave ``stream`` at its data."""
    start = stream.read(8)
    if len(start) < len(_MAGIC) + 2 or not start.startswith(_MAGIC) or start[6] not in {1, 2, 3}:
        raise Invalid("corrupt_file", f"{name}: not an array file")
    width = 2 if start[6] == 1 else 4
    length = int.from_bytes(stream.read(width), "little")
    if length > MAX_HEADER:
        raise Invalid("corrupt_file", f"{name}: header of {length} bytes")
    text = stream.read(length)
    if b"O'" in text or b"descr': [" in text:
        raise Invalid("object_dtype", f"{name}: only plain numeric arrays are loaded")
    match = _HEADER.fullmatch(text)
    if len(text) < length or match is None:
        raise Invalid("corrupt_file", f"{name}: broken header")
    shape = tuple(int(part) for part in match.group(2).replace(b" ", b"").split(b",") if part)
    return Shape(match.group(1).decode("ascii"), shape)


def streams(file: Path, name: str) -> Iterator[tuple[str, IO[bytes]]]:
    """Open each array of a file: ``weights.npz:w1``, or the name of the ``.npy`` itself."""
    if file.suffix == ".npy":
        with file.open("rb") as stream:
            yield name, stream
        return
    with zipfile.ZipFile(file) as archive:
        members = archive.namelist()
        if len(members) > MAX_FILES or len(set(members)) < len(members):
            raise Invalid("corrupt_file", f"{name}: too many members, or one twice")
        for member in members:
            with archive.open(member) as stream:
                yield f"{name}:{member.removesuffix('.npy')}", stream


def files(root: Path) -> Iterator[tuple[str, Path]]:
    """List the regular files of a folder; anything else in it is refused."""
    for number, path in enumerate(sorted(root.rglob("*"))):
        if number > MAX_FILES:
            raise Invalid("unexpected_file", f"more than {MAX_FILES} files")
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise Invalid("unexpected_file", f"{path.relative_to(root)}: not a regular file")
        if path.is_file():
            yield str(path.relative_to(root)), path


def expected(anchor: Path) -> dict[str, dict[str, Shape]]:
    """Read the headers of the anchor's arrays, file by file."""
    return {
        name: {array: header(stream, array) for array, stream in streams(path, name)}
        for name, path in files(anchor)
        if path.suffix in {".npy", ".npz"}
    }


def check_array(stream: IO[bytes], name: str, wanted: Shape, *, finite: bool) -> None:
    """Compare one array with the anchor's and read it to its end."""
    found = header(stream, name)
    if found.dtype != wanted.dtype:
        raise Invalid("dtype_mismatch", f"{name}: {found.dtype}, the anchor has {wanted.dtype}")
    if found.shape != wanted.shape:
        raise Invalid("shape_mismatch", f"{name}: {found.shape}, the anchor has {wanted.shape}")
    data = stream.read(wanted.size)
    if len(data) < wanted.size:
        raise Invalid("corrupt_file", f"{name}: {len(data)} of {wanted.size} bytes")
    if stream.read(1):
        raise Invalid("corrupt_file", f"{name}: bytes after the array")
    if finite and not np.isfinite(np.frombuffer(data, dtype=np.dtype(wanted.dtype))).all():
        raise Invalid("nonfinite", f"{name}: holds NaN or an infinity")


def check_arrays(file: Path, name: str, wanted: dict[str, Shape], *, finite: bool) -> None:
    """Compare one file of arrays with the anchor's."""
    missing = dict(wanted)
    try:
        for array, stream in streams(file, name):
            if array not in missing:
                raise Invalid("unexpected_array", f"{array}: the anchor has no such array")
            check_array(stream, array, missing.pop(array), finite=finite)
    except _DAMAGE as damage:
        raise Invalid("corrupt_file", f"{name}: {damage}") from damage
    except OSError as damage:
        if damage.errno not in _DAMAGE_ERRNO:
            raise
        raise Invalid("corrupt_file", f"{name}: {damage}") from damage
    if missing:
        raise Invalid("missing_array", f"{', '.join(sorted(missing))}: not in the checkpoint")


def check_json(file: Path, name: str) -> None:
    """Accept small, well-formed JSON; nothing in it is used."""
    if file.stat().st_size > MAX_JSON:
        raise Invalid("too_large", f"{name}: over {MAX_JSON} bytes")
    try:
        json.loads(file.read_bytes())
    except (ValueError, RecursionError) as damage:
        raise Invalid("corrupt_file", f"{name}: {damage}") from damage


def check(checkpoint: Path, wanted: dict[str, dict[str, Shape]], *, finite: bool) -> None:
    """Judge a checkpoint.

    Raises:
        Invalid: it is not acceptable.
    """
    present = dict(files(checkpoint))
    for name in sorted(wanted.keys() - present.keys()):
        raise Invalid("missing_weights", f"{name}: not in the checkpoint")
    for name, path in present.items():
        if path.suffix == ".json":
            check_json(path, name)
        elif name in wanted:
            check_arrays(path, name, wanted[name], finite=finite)
        else:
            raise Invalid("unexpected_file", f"{name}: the anchor has no such file")


def main() -> None:
    """Write the verdict."""
    checkpoint = Path(os.environ.get("ORCH_CHECKPOINT_DIR", "/ckpt"))
    out = Path(os.environ.get("OUTPUT_DIR", "/out"))
    wanted = expected(Path(os.environ["ORCH_ANCHOR"]))
    arrays = [array for file in wanted.values() for array in file.values()]
    if not arrays:
        raise SystemExit("the anchor holds no arrays")
    reason, detail = "", ""
    try:
        check(checkpoint, wanted, finite=os.environ.get("ORCH_ALLOW_NONFINITE") != "1")
    except Invalid as verdict:
        reason, detail = verdict.reason, str(verdict)
    record = {
        "valid": not reason,
        "reason": reason,
        "detail": detail[:500],
        "arrays": len(arrays),
        "parameters": sum(math.prod(array.shape) for array in arrays),
    }
    (out / "validation.json").write_text(json.dumps(record) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
