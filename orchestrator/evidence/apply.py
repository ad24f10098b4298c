"""Make a workspace: the pristine tree, or the pristine tree with a patch applied, or nothing.

The patch is applied inside a private store, where a link is a few bytes and leads nowhere; what
comes out is judged there, and only then are files written, by us, into an empty folder. So a patch
is applied exactly or refused whole.
"""

import hashlib
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from orchestrator.errors import InfrastructureError
from orchestrator.evidence.files import Take, TreeReader, write_files
from orchestrator.evidence.patch import PatchFault, Section, parse, path_fault
from orchestrator.evidence.policy import (
    CEILING,
    HEAD,
    Figures,
    Policy,
    PolicyViolation,
    judge_content,
    judge_rows,
    judge_size,
    measure,
)
from orchestrator.evidence.tree import Entry, Kind, Manifest, Rules, encode_path, manifest_of
from orchestrator.evidence.walk import PATH_LIMIT
from orchestrator.ports import PatchRefused, StoredFile, Trees, TreeStore
from orchestrator.storage.durable import read_bytes

_KINDS = {"100644": Kind.FILE, "100755": Kind.FILE, "120000": Kind.LINK}
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Applied:
    """The patch was applied; ``target`` holds exactly the tree of ``manifest``."""

    manifest_digest: str
    manifest: Manifest
    base_digest: str
    figures: Figures


@dataclass(frozen=True, slots=True)
class InvalidPatch:
    """The patch was refused whole; nothing was written."""

    reason: str
    violations: tuple[PolicyViolation, ...] = ()


@dataclass(frozen=True, slots=True)
class PatchDiffers:
    """It is not the patch, or not the tree, that was proven at submission; nothing was written."""

    reason: str


class _RefusedError(Exception):
    """Carries an InvalidPatch out of the steps below."""

    def __init__(self, reason: str, violations: tuple[PolicyViolation, ...] = ()) -> None:
        super().__init__(reason)
        self.invalid = InvalidPatch(reason, violations)


def screen(data: bytes, *, policy: Policy) -> InvalidPatch | Figures:
    """Judge a patch by its bytes alone: form, names, modes, sizes."""
    try:
        return _screen(data, policy)[1]
    except _RefusedError as refused:
        return refused.invalid


def copy_pristine(
    pristine: Path,
    target: Path,
    *,
    exclude: tuple[str, ...],
    owner: tuple[int, int] | None = None,
) -> Manifest:
    """Copy a shipped solution into an empty folder, modes as git's; return what was copied.

    Raises:
        TreeChangedError: it changed while it was copied.
        StorageFullError: no space under ``target``.
    """
    manifest = manifest_of(pristine, exclude=exclude)
    copy_files(pristine, manifest, target, owner=owner)
    return manifest


def copy_files(
    source: Path, manifest: Manifest, target: Path, *, owner: tuple[int, int] | None = None
) -> None:
    """Copy what a manifest of ``source`` lists into an empty folder.

    Raises:
        TreeChangedError: it changed while it was copied.
        StorageFullError: no space under ``target``.
    """
    with closing(TreeReader(source)) as reader:
        write_files(target, manifest.entries, partial(_copy, reader), owner=owner)


def apply(
    patch: Path,
    pristine: Path,
    target: Path,
    *,
    store: TreeStore,
    exclude: tuple[str, ...],
    policy: Policy,
    expected_sha256: str,
    expected_manifest_digest: str | None = None,
    owner: tuple[int, int] | None = None,
) -> Applied | InvalidPatch | PatchDiffers:
    """Write the pristine tree with ``patch`` applied into ``target``; an empty patch is a copy.

    Args:
        patch: the file.
        pristine: the tree it is for.
        target: an existing empty folder that nobody else writes to.
        store: where it is applied.
        exclude: the task's rules; a patch that brings what they leave out is refused.
        policy: what the task lets cross.
        expected_sha256: of the patch's bytes, in hex.
        expected_manifest_digest: of the resulting tree, if it was proven at submission; whatever
            goes wrong then is ``PatchDiffers``, not the candidate's doing.
        owner: user and group of all that is written.

    Raises:
        InfrastructureError: the store failed, or the files written are not those meant.
        StorageFullError: no space under ``target``.
    """
    try:
        data = read_bytes(patch, max_bytes=2 * CEILING)
    except FileNotFoundError:
        return PatchDiffers(f"the patch is not there: {patch}")
    digest = hashlib.sha256(data).hexdigest()
    if digest != expected_sha256:
        return PatchDiffers(f"the patch's sha256 is {digest}, not {expected_sha256}")
    base = manifest_of(pristine, exclude=exclude)
    with store.open() as trees, closing(TreeReader(pristine)) as reader:
        build = _Build(trees, reader, base)
        try:
            figures = build.run(data, patch, policy, Rules(exclude))
        except _RefusedError as refused:
            if expected_manifest_digest is not None:
                return PatchDiffers(f"the proven patch does not apply: {refused}")
            return refused.invalid
        if expected_manifest_digest not in {None, build.result.digest}:
            return PatchDiffers(
                f"the resulting tree is {build.result.digest}, not {expected_manifest_digest}"
            )
        write_files(target, build.result.entries, build.content, owner=owner)
    written = manifest_of(target, exclude=exclude)
    if written.digest != build.result.digest or written.left_out:
        raise InfrastructureError(
            f"the files under {target} are not the tree that was written there",
            remedy="check that file system, then run the same command again",
        )
    return Applied(build.result.digest, build.result, base.digest, figures)


class _Build:
    """The resulting tree, in the store, and where the content of each of its entries is."""

    def __init__(self, trees: Trees, pristine: TreeReader, base: Manifest) -> None:
        self._trees = trees
        self._pristine = pristine
        self._base = base
        self._stored: dict[bytes, str] = {}
        self.result = base

    def run(self, data: bytes, patch: Path, policy: Policy, rules: Rules) -> Figures:
        """Apply the patch and judge what comes out.

        Raises:
            _RefusedError: the patch is refused.
        """
        sections, figures = _screen(data, policy)
        if not data:
            return figures
        self._require_room(sections, figures, policy)
        before = self._trees.add(self._pristine.blobs(self._base.entries))
        after = self._trees.apply(before, patch)
        if isinstance(after, PatchRefused):
            raise _RefusedError(f"git refuses it: {after.reason}")
        old, new = set(self._trees.files(before)), set(self._trees.files(after))
        _check_paths(sections, {file.path for file in old ^ new})
        changed = [self._entry(file, rules) for file in sorted(new - old)]
        known = self._base.by_path()
        if violations := judge_content(policy, changed, self._head, known=known):
            raise _RefusedError("the patch brings what the task refuses", violations)
        kept = [known[file.path] for file in new & old]
        self.result = Manifest(tuple(sorted([*kept, *changed])))
        return figures

    def _require_room(
        self, sections: tuple[Section, ...], figures: Figures, policy: Policy
    ) -> None:
        """Count what is copied as well: a few bytes of a patch can copy a file any number of times.

        Raises:
            _RefusedError: the patch makes more of it than is allowed.
        """
        known = self._base.by_path()
        copied = [known[s.copied].size for s in sections if s.copied in known]
        whole = Figures(figures.compressed, figures.expanded + sum(copied))
        if violations := judge_size(policy, whole):
            raise _RefusedError("the patch brings more than the task allows", violations)

    def content(self, entry: Entry, take: Take) -> None:
        """Hand over an entry's content, from the store or from the pristine tree."""
        key = self._stored.get(entry.path)
        if key is None:
            _copy(self._pristine, entry, take)
        else:
            self._trees.read(key, take)

    def _entry(self, file: StoredFile, rules: Rules) -> Entry:
        shown = encode_path(file.path)
        kind = _KINDS.get(file.mode)
        if kind is None:
            raise _RefusedError(f"{shown} has mode {file.mode}")
        if fault := path_fault(file.path):
            raise _RefusedError(fault)
        if rules.match_path(file.path):
            raise _RefusedError(f"{shown} is left out by the task's rules, so it cannot cross")
        digest = hashlib.sha256()
        size = 0
        nul = False

        def take(chunk: bytes) -> None:
            nonlocal size, nul
            digest.update(chunk)
            size += len(chunk)
            nul |= b"\0" in chunk

        self._trees.read(file.key, take)
        if kind is Kind.LINK and (nul or not 0 < size <= PATH_LIMIT):
            raise _RefusedError(f"{shown} is a link to what is not a path")
        self._stored[file.path] = file.key
        return Entry(file.path, kind, file.mode, size, digest.hexdigest())

    def _head(self, entry: Entry) -> bytes:
        if entry.kind is Kind.LINK:
            return b""
        head = bytearray()
        self._trees.read(self._stored[entry.path], lambda chunk: head.extend(chunk[:HEAD]))
        return bytes(head[:HEAD])


def _screen(data: bytes, policy: Policy) -> tuple[tuple[Section, ...], Figures]:
    try:
        sections = parse(data)
    except PatchFault as fault:
        raise _RefusedError(str(fault)) from fault
    figures = measure(sections)
    if violations := judge_size(policy, figures) + judge_rows(policy, sections):
        raise _RefusedError("the patch brings more than the task allows", violations)
    return sections, figures


def _check_paths(sections: tuple[Section, ...], changed: set[bytes]) -> None:
    """Hold git to the patch's words: what changed is what was named, and all of that.

    A file is dropped without a word by git where a patch adds another below its path.
    """
    named: set[bytes] = set()
    for section in sections:
        named |= section.paths
        if not section.paths & changed:
            raise _RefusedError(f"line {section.line}: it changes nothing")
    if unnamed := changed - named:
        raise _RefusedError(f"it would change {encode_path(min(unnamed))}, which it does not name")


def _copy(reader: TreeReader, entry: Entry, take: Take) -> None:
    for chunk in reader.content(entry):
        take(chunk)
