"""Find rows of the final and reference roles where a candidate could see them.

What counts as a row:

* a slice along the first axis of an array of two or more dimensions (``.npy``, ``.npz``), and a
  line of numbers (``.csv``, ``.tsv``), with at least eight values of which three differ. Two are
  the same row when they agree to four decimals after each is divided by its greatest magnitude,
  so pixels in 0..16 match pixels in 0..1. A line of numbers also counts without its first and
  without its last column, for that may be a label;
* a line of text of at least sixteen characters (``.txt``, ``.csv``, ``.tsv``, ``.jsonl``), white
  space collapsed; a JSON object is compared as a value, whatever the order of its keys.

``.gz`` is looked through. Any other file counts as one row, its bytes, where it is of the final
role; reference models may share configurations with the anchor. In an image the bytes of final
files are looked for besides their rows.
"""

import gzip
import hashlib
import io
import json
import math
import re
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

MAX_FILE = 512 * 1024**2
"""Bytes, after decompression, beyond which a file is not read for rows."""
_CHUNK = 1024**2
_FEWEST_VALUES = 8
_FEWEST_DIFFERENT = 3
_FEWEST_CHARACTERS = 16
_KEY_BYTES = 16
_CODES = {
    "f2": "e", "f4": "f", "f8": "d", "b1": "?",
    "i1": "b", "i2": "h", "i4": "i", "i8": "q",
    "u1": "B", "u2": "H", "u4": "I", "u8": "Q",
}  # fmt: skip
_NPY = re.compile(
    rb"\x93NUMPY[\x01-\x03]\x00(?:..)(?:\x00\x00)?\{'descr': '([<>|])([fbiu][1248])',"
    rb" 'fortran_order': (True|False), 'shape': \(([0-9, ]*)\), ?\} *\n",
    re.DOTALL,
)
_SEPARATOR = re.compile(r"[,;\t]")


@dataclass(frozen=True, slots=True, order=True)
class Overlap:
    """Rows of one hidden asset that are also somewhere else.

    Attributes:
        asset: the final or reference asset.
        other: the asset or image that has them too.
        file: where in ``other``.
        rows: how many.
    """

    asset: str
    other: str
    file: str
    rows: int


@dataclass(frozen=True, slots=True)
class HiddenAsset:
    """An asset whose rows must not be seen. ``final`` ones also count file by file."""

    name: str
    folder: Path
    final: bool
    allowed: frozenset[str]


@dataclass(slots=True)
class RowIndex:
    """The rows of all hidden assets. ``unread`` names files that could not be looked into."""

    _owners: dict[bytes, set[str]] = field(default_factory=dict)
    _allowed: dict[str, frozenset[str]] = field(default_factory=dict)
    unread: list[tuple[str, str]] = field(default_factory=list)

    def add(self, asset: HiddenAsset) -> None:
        """Read all rows of a hidden asset."""
        self._allowed[asset.name] = asset.allowed
        for name, path in _files(asset.folder):
            with path.open("rb") as stream:
                found = _read(name, stream)
            if found.damage:
                self.unread.append((asset.name, f"{name}: {found.damage}"))
            keys = [*found.rows, found.whole] if asset.final else found.rows
            for key in keys:
                self._owners.setdefault(key, set()).add(asset.name)

    def in_asset(self, other: str, folder: Path) -> Iterator[Overlap]:
        """Look for hidden rows in an asset that candidates see."""
        for name, path in _files(folder):
            with path.open("rb") as stream:
                found = _read(name, stream)
            keys = found.rows if found.has_rows else [found.whole]
            yield from self._hits(other, name, keys)

    def in_image(self, reference: str, files: Iterable[tuple[str, IO[bytes]]]) -> Iterator[Overlap]:
        """Look for hidden rows in the files of an image; no overlap with an image is allowed."""
        for name, stream in files:
            found = _read(name, stream)
            yield from self._hits(reference, name, [*found.rows, found.whole])

    def _hits(self, other: str, file: str, keys: Iterable[bytes]) -> Iterator[Overlap]:
        counts: Counter[str] = Counter()
        for key in set(keys):
            counts.update(self._owners.get(key, ()))
        for asset, rows in sorted(counts.items()):
            if other not in self._allowed[asset]:
                yield Overlap(asset, other, file, rows)


@dataclass(frozen=True, slots=True)
class _Found:
    """What one file holds. ``damage`` says why its rows could not be read."""

    whole: bytes
    rows: list[bytes]
    has_rows: bool
    damage: str = ""


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield path.relative_to(folder).as_posix(), path


def _read(name: str, stream: IO[bytes]) -> _Found:
    """Read a file once: its digest always, its rows where the format is known."""
    packed = name.lower().endswith(".gz")
    kinds = [kind for kind in PurePosixPath(name.lower()).suffixes if kind != ".gz"]
    reader = _READERS.get(kinds[-1]) if kinds else None
    digest = hashlib.sha256()
    kept = io.BytesIO()
    for chunk in iter(lambda: stream.read(_CHUNK), b""):
        digest.update(chunk)
        if reader is not None and kept.tell() <= MAX_FILE:
            kept.write(chunk)
    whole = digest.digest()
    if reader is None:
        return _Found(whole, [], has_rows=False)
    try:
        data = _unpack(kept.getvalue()) if packed else kept.getvalue()
        if len(data) > MAX_FILE:
            return _Found(whole, [], has_rows=False, damage="too large to compare row by row")
        return _Found(whole, list(reader(data)), has_rows=True)
    except (ValueError, EOFError, OSError, zlib.error, zipfile.BadZipFile, struct.error) as error:
        return _Found(whole, [], has_rows=False, damage=str(error))


def _unpack(data: bytes) -> bytes:
    with gzip.open(io.BytesIO(data)) as file:
        return file.read(MAX_FILE + 1)


def _npy_rows(data: bytes) -> Iterator[bytes]:
    header = _NPY.match(data)
    if header is None:
        raise ValueError("not a plain numeric array")
    order, kind, fortran, shape_text = (group.decode() for group in header.groups())
    shape = [int(part) for part in shape_text.replace(" ", "").split(",") if part]
    if len(shape) < 2:  # noqa: PLR2004 - labels and indices: one value a row says nothing
        return
    if fortran == "True" and len(shape) > 2:  # noqa: PLR2004
        raise ValueError("an array of more than two dimensions in Fortran order")
    count, width = shape[0], math.prod(shape[1:])
    values = struct.Struct(f"{order.replace('|', '<')}{width}{_CODES[kind]}")
    if len(data) - header.end() != values.size * count:
        raise ValueError("the array's size is not what its header says")
    if fortran == "True":
        columns = struct.Struct(f"{order.replace('|', '<')}{count}{_CODES[kind]}")
        rows: Iterable[tuple[float, ...]] = zip(
            *columns.iter_unpack(memoryview(data)[header.end() :]), strict=True
        )
    else:
        rows = values.iter_unpack(memoryview(data)[header.end() :]) if width else ()
    for row in rows:
        yield from _numeric_key(row)


def _npz_rows(data: bytes) -> Iterator[bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if sum(member.file_size for member in archive.infolist()) > MAX_FILE:
            raise ValueError("too large to compare row by row")
        for member in archive.infolist():
            yield from _npy_rows(archive.read(member))


def _text_rows(data: bytes) -> Iterator[bytes]:
    for line in data.decode("utf-8", "replace").splitlines():
        values = _numbers(line)
        if values is None:
            yield from _text_key(line)
            continue
        for row in (values, values[1:], values[:-1]):
            yield from _numeric_key(row)


def _numbers(line: str) -> tuple[float, ...] | None:
    parts = _SEPARATOR.split(line.strip())
    if len(parts) < _FEWEST_VALUES:
        return None
    try:
        return tuple(float(part) for part in parts)
    except ValueError:
        return None


def _numeric_key(values: tuple[float, ...]) -> Iterator[bytes]:
    if len(values) < _FEWEST_VALUES or not all(map(math.isfinite, values)):
        return
    peak = max(map(abs, values))
    if not peak:
        return
    scaled = [round(value / peak, 4) + 0.0 for value in values]  # + 0.0: no negative zero
    if len(set(scaled)) >= _FEWEST_DIFFERENT:
        yield _key(b"numbers", struct.pack(f"<{len(scaled)}d", *scaled))


def _text_key(line: str) -> Iterator[bytes]:
    text = " ".join(line.split())
    if len(text) < _FEWEST_CHARACTERS:
        return
    if text.startswith("{"):
        # What is no JSON is a line of text that happens to begin with a brace.
        with suppress(ValueError, RecursionError):
            text = json.dumps(json.loads(text), sort_keys=True)
    yield _key(b"text", text.encode("utf-8", "replace"))


def _key(kind: bytes, content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_KEY_BYTES, person=kind).digest()


_READERS: Mapping[str, Callable[[bytes], Iterator[bytes]]] = {
    ".npy": _npy_rows,
    ".npz": _npz_rows,
    ".csv": _text_rows,
    ".tsv": _text_rows,
    ".txt": _text_rows,
    ".jsonl": _text_rows,
}
