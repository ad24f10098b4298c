"""Judge whether a checkpoint of PyTorch state is whole, harmless and shaped like the anchor.

Runs in the validate container, on an image with torch. It reads the files that ``torch.save``
writes (``.pt``, ``.pth``, ``.bin``; with ``weights_only``, so that no pickle is executed), and
``.safetensors``, in /ckpt and in the anchor ($ORCH_ANCHOR), and writes /out/validation.json::

    {"valid": bool, "reason": "<slug>", "detail": str, "arrays": n, "parameters": n}

Exit status 0 for either verdict; anything else is a crash of this program or of the machine.
State is dictionaries and lists, nested as they may be, of tensors and plain values. Where the
anchor has such files, a checkpoint has the same files with the same names of tensors, shapes and
dtypes, each at most twice as large; where it has none, a checkpoint has at least one.
"""

import json
import math
import pickle
import struct
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from weight_files import (
    Invalid,
    Places,
    check_finite,
    header,
    leave_own_folder,
    listed,
    may_be_nonfinite,
    small_file,
    write_verdict,
)

MAX_PICKLE = 64 * 1024**2
MAX_MEMBERS = 100_000
MAX_VALUES = 1_000_000
MAX_PATH = 1000
MAX_JSON = 1024**2
SLACK = 1024**2
_SAFETENSORS = ".safetensors"
_STATE = frozenset({".pt", ".pth", ".bin", _SAFETENSORS})
_PICKLE = "data.pkl"
_PLAIN = (bool, int, float, str, type(None))
_DAMAGE = (
    *(RuntimeError, ValueError, LookupError, TypeError, AttributeError, AssertionError),
    *(EOFError, OverflowError, struct.error),
)
"""What reading a broken archive or a broken pickle raises; an OSError is the disk's."""


class Entry(NamedTuple):
    """A tensor as a file has it."""

    dtype: str
    shape: tuple[int, ...]


State = dict[str, Entry]


def check_archive(path: Path, name: str) -> list[int]:
    """Refuse what ``torch.save`` does not write: packed members, or more than the file holds.

    Returns:
        The sizes in bytes of what it stores of tensors, in rising order.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, *_DAMAGE) as damage:
        raise Invalid("corrupt_file", f"{name}: {damage}") from damage
    if len(members) > MAX_MEMBERS:
        raise Invalid("too_large", f"{name}: more than {MAX_MEMBERS} members")
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED:
            raise Invalid("corrupt_file", f"{name}: {member.filename} is compressed")
        if member.filename.endswith(_PICKLE) and member.file_size > MAX_PICKLE:
            raise Invalid("too_large", f"{name}: {member.filename} of {member.file_size} bytes")
    if sum(member.file_size for member in members) > path.stat().st_size:
        raise Invalid("corrupt_file", f"{name}: its members are larger than the file")
    stored = (m.file_size for m in members if PurePosixPath(m.filename).parent.name == "data")
    return sorted(size for size in stored if size)


def unpickled(path: Path, name: str) -> dict[str, Any]:
    """Load a file without executing what it holds; return its tensors by their path in it."""
    stored = check_archive(path, name)
    import torch  # noqa: PLC0415 - what is no archive, and safetensors, do without

    try:
        root = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as refused:
        first = str(refused).partition("\n")[0]
        raise Invalid("pickle_refused", f"{name}: {first}") from refused
    except _DAMAGE as damage:
        raise Invalid("corrupt_file", f"{name}: {damage}") from damage
    tensors: dict[str, Any] = {}
    for where, tensor in _tensors(name, root):
        if where in tensors:  # {"a": {"b": ...}, "a:b": ...}: one would hide the other
            raise Invalid("unexpected_value", f"{where}: two tensors of one name")
        tensors[where] = tensor
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors.values()}
    if sorted(storage.nbytes() for storage in storages.values() if storage.nbytes()) != stored:
        raise Invalid("corrupt_file", f"{name}: stores more or fewer bytes than its tensors have")
    return tensors


def _tensors(name: str, root: Any) -> Iterator[tuple[str, Any]]:
    """Walk what was loaded; a value that is neither plain nor a tensor is refused."""
    import torch  # noqa: PLC0415

    waiting: list[tuple[str, Any]] = [(name, root)]
    for _ in range(MAX_VALUES):  # what refers to itself would never end
        if not waiting:
            return
        where, value = waiting.pop()
        if len(where) > MAX_PATH:
            raise Invalid("unexpected_value", f"{name}: nested too deep, or a name too long")
        match value:
            case dict():
                waiting += [(f"{where}:{key}", inner) for key, inner in value.items()]
            case list() | tuple():
                waiting += [(f"{where}:{key}", inner) for key, inner in enumerate(value)]
            case torch.Tensor():
                yield where, _plain(value, where)
            case _ if not isinstance(value, _PLAIN):
                raise Invalid("unexpected_value", f"{where}: a {type(value).__name__}")
    raise Invalid("too_large", f"{name}: more than {MAX_VALUES} values")


def _plain(tensor: Any, where: str) -> Any:
    """Refuse a tensor that is anything but numbers that lie in the file."""
    import torch  # noqa: PLC0415

    if (
        type(tensor) not in {torch.Tensor, torch.nn.Parameter}
        or tensor.layout is not torch.strided
        or tensor.device.type != "cpu"
        or tensor.is_quantized
    ):
        raise Invalid("unexpected_value", f"{where}: not a plain tensor")
    if tensor.nbytes > tensor.untyped_storage().nbytes():
        raise Invalid("corrupt_file", f"{where}: larger than what is stored of it")
    return tensor.detach()


def read_state(path: Path, name: str, *, finite: bool) -> State:
    """Read one file, and every number in it where they have to be ``finite``."""
    if path.suffix == _SAFETENSORS:
        described = header(path)
        if finite:
            for tensor, found in described.items():
                check_finite(tensor, found)
        return {f"{name}:{key}": Entry(row.dtype, row.shape) for key, row in described.items()}
    state: State = {}
    for where, tensor in unpickled(path, name).items():
        if finite and not _is_finite(tensor):
            raise Invalid("nonfinite", f"{where}: holds NaN or an infinity")
        state[where] = Entry(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
    return state


def _is_finite(tensor: Any) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    wide = tensor.float() if tensor.itemsize == 1 else tensor  # of eight bits, few operations
    return bool(wide.isfinite().all())


def compare(found: State, wanted: State) -> None:
    """Hold the tensors of one file against the anchor's."""
    for name in sorted(wanted.keys() - found.keys()):
        raise Invalid("missing_tensor", f"{name}: not in the checkpoint")
    for name in sorted(found.keys() - wanted.keys()):
        raise Invalid("unexpected_tensor", f"{name}: the anchor has no such tensor")
    for name, tensor in found.items():
        other = wanted[name]
        if tensor.shape != other.shape:
            detail = f"{name}: {list(tensor.shape)}, the anchor has {list(other.shape)}"
            raise Invalid("shape_mismatch", detail)
        if tensor.dtype != other.dtype:
            detail = f"{name}: {tensor.dtype}, the anchor has {other.dtype}"
            raise Invalid("dtype_mismatch", detail)


def check_json(path: Path, name: str) -> None:
    """Accept small, well-formed JSON; nothing in it is used."""
    try:
        json.loads(small_file(path, MAX_JSON, "too_large"))
    except (ValueError, RecursionError) as damage:
        raise Invalid("corrupt_file", f"{name}: {damage}") from damage


def states(root: Path) -> dict[str, Path]:
    """List the files of state under a folder."""
    return {name: path for name, path in listed(root).items() if path.suffix in _STATE}


def judge(checkpoint: Path, anchor: Path | None) -> State:
    """Return the tensors of a checkpoint that is acceptable.

    Raises:
        Invalid: it is not.
    """
    models = states(anchor) if anchor else {}
    files = listed(checkpoint)
    for name in sorted(models.keys() - files.keys()):
        raise Invalid("missing_weights", f"{name}: not in the checkpoint")
    if not states(checkpoint):
        raise Invalid("missing_weights", f"no file ends in {', '.join(sorted(_STATE))}")
    total: State = {}
    for name, path in files.items():
        if path.suffix == ".json":
            check_json(path, name)
            continue
        if path.suffix not in _STATE or (models and name not in models):
            raise Invalid("unexpected_file", f"{name}: the anchor has no such file")
        wanted = models.get(name)
        if wanted and path.stat().st_size > 2 * wanted.stat().st_size + SLACK:
            raise Invalid("too_large", f"{name}: more than twice the anchor's and {SLACK} bytes")
        found = read_state(path, name, finite=not may_be_nonfinite())
        if wanted:
            compare(found, read_anchor(wanted, name))
        total |= found
    return total


def read_anchor(path: Path, name: str) -> State:
    """Read a file of the anchor; one that is broken is no verdict on a checkpoint."""
    try:
        return read_state(path, name, finite=False)
    except Invalid as fault:
        sys.exit(f"the anchor is not usable: {fault.reason}: {fault}")


def main() -> None:
    """Write the verdict."""
    leave_own_folder()
    places = Places.from_environment()
    try:
        state = judge(places.checkpoint, places.anchor)
    except Invalid as verdict:
        write_verdict(places.out, reason=verdict.reason, detail=str(verdict))
        return
    parameters = sum(math.prod(entry.shape) for entry in state.values())
    write_verdict(places.out, arrays=len(state), parameters=parameters)


if __name__ == "__main__":
    main()
