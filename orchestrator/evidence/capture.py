"""Turn a paused workspace into a candidate: a patch, a manifest, and the proof that they agree.

Steps: read both trees whole; store the entries that differ in a private store, each checked
against its manifest as it is read; let the store write the patch; judge it; apply it to the stored
base and compare. Only a patch that gives exactly the captured tree is written down. Nothing the
candidate left is run, and nothing of it configures the store.

Storing only what differs proves as much as storing all: an unchanged entry is equal by its
sha256, and a patch that touched one could not be applied to a base without it.
"""

import hashlib
import tempfile
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from orchestrator.evidence.files import TreeReader
from orchestrator.evidence.patch import PatchFault, parse
from orchestrator.evidence.policy import (
    HEAD,
    Figures,
    Policy,
    PolicyViolation,
    Rule,
    expanded_limit,
    judge_content,
    judge_rows,
    judge_size,
    measure,
)
from orchestrator.evidence.tree import (
    Entry,
    LeftOut,
    Manifest,
    TreeTooLargeError,
    encode_path,
    manifest_of,
)
from orchestrator.evidence.walk import TreeChangedError
from orchestrator.ports import PatchRefused, Trees, TreeStore
from orchestrator.storage.durable import write_file

PATCH_NAME = "candidate.patch"
MANIFEST_NAME = "manifest.json"
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Change:
    """An entry that differs between two trees; None where it is missing."""

    before: Entry | None
    after: Entry | None


@dataclass(frozen=True, slots=True)
class Counts:
    """How many entries a patch adds, changes and removes."""

    added: int
    modified: int
    deleted: int


@dataclass(frozen=True, slots=True)
class Capture:
    """A proven candidate, written to its folder."""

    patch_sha256: str
    patch_size: int
    manifest: Manifest
    manifest_digest: str
    base_digest: str
    changed: Counts
    figures: Figures

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """What does not cross."""
        return self.manifest.left_out

    @property
    def is_empty(self) -> bool:
        """Whether the tree is the pristine one."""
        return self.manifest_digest == self.base_digest


@dataclass(frozen=True, slots=True)
class PolicyRefused:
    """The workspace holds what the task does not let cross; nothing was written."""

    violations: tuple[PolicyViolation, ...]
    figures: Figures | None = None
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True, slots=True)
class ProofFailed:
    """The patch would not give the captured tree; nothing was written.

    ``differences`` are percent-encoded paths, the first few.
    """

    reason: str
    differences: tuple[str, ...] = ()


def capture(
    workspace: Path,
    pristine: Path,
    *,
    exclude: tuple[str, ...],
    policy: Policy,
    store: TreeStore,
    destination: Path,
) -> Capture | PolicyRefused | ProofFailed:
    """Capture a workspace that stands still.

    Args:
        workspace: what the agent left; every process that could write to it is frozen or gone.
        pristine: the tree it started from.
        exclude: the task's rules of what never crosses (see ``tree.Rules``).
        policy: what the task lets cross.
        store: where trees are compared.
        destination: an existing folder; ``candidate.patch`` and ``manifest.json`` are written
            there, in place of what an unfinished capture left.

    Raises:
        StorageFullError: no space for the candidate.
        InfrastructureError: the store failed.
    """
    base = manifest_of(pristine, exclude=exclude)
    limit = base.size + expanded_limit(policy)
    try:
        manifest = manifest_of(workspace, exclude=exclude, max_bytes=limit)
        with (
            store.open() as trees,
            tempfile.TemporaryDirectory(prefix="orch-capture-") as scratch,
            closing(TreeReader(pristine)) as before,
            closing(TreeReader(workspace)) as after,
        ):
            work = _Work(trees, before, after, Path(scratch) / PATCH_NAME)
            return work.run(base, manifest, policy, destination)
    except TreeTooLargeError as error:
        violation = PolicyViolation(
            "", Rule.EXPANDED, error.size - base.size, expanded_limit(policy)
        )
        return PolicyRefused((violation,))
    except TreeChangedError as error:
        return ProofFailed(f"the workspace changed while it was captured: {error}")


def compare(before: Manifest, after: Manifest) -> tuple[Change, ...]:
    """List the entries that differ, by path."""
    old, new = before.by_path(), after.by_path()
    paths = sorted(old.keys() | new.keys())
    return tuple(
        Change(old.get(path), new.get(path)) for path in paths if old.get(path) != new.get(path)
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """One capture with its store and both trees open."""

    trees: Trees
    pristine: TreeReader
    workspace: TreeReader
    patch: Path

    def run(
        self, base: Manifest, manifest: Manifest, policy: Policy, destination: Path
    ) -> Capture | PolicyRefused | ProofFailed:
        changes = compare(base, manifest)
        added = [change.after for change in changes if change.after]
        before = self.trees.add(self.pristine.blobs(c.before for c in changes if c.before))
        after = self.trees.add(self.workspace.blobs(added))
        self.trees.diff(before, after, self.patch)
        data = self.patch.read_bytes()
        try:
            sections = parse(data)
        except PatchFault as fault:
            return ProofFailed(f"the patch is not one that a replay would take: {fault}")
        figures = measure(sections)
        violations = (
            *judge_size(policy, figures),
            *judge_rows(policy, sections),
            *judge_content(
                policy,
                added,
                lambda entry: self.workspace.head(entry, HEAD),
                known=base.by_path(),
            ),
        )
        if violations:
            return PolicyRefused(violations, figures, manifest.left_out)
        if failed := self._prove(before, after, is_empty=not data):
            return failed
        write_file(destination / PATCH_NAME, data, replace=True)
        write_file(destination / MANIFEST_NAME, manifest.to_json(), replace=True)
        return Capture(
            patch_sha256=hashlib.sha256(data).hexdigest(),
            patch_size=len(data),
            manifest=manifest,
            manifest_digest=manifest.digest,
            base_digest=base.digest,
            changed=_count(changes),
            figures=figures,
        )

    def _prove(self, before: str, after: str, *, is_empty: bool) -> ProofFailed | None:
        """Apply the patch to the stored base and compare with the stored workspace."""
        result = before if is_empty else self.trees.apply(before, self.patch)
        if isinstance(result, PatchRefused):
            return ProofFailed(f"the patch does not apply to its base: {result.reason}")
        if result == after:
            return None
        differing = set(self.trees.files(result)) ^ set(self.trees.files(after))
        paths = sorted({encode_path(file.path) for file in differing})
        return ProofFailed("the patch gives another tree", tuple(paths[:_SHOWN]))


def _count(changes: Iterable[Change]) -> Counts:
    kinds = [(change.before is not None, change.after is not None) for change in changes]
    return Counts(
        added=kinds.count((False, True)),
        modified=kinds.count((True, True)),
        deleted=kinds.count((True, False)),
    )
