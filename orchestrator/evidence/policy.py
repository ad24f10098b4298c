"""What a task lets a patch carry: ideas as source, never weights or data.

The figures are taken from the patch itself, so that submission and replay measure the same bytes:
``compressed`` is what zlib makes of every added line, the names of new files and the targets of
links together, plus the deflated bytes of binary changes; ``expanded`` is the size of the same
before compression.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Literal

from typing_extensions import override

from orchestrator.domain.task import PatchPolicy, RefusedContent
from orchestrator.evidence.patch import Section
from orchestrator.evidence.tree import Entry, encode_path

Policy = PatchPolicy | Literal["off"]
HEAD = 16
"""Bytes of a file's start that ``judge`` wants to see."""

CEILING = 1024**3
"""Expanded bytes that no patch may exceed, whatever the task allows: the host's own safety."""


class Rule(StrEnum):
    """The rules a patch can break."""

    WEIGHTS = "weights"
    DATA = "data"
    BYTECODE = "bytecode"
    COMPRESSED = "max_compressed"
    EXPANDED = "max_expanded"


@dataclass(frozen=True, slots=True)
class Figures:
    """How much a patch adds, in bytes."""

    compressed: int
    expanded: int


@dataclass(frozen=True, slots=True)
class PolicyViolation:
    """One rule broken. ``path`` is percent-encoded, empty where the whole patch is meant."""

    path: str
    rule: Rule
    figure: int
    limit: int

    @override
    def __str__(self) -> str:
        """Say it to the agent."""
        if self.path:
            return f"{self.path}: {self.rule} do not cross"
        return f"{self.rule}: {self.figure} bytes added, {self.limit} allowed"


_SUFFIXES: Mapping[RefusedContent, tuple[bytes, ...]] = MappingProxyType(
    {
        RefusedContent.WEIGHTS: (
            *(b".bin", b".ckpt", b".ggml", b".gguf", b".h5", b".hdf5", b".joblib", b".keras"),
            *(b".mar", b".model", b".msgpack", b".npy", b".npz", b".onnx", b".params", b".pb"),
            *(b".pickle", b".pkl", b".pt", b".pth", b".safetensors", b".tflite", b".weights"),
        ),
        RefusedContent.DATA: (
            *(b".7z", b".arrow", b".avro", b".bz2", b".csv", b".db", b".feather", b".gz"),
            *(b".jsonl", b".lmdb", b".mat", b".mdb", b".ndjson", b".orc", b".parquet"),
            *(b".rar", b".sqlite", b".sqlite3", b".tar", b".tfrecord", b".tgz", b".tsv"),
            *(b".xz", b".zip", b".zst"),
        ),
        RefusedContent.BYTECODE: (
            *(b".a", b".class", b".dll", b".dylib", b".exe", b".o", b".pyc", b".pyd", b".pyo"),
            *(b".so", b".wasm"),
        ),
    }
)
_MAGIC: Mapping[RefusedContent, tuple[tuple[int, bytes], ...]] = MappingProxyType(
    {
        RefusedContent.WEIGHTS: (
            (0, b"\x93NUMPY"),
            (0, b"\x89HDF\r\n"),
            (0, b"GGUF"),
            (0, b"\x80\x02"),
            (0, b"\x80\x03"),
            (0, b"\x80\x04"),
            (0, b"\x80\x05"),
            (8, b'{"'),  # safetensors: a length, then JSON
        ),
        RefusedContent.DATA: (
            (0, b"PK\x03\x04"),
            (0, b"\x1f\x8b"),
            (0, b"BZh"),
            (0, b"\xfd7zXZ"),
            (0, b"\x28\xb5\x2f\xfd"),
            (0, b"7z\xbc\xaf"),
            (0, b"PAR1"),
            (0, b"ARROW1"),
            (0, b"SQLite format 3"),
        ),
        RefusedContent.BYTECODE: (
            (0, b"\x7fELF"),
            (0, b"\xca\xfe\xba\xbe"),
            (0, b"\0asm"),
            (2, b"\r\n\0\0\0\0"),  # CPython's: two bytes of version, CR LF, four of flags
            (2, b"\r\n\1\0\0\0"),
            (2, b"\r\n\3\0\0\0"),
        ),
    }
)


def measure(sections: Iterable[Section]) -> Figures:
    """Measure what a patch adds."""
    compressor = zlib.compressobj()
    text = deflated = binary_deflated = binary = 0
    for section in sections:
        names = sorted(section.paths) if section.creates else []
        if lines := [*names, *section.added]:
            added = b"\n".join(lines) + b"\n"
            deflated += len(compressor.compress(added))
            text += len(added)
        binary_deflated += section.binary_size
        binary += section.binary_result
    if text:  # of nothing, zlib makes eight bytes
        deflated += len(compressor.flush())
    return Figures(deflated + binary_deflated, text + binary)


def judge_size(policy: Policy, figures: Figures) -> tuple[PolicyViolation, ...]:
    """Judge the figures; the host's own ceiling holds with the policy off too."""
    limits = [(Rule.EXPANDED, figures.expanded, expanded_limit(policy))]
    if policy != "off":
        limits.append((Rule.COMPRESSED, figures.compressed, policy.max_compressed))
    return tuple(
        PolicyViolation("", rule, figure, limit) for rule, figure, limit in limits if figure > limit
    )


def judge_content(
    policy: Policy, changed: Iterable[Entry], head: Callable[[Entry], bytes]
) -> tuple[PolicyViolation, ...]:
    """Judge what new or changed files are, by their names and first bytes.

    Args:
        policy: the task's.
        changed: entries of the resulting tree that the base has not, or not so.
        head: gives up to ``HEAD`` bytes of a file's start (none for a link).
    """
    if policy == "off":
        return ()
    return tuple(
        PolicyViolation(encode_path(entry.path), Rule(kind), entry.size, 0)
        for entry in changed
        if (kind := _kind(policy.refuse, entry.path.lower(), head(entry))) is not None
    )


def expanded_limit(policy: Policy) -> int:
    """Return how many expanded bytes a patch may add."""
    return CEILING if policy == "off" else min(policy.max_expanded, CEILING)


def _kind(refused: Iterable[RefusedContent], name: bytes, head: bytes) -> RefusedContent | None:
    for kind in refused:
        if name.endswith(_SUFFIXES[kind]):
            return kind
        if any(head[at : at + len(magic)] == magic for at, magic in _MAGIC[kind]):
            return kind
    return None
