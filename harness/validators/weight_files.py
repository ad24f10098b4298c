"""What the validators of weights share: reading files that they distrust, and writing the verdict.

File format: https://github.com/huggingface/safetensors, "Format". Headers are parsed as strict
JSON and tensors are streamed; nothing here needs more than Python.
"""

import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

MAX_HEADER = 4 * 1024**2
MAX_FILES = 10_000
MAX_DIMENSIONS = 16
CHUNK = 4 * 1024**2

Bits = tuple[tuple[int, int], ...]
"""Bytes of a number (from the lowest) and the bits in them that are all set in NaN and infinity."""

FLOATS: dict[str, tuple[int, Bits]] = {
    "F64": (8, ((7, 0x7F), (6, 0xF0))),
    "F32": (4, ((3, 0x7F), (2, 0x80))),
    "F16": (2, ((1, 0x7C),)),
    "BF16": (2, ((1, 0x7F), (0, 0x80))),
}
_OTHERS: dict[str, tuple[int, Bits]] = {
    "F8_E5M2": (1, ((0, 0x7C),)),
    "F8_E4M3": (1, ((0, 0x7F),)),
    **dict.fromkeys(("I64", "U64"), (8, ())),
    **dict.fromkeys(("I32", "U32"), (4, ())),
    **dict.fromkeys(("I16", "U16"), (2, ())),
    **dict.fromkeys(("I8", "U8", "BOOL"), (1, ())),
}
_DTYPES = {**FLOATS, **_OTHERS}


class Invalid(Exception):  # noqa: N818 - a verdict, not an error
    """The checkpoint is not acceptable: ``reason`` is a slug, ``detail`` says where."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Tensor(NamedTuple):
    """What a header promises; ``start`` and ``end`` are offsets in the file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class Places(NamedTuple):
    """Where a validator's container has what it judges, and what it may write to."""

    checkpoint: Path
    anchor: Path | None
    out: Path

    @classmethod
    def from_environment(cls) -> "Places":
        """Read them; a task without an anchor has none."""
        anchor = os.environ.get("ORCH_ANCHOR")
        return cls(
            Path(os.environ.get("ORCH_CHECKPOINT_DIR", "/ckpt")),
            Path(anchor) if anchor else None,
            Path(os.environ.get("OUTPUT_DIR", "/out")),
        )


def may_be_nonfinite() -> bool:
    """Tell whether the task accepts NaN and infinities."""
    return os.environ.get("ORCH_ALLOW_NONFINITE") == "1"


def leave_own_folder() -> None:
    """Take this folder off the search path: ``numpy.py`` in it is not what torch imports."""
    own = Path(__file__).parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != own]


def write_verdict(
    out: Path,
    *,
    reason: str = "",
    detail: str = "",
    arrays: int | None = None,
    parameters: int | None = None,
) -> None:
    """Write ``validation.json``; an empty ``reason`` means valid."""
    record = {
        "valid": not reason,
        "reason": reason,
        "detail": detail[:500].encode("ascii", "backslashreplace").decode(),
        "arrays": arrays,
        "parameters": parameters,
    }
    (out / "validation.json").write_text(json.dumps(record) + "\n", encoding="ascii")


def strict_json(data: bytes, name: str, reason: str) -> dict[str, Any]:
    """Parse a JSON object in which no key is given twice and every number is finite."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a key is given twice")
        return found

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    try:
        found = json.loads(data.decode(), object_pairs_hook=once, parse_constant=refuse)
    except (ValueError, RecursionError) as damage:
        raise Invalid(reason, f"{name}: {damage}") from damage
    if not isinstance(found, dict):
        raise Invalid(reason, f"{name}: not an object")
    return found


def small_file(path: Path, limit: int, reason: str) -> bytes:
    """Read a file that must not be larger than ``limit`` bytes."""
    with path.open("rb") as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise Invalid(reason, f"{path.name}: over {limit} bytes")
    return data


def listed(root: Path) -> dict[str, Path]:
    """List the regular files of a folder by their relative paths; anything else is refused."""
    found: dict[str, Path] = {}
    for folder, folders, names in os.walk(root):
        for name in (*folders, *names):
            path = Path(folder, name)
            shown = str(path.relative_to(root))
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise Invalid("unexpected_file", f"{shown}: not a regular file")
            if path.is_file():
                found[shown] = path
            if len(found) > MAX_FILES:
                raise Invalid("unexpected_file", f"more than {MAX_FILES} files")
    return dict(sorted(found.items()))


def header(path: Path) -> dict[str, Tensor]:
    """Read what tensors a file holds and check that they fill it exactly."""
    name = path.name
    size = path.stat().st_size
    with path.open("rb") as stream:
        start = stream.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > size - 8:  # noqa: PLR2004 - the length's own bytes
            raise Invalid("corrupt_file", f"{name}: truncated, {size} bytes")
        if length > MAX_HEADER:
            raise Invalid("corrupt_file", f"{name}: header of {length} bytes")
        described = strict_json(stream.read(length), f"{name}: header", "corrupt_file")
    metadata = described.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise Invalid("corrupt_file", f"{name}: __metadata__ is no object")
    data = 8 + length
    tensors = {tensor: _tensor(path, data, tensor, row) for tensor, row in described.items()}
    end = data
    for tensor, found in sorted(tensors.items(), key=lambda item: item[1][3:]):
        if found.start != end:
            raise Invalid("corrupt_file", f"{name}: {tensor}: a gap or an overlap before it")
        end = found.end
    if end != size:
        what = "truncated" if end > size else "bytes after the last tensor"
        raise Invalid("corrupt_file", f"{name}: {what}, {size} bytes where {end} are described")
    return tensors


def _tensor(path: Path, data: int, name: str, row: Any) -> Tensor:
    def broken(what: str) -> Invalid:
        return Invalid("corrupt_file", f"{path.name}: {name}: {what}")

    if not isinstance(row, dict) or row.keys() != {"dtype", "shape", "data_offsets"}:
        raise broken("not a description of a tensor")
    dtype, shape, offsets = row["dtype"], row["shape"], row["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise broken(f"dtype {dtype}")
    if not _counts(shape) or len(shape) > MAX_DIMENSIONS:
        raise broken("broken shape")
    if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:  # noqa: PLR2004
        raise broken("broken data_offsets")
    start, end = offsets
    if end - start != math.prod(shape) * _DTYPES[dtype][0]:
        raise broken(f"{end - start} bytes for {dtype} {shape}")
    return Tensor(path, dtype, tuple(shape), data + start, data + end)


def _counts(value: Any) -> bool:
    """Tell whether a value is a list of whole numbers as large as a file can be."""
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**63 for n in value)


def check_finite(name: str, tensor: Tensor) -> None:
    """Stream a tensor's bytes and refuse NaN and infinities."""
    size, bits = _DTYPES[tensor.dtype]
    if not bits:
        return
    tables = [bytes(int(byte & mask == mask) for byte in range(256)) for _, mask in bits]
    for chunk in _chunks(tensor):
        marks = -1
        for (at, _), table in zip(bits, tables, strict=True):
            marks &= int.from_bytes(chunk[at::size].translate(table), "little")
        if marks:
            raise Invalid("nonfinite", f"{tensor.file.name}: {name}: holds NaN or an infinity")


def _chunks(tensor: Tensor) -> Iterator[bytes]:
    with tensor.file.open("rb") as stream:
        stream.seek(tensor.start)
        for at in range(tensor.start, tensor.end, CHUNK):
            yield stream.read(min(CHUNK, tensor.end - at))
