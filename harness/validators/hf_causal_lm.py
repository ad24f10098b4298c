"""Judge whether a checkpoint of a causal language model is whole and shaped like the anchor.

Runs in the validate container and needs nothing but Python. It reads the files that
``save_pretrained`` writes - ``config.json`` and ``model.safetensors``, or shards and
``model.safetensors.index.json`` - in /ckpt and in the anchor ($ORCH_ANCHOR), and writes
/out/validation.json::

    {"valid": bool, "reason": "<slug>", "detail": str, "arrays": n, "parameters": n}

Exit status 0 for either verdict; anything else is a crash of this program or of the machine.
Nothing is loaded: headers are parsed as strict JSON, tensors are streamed once for NaN and
infinities, pickles are never opened. What a checkpoint brings beside its tensors (tokenizer, code,
``auto_map``) is used by nobody; for a valid one ``detail`` names such code.

File format: https://github.com/huggingface/safetensors, "Format".
"""

import json
import math
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

MAX_HEADER = 4 * 1024**2
MAX_INDEX = 4 * 1024**2
MAX_CONFIG = 1024**2
MAX_FILES = 10_000
MAX_DIMENSIONS = 16
CHUNK = 4 * 1024**2
CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
_PICKLES = frozenset({".bin", ".ckpt", ".joblib", ".pickle", ".pkl", ".pt", ".pth"})
_SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}\.safetensors")
_SAME = ("architectures", "model_type", "num_hidden_layers", "hidden_size", "vocab_size")
_CODE = ("auto_map", "trust_remote_code")

Bits = tuple[tuple[int, int], ...]
"""Bytes of a number (from the lowest) and the bits in them that are all set in NaN and infinity."""

_FLOATS: dict[str, tuple[int, Bits]] = {
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
_DTYPES = {**_FLOATS, **_OTHERS}


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


class Model(NamedTuple):
    """A model as its files describe it."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def tied(self) -> bool | None:
        """Whether the head is the embedding; None where the configuration does not say."""
        return self.config.get("tie_word_embeddings")


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
    """List the regular files of a folder; links, special files and pickles are refused."""
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
    for shown in sorted(found):
        if Path(shown).suffix.lower() in _PICKLES:
            raise Invalid("pickle_refused", f"{shown}: only safetensors are read")
    return found


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


def weights(files: dict[str, Path]) -> dict[str, Tensor]:
    """Read the headers of all weights and hold the index against the shards."""
    if INDEX not in files:
        if SINGLE not in files:
            raise Invalid("missing_weights", f"neither {SINGLE} nor {INDEX}")
        _only(files, {SINGLE})
        return header(files[SINGLE])
    places = _weight_map(files[INDEX])
    shards = sorted(set(places.values()))
    for shard in shards:
        if shard not in files:
            raise Invalid("missing_shard", f"{shard}: named by {INDEX}, not in the checkpoint")
    _only(files, set(shards))
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        found = header(files[shard])
        for name in sorted(found):
            if places.get(name) != shard:
                raise Invalid("unexpected_tensor", f"{shard}: {name}: not there by the index")
        tensors |= found
    for name in sorted(places.keys() - tensors.keys()):
        raise Invalid("missing_tensor", f"{name}: not in {places[name]}")
    return tensors


def _weight_map(index: Path) -> dict[str, str]:
    """Read which tensor lies in which shard."""
    data = small_file(index, MAX_INDEX, "corrupt_file")
    places = strict_json(data, INDEX, "corrupt_file").get("weight_map")
    if not isinstance(places, dict) or not places:
        raise Invalid("corrupt_file", f"{INDEX}: no weight_map")
    for name, shard in places.items():
        if not isinstance(shard, str) or not _SHARD.fullmatch(shard):
            raise Invalid("corrupt_file", f"{INDEX}: {name}: not the name of a shard")
    return places


def _only(files: dict[str, Path], wanted: set[str]) -> None:
    for shown in sorted(files):
        if shown.endswith(".safetensors") and shown not in wanted:
            raise Invalid("unexpected_file", f"{shown}: weights that nothing names")


def read_model(root: Path) -> Model:
    """Read a model's configuration and headers."""
    files = listed(root)
    tensors = weights(files)
    if CONFIG not in files:
        raise Invalid("bad_config", f"{CONFIG}: missing")
    data = small_file(files[CONFIG], MAX_CONFIG, "bad_config")
    model = Model(strict_json(data, CONFIG, "bad_config"), tensors)
    if not isinstance(model.tied, bool | None):
        raise Invalid("bad_config", f"{CONFIG}: tie_word_embeddings is no boolean")
    return model


def compare(found: Model, anchor: Model) -> None:
    """Hold a model against the anchor: configuration, names, dtypes, shapes, tied weights."""
    for key in _SAME:
        if key in anchor.config and found.config.get(key) != anchor.config[key]:
            raise Invalid("bad_config", f"{CONFIG}: {key} is not the anchor's")
    if None not in {found.tied, anchor.tied} and found.tied != anchor.tied:
        raise Invalid("bad_config", f"{CONFIG}: tie_word_embeddings is not the anchor's")
    wanted, given = dict(anchor.tensors), dict(found.tensors)
    if anchor.tied or (anchor.tied is None and HEAD not in wanted):
        _untie(wanted, anchor.tensors)
        _untie(given, found.tensors)
    for name in sorted(wanted.keys() - given.keys()):
        raise Invalid("missing_tensor", f"{name}: not in the checkpoint")
    for name in sorted(given.keys() - wanted.keys()):
        raise Invalid("unexpected_tensor", f"{name}: the anchor has no such tensor")
    for name, tensor in given.items():
        other = wanted[name]
        if tensor.shape != other.shape:
            detail = f"{name}: {list(tensor.shape)}, the anchor has {list(other.shape)}"
            raise Invalid("shape_mismatch", detail)
        # A float may be kept in more or fewer bits: a loader converts it.
        if tensor.dtype != other.dtype and not {tensor.dtype, other.dtype} <= _FLOATS.keys():
            detail = f"{name}: {tensor.dtype}, the anchor has {other.dtype}"
            raise Invalid("dtype_mismatch", detail)


def _untie(tensors: dict[str, Tensor], all_of: dict[str, Tensor]) -> None:
    """Leave a head out that is the embedding; one that could not be is refused."""
    head, embedding = tensors.pop(HEAD, None), all_of.get(EMBEDDING)
    if head is not None and embedding is not None and head.shape != embedding.shape:
        raise Invalid("tied_weights", f"{HEAD}: tied to {EMBEDDING}, and of another shape")


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


def code_in(root: Path, config: dict[str, Any]) -> str:
    """Name what of a checkpoint wants to be run; nobody runs it."""
    asked = [f"{CONFIG} {key}" for key in _CODE if key in config]
    brought = sorted(str(path.relative_to(root)) for path in root.rglob("*.py"))
    return f"ignored: {', '.join(asked + brought)}" if asked or brought else ""


def main() -> None:
    """Write the verdict."""
    checkpoint = Path(os.environ.get("ORCH_CHECKPOINT_DIR", "/ckpt"))
    out = Path(os.environ.get("OUTPUT_DIR", "/out"))
    try:
        anchor = read_model(Path(os.environ["ORCH_ANCHOR"]))
    except Invalid as fault:
        sys.exit(f"the anchor is not usable: {fault.reason}: {fault}")
    reason = ""
    try:
        found = read_model(checkpoint)
        compare(found, anchor)
        if os.environ.get("ORCH_ALLOW_NONFINITE") != "1":
            for name, tensor in found.tensors.items():
                check_finite(name, tensor)
        detail = code_in(checkpoint, found.config)
    except Invalid as verdict:
        reason, detail = verdict.reason, str(verdict)
    record = {
        "valid": not reason,
        "reason": reason,
        "detail": detail[:500].encode("ascii", "backslashreplace").decode(),
        "arrays": len(anchor.tensors),
        "parameters": sum(math.prod(tensor.shape) for tensor in anchor.tensors.values()),
    }
    (out / "validation.json").write_text(json.dumps(record) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
