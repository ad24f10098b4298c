"""A finished campaign to tamper with, and the tools of whoever does."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from orchestrator.evidence.context import Context
from orchestrator.evidence.tree import tree_digest
from orchestrator.pipeline.finish import finish_replay, finish_scoring
from orchestrator.storage.layout import ReplayFolder, RunsFolder, ScoringFolder
from orchestrator.storage.receipt_folder import write_complete
from receipts.canonical import canonical
from receipts.envelope import parse_envelope, sign
from receipts.keys import SigningKey
from receipts.verify_model import Step, Wanted

Line = dict[str, Any]


@dataclass(frozen=True)
class Scene:
    """A campaign to tamper with. ``head`` is what was published of its log."""

    runs: Path
    config: str
    key: SigningKey
    stranger: SigningKey
    task: str
    head: str

    @property
    def attempt(self) -> Path:
        return self.runs / self.config / "attempt-001"

    @property
    def other(self) -> Path:
        return self.runs / self.config / "attempt-002"

    @property
    def replay(self) -> Path:
        return self.attempt / "replay-001"

    @property
    def failed(self) -> Path:
        return self.attempt / "replay-002"

    @property
    def scoring(self) -> Path:
        return self.replay / "score-001"

    @property
    def campaign(self) -> Path:
        return self.runs / "campaign.jsonl"

    def receipt(self, name: str) -> Path:
        """Where a receipt of the official line lies, by its name without the suffix."""
        places = (self.attempt, self.replay, self.scoring)
        (found,) = (p for place in places if (p := place / "receipts" / f"{name}.json").exists())
        return found

    def edit(self, name: str, change: Callable[[dict[str, Any]], object]) -> None:
        """Change a receipt's statement and sign it again with the operator's own key."""
        path = self.receipt(name)
        statement = json.loads(parse_envelope(path.read_bytes()).payload)
        change(statement)
        path.write_bytes(sign(canonical(statement), self.key))

    def predicate(self, name: str, **changes: Any) -> None:
        self.edit(name, lambda statement: statement["predicate"].update(changes))

    def materials(self, name: str, **changes: str) -> None:
        self.edit(name, lambda statement: statement["predicate"]["materials"].update(changes))

    def mint_again(self, key: SigningKey | None = None) -> None:
        """Drop the receipts and markers of the replay and its scoring; make them anew."""
        for folder in (self.replay, self.scoring):
            shutil.rmtree(folder / "receipts")
            (folder / ".complete").unlink()
        context = cast(
            "Context",
            SimpleNamespace(
                key=key or self.key,
                runs=RunsFolder(self.runs),
                campaign=SimpleNamespace(append=lambda *_, **__: None),
                engine=SimpleNamespace(find=lambda _: ()),
                own=lambda _: {},
            ),
        )
        finish_replay(context, ReplayFolder(self.replay))
        finish_scoring(context, ScoringFolder(self.scoring))

    def change_checkpoint(self, name: str, change: Callable[[Path], None]) -> tuple[str, str]:
        """Change a collected checkpoint, with all tables following; return old and new digest."""
        folder = self.replay / "checkpoints" / name
        old = tree_digest(folder)
        change(folder)
        new = tree_digest(folder)
        path = self.replay / "artifacts.json"
        table = json.loads(path.read_text())
        for row in table["artifacts"]:
            if row["name"] == name:
                files = list(folder.iterdir())
                sizes = {"files": len(files), "size": sum(f.stat().st_size for f in files)}
                row.update(digest=new, **sizes)
        path.write_text(json.dumps(table))
        replace_text(self.scoring / "plan.json", old, new)
        replace_text(self.scoring / name / "out" / "summary.json", old, new)
        self.follow_summary(name, old, new)
        return old, new

    def swap_checkpoint(self) -> tuple[str, str]:
        """Put other weights where the best were."""
        return self.change_checkpoint("checkpoint-20", _other_weights)

    def follow_summary(self, name: str, old: str = "", new: str = "") -> None:
        """Make the official receipt, the aggregate and the markers follow an edited summary."""
        place = self.scoring / name / "out"
        summary, official = place / "summary.json", place / "official-eval-receipt.json"
        digest = "sha256:" + hashlib.sha256(summary.read_bytes()).hexdigest()
        fields = json.loads(official.read_text())
        before, fields["summary_sha256"] = fields["summary_sha256"], digest
        official.write_text(json.dumps(fields).replace(old, new) if old else json.dumps(fields))
        replace_text(self.scoring / "summary.json", before, digest)
        marker = self.scoring / name / ".complete"
        marker.unlink()
        write_complete(marker, official, summary)


def _other_weights(folder: Path) -> None:
    replace_text(folder / "weights.txt", "0.3", "0.9")


def replace_text(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, path
    path.write_text(text.replace(old, new))


def chain(path: Path, change: Callable[[list[Line]], object]) -> None:
    """Change the lines of a journal, and make every later line follow again."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    head = "sha256:" + "0" * 64
    written = []
    for number, line in enumerate(lines, start=1):
        line |= {"seq": number, "prev": head}
        raw = json.dumps(line, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        head = "sha256:" + hashlib.sha256(raw.encode()).hexdigest()
        written.append(raw + "\n")
    path.write_text("".join(written))


def head_of(path: Path) -> str:
    return "sha256:" + hashlib.sha256(path.read_bytes().splitlines()[-1]).hexdigest()


def event(lines: list[Line], name: str) -> Line:
    return next(line for line in reversed(lines) if line["event"] == name)


def tell_otherwise(scene: Scene, *changed: tuple[str, str]) -> None:
    """Let the replay's journal tell of other digests, and mint over that."""

    def change(lines: list[Line]) -> None:
        text = json.dumps(lines)
        for old, new in changed:
            text = text.replace(old, new)
        lines[:] = json.loads(text)

    chain(scene.replay / "lifecycle.jsonl", change)
    scene.mint_again()


def known(scene: Scene, **more: Any) -> Wanted:
    """What a careful reader has: the key and the task."""
    return Wanted(keys=(scene.key.verifying,), task=scene.task, **more)


def whole(scene: Scene) -> Wanted:
    return known(scene, whole_campaign=True)


def published(scene: Scene) -> Wanted:
    return known(scene, whole_campaign=True, campaign_head=scene.head)


@dataclass(frozen=True)
class Tampering:
    """What is done, and which step must find it when the caller knows ``wanted`` from elsewhere.

    ``says`` are words of the finding, where it matters which of a step's checks it is.
    """

    do: Callable[[Scene], None]
    step: Step
    wanted: Callable[[Scene], Wanted] = known
    says: str = ""

    @property
    def name(self) -> str:
        return self.do.__name__
