"""What a task lets a patch carry: ideas as source, never weights or data.

The figures are taken from the patch itself, so that submission and replay measure the same bytes:
``compressed`` is what zlib makes of every added line, the names of new files and the targets of
links together, plus the deflated bytes of binary changes; ``expanded`` is the size of the same
before compression. Rows are the lines that are added to files whose lines are rows, by their names.
"""

import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Literal

from typing_extensions import override

from orchestrator.domain.task import PatchPolicy, RefusedContent
from orchestrator.evidence.patch import Section
from orchestrator.evidence.tree import Entry, encode_path

Policy = PatchPolicy | Literal["off"]
HEAD = 8000
"""Bytes of a file's start that are looked at; a zero among them makes it binary, as for git."""

CEILING = 1024**3
"""Expanded bytes that no patch may exceed, whatever the task allows: the host's own safety."""


class Rule(StrEnum):
    """The rules a patch can break."""

    WEIGHTS = "weights"
    DATA = "data"
    BYTECODE = "bytecode"
    BINARY = "binary"
    COMPRESSED = "max_compressed"
    EXPANDED = "max_expanded"
    FILE = "max_file"
    ROWS = "max_rows"


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
        """Say it to the agent in one line."""
        said = _WORDS[self.rule].format(rule=self.rule, figure=self.figure, limit=self.limit)
        return f"{self.path}: {said}" if self.path else said


_WORDS: Mapping[Rule, str] = MappingProxyType(
    {
        Rule.WEIGHTS: "weights do not cross (refuse: weights)",
        Rule.DATA: "data does not cross (refuse: data)",
        Rule.BYTECODE: "compiled code does not cross (refuse: bytecode)",
        Rule.BINARY: "what is no text does not cross (refuse: binary)",
        Rule.COMPRESSED: "{rule}: {figure} bytes added, compressed; {limit} allowed",
        Rule.EXPANDED: "{rule}: {figure} bytes added, {limit} allowed",
        Rule.FILE: "{rule}: a new file of {figure} bytes, {limit} allowed",
        Rule.ROWS: "{rule}: {figure} rows added, {limit} allowed",
    }
)


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
        RefusedContent.BINARY: (),
    }
)
_OF_ROWS = (b".json", b".jsonl", b".ndjson", b".csv", b".tsv")
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
        RefusedContent.BINARY: (),
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


def judge_rows(policy: Policy, sections: Iterable[Section]) -> tuple[PolicyViolation, ...]:
    """Judge how many rows a patch adds to each file of rows."""
    if policy == "off":
        return ()
    found = []
    for section in sections:
        named = [path for path in sorted(section.paths) if path.lower().endswith(_OF_ROWS)]
        rows = sum(piece.count(b"\n") + 1 for piece in section.added)
        if named and rows > policy.max_rows:
            found.append(PolicyViolation(encode_path(named[0]), Rule.ROWS, rows, policy.max_rows))
    return tuple(found)


def judge_content(
    policy: Policy,
    changed: Iterable[Entry],
    head: Callable[[Entry], bytes],
    *,
    known: Collection[bytes],
) -> tuple[PolicyViolation, ...]:
    """Judge what new or changed files are, by their names, sizes and first bytes.

    Args:
        policy: the task's.
        changed: entries of the resulting tree that the base has not, or not so.
        head: gives up to ``HEAD`` bytes of a file's start (none for a link).
        known: paths that the base has.
    """
    if policy == "off":
        return ()
    found = []
    for entry in changed:
        path = encode_path(entry.path)
        if (kind := _kind(policy.refuse, entry.path.lower(), head(entry))) is not None:
            found.append(PolicyViolation(path, Rule(kind), entry.size, 0))
        if entry.path not in known and entry.size > policy.max_file:
            found.append(PolicyViolation(path, Rule.FILE, entry.size, policy.max_file))
    return tuple(found)


def expanded_limit(policy: Policy) -> int:
    """Return how many expanded bytes a patch may add."""
    return CEILING if policy == "off" else min(policy.max_expanded, CEILING)


def _kind(refused: Collection[RefusedContent], name: bytes, head: bytes) -> RefusedContent | None:
    for kind in refused:
        if name.endswith(_SUFFIXES[kind]):
            return kind
        if any(head[at : at + len(magic)] == magic for at, magic in _MAGIC[kind]):
            return kind
    if RefusedContent.BINARY in refused and b"\0" in head:
        return RefusedContent.BINARY  # last: what is known better is called by its name
    return None
