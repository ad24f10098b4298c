"""Runs folders that another version of orch wrote, or nobody: one trouble each."""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.storage.queue_table import HEADER


@dataclass(frozen=True)
class Scene:
    """An attempt with a finished replay and scoring, in a runs folder."""

    runs: Path
    attempt: Path

    @property
    def replay(self) -> Path:
        return self.attempt / "replay-001"

    @property
    def score(self) -> Path:
        return self.replay / "score-001"


def _newer(path: Path, key: str = "format") -> None:
    text = path.read_text()
    assert f'"{key}": 1' in text
    path.write_text(text.replace(f'"{key}": 1', f'"{key}": 2'))


def _unknown_event(path: Path) -> None:
    """Append a line that is linked as it should be and tells of something new."""
    last = path.read_bytes().splitlines()[-1]
    fields = json.loads(last)
    fields |= {
        "seq": fields["seq"] + 1,
        "event": "teleported",
        "prev": "sha256:" + hashlib.sha256(last).hexdigest(),
    }
    with path.open("ab") as file:
        file.write(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode() + b"\n")


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("")


_EVENT = "has event 'teleported', which this orch does not know"

RUN_TROUBLES: Mapping[str, tuple[Callable[[Scene], None], str]] = {
    "attempt's plan": (lambda s: _newer(s.attempt / "plan.json"), "plan.json has format 2"),
    "replay's plan": (lambda s: _newer(s.replay / "plan.json"), "plan.json has format 2"),
    "scoring's plan": (lambda s: _newer(s.score / "plan.json"), "plan.json has format 2"),
    "config": (lambda s: _newer(s.attempt.parent / "config.json"), "config.json has format 2"),
    "submission": (
        lambda s: _newer(s.attempt / "candidate/submission.json"),
        "submission.json has format 2",
    ),
    "artifacts": (lambda s: _newer(s.replay / "artifacts.json"), "artifacts.json has format 2"),
    "marker": (
        lambda s: _newer(s.score / ".complete", "version"),
        ".complete: has version 2; this reader knows version 1 alone",
    ),
    "plan cut": (lambda s: (s.attempt / "plan.json").write_text("{") and None, "not strict JSON"),
    "plan a folder": (lambda s: _folder(s.attempt / "plan.json"), "not a regular file"),
    "journal": (lambda s: _unknown_event(s.attempt / "lifecycle.jsonl"), _EVENT),
    "replay's journal": (lambda s: _unknown_event(s.replay / "lifecycle.jsonl"), _EVENT),
    "journal a folder": (lambda s: _folder(s.attempt / "lifecycle.jsonl"), "not a regular file"),
}
"""What concerns one run, and what is said of it."""

WHOLE_TROUBLES: Mapping[str, tuple[Callable[[Scene], None], str, int]] = {
    "campaign": (lambda s: _unknown_event(s.runs / "campaign.jsonl"), _EVENT, 65),
    "campaign a folder": (lambda s: _folder(s.runs / "campaign.jsonl"), "not a regular file", 65),
    "runs a file": (lambda s: _file(s.runs), "the runs folder", 64),
}
"""What concerns all of a runs folder, what is said, and how a command that needs it ends."""


def _more_columns(path: Path) -> None:
    head, row = "job kind status until", "j1 explore queued tomorrow"
    path.write_text("".join(line.replace(" ", "\t") + "\n" for line in (head, row)))


def _quoted(head: str) -> str:
    return ";".join(f'"{name}"' for name in head.split("\t"))


def _sorted(head: str) -> str:
    return "\t".join(sorted(head.split("\t")))


QUEUE_TROUBLES: Mapping[str, tuple[Callable[[Path], None], str]] = {
    "columns": (_more_columns, "has other columns than this orch writes"),
    "quoted": (lambda path: path.write_text(_quoted(HEADER) + "\n"), "has other columns"),
    "in another order": (lambda path: path.write_text(_sorted(HEADER) + "\n"), "has other columns"),
    "as UTF-16": (lambda path: path.write_text(HEADER + "\n", encoding="utf-16"), "other columns"),
    "a folder": (Path.mkdir, "is no file, and not the table"),
}
"""What can be wrong with all of ``queue.tsv``, and what is said."""
