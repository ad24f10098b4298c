"""Every path of a runs folder, named once. Layout and meaning: README, "On disk"."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from orchestrator.storage.durable import folder_faults

_NUMBERED = re.compile(r"(attempt|replay|score)-((?!000)[0-9]{3}|[1-9][0-9]{3,8})")
"""One way to write each number, so that no second folder answers to it; as ``receipts`` has it."""


@dataclass(frozen=True, slots=True)
class RunsFolder:
    """The runs folder (``ORCH_RUNS``)."""

    root: Path

    @property
    def campaign(self) -> Path:
        return self.root / "campaign.jsonl"

    @property
    def queue(self) -> Path:
        return self.root / "queue.tsv"

    @property
    def queue_lock(self) -> Path:
        """Whoever changes ``queue.tsv`` holds it, for moments."""
        return self.root / "queue.lock"

    @property
    def queue_quarantine(self) -> Path:
        """Lines that were found in ``queue.tsv`` and are no rows."""
        return self.root / "queue.quarantine.tsv"

    @property
    def queue_jobs(self) -> Path:
        """What belongs to single jobs: what was asked, the latest try, the worker's lease."""
        return self.root / "queue"

    @property
    def keys(self) -> Path:
        """Public halves of signing keys, one ``<keyid>.pem`` each."""
        return self.root / "keys"

    def config(self, folder: str) -> "ConfigFolder":
        return ConfigFolder(self.root / folder)

    def configs(self) -> tuple["ConfigFolder", ...]:
        """The configs that exist, by name."""
        if not self.root.is_dir():
            return ()
        found = (p for p in self.root.iterdir() if _is_config(p))
        return tuple(ConfigFolder(p) for p in sorted(found))

    def runs(self) -> Iterator["RunFolder"]:
        """Go through every attempt, its replays and their scorings, in order."""
        for config in self.configs():
            for attempt in config.attempts():
                yield attempt
                for replay in attempt.replays():
                    yield replay
                    yield from replay.scorings()


@dataclass(frozen=True, slots=True)
class ConfigFolder:
    """One config: what is being measured."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.json"

    def attempt(self, number: int) -> "AttemptFolder":
        return AttemptFolder(self.root / f"attempt-{number:03d}")

    def attempts(self) -> tuple["AttemptFolder", ...]:
        return tuple(AttemptFolder(p) for p in _numbered(self.root, "attempt"))


@dataclass(frozen=True, slots=True)
class NumberedFolder:
    """What an attempt, a replay and a scoring have in common."""

    root: Path

    @property
    def plan(self) -> Path:
        return self.root / "plan.json"

    @property
    def journal(self) -> Path:
        return self.root / "lifecycle.jsonl"

    @property
    def telemetry(self) -> Path:
        return self.root / "telemetry.jsonl"

    @property
    def logs(self) -> Path:
        """What containers printed; a scoring's is sealed (0600, out of reports)."""
        return self.root / "logs"

    @property
    def kills(self) -> Path:
        """Signals that we are about to send to its container; no container sees this."""
        return self.root / "kills.jsonl"

    @property
    def receipts(self) -> Path:
        return self.root / "receipts"

    @property
    def complete(self) -> Path:
        return self.root / ".complete"


@dataclass(frozen=True, slots=True)
class AttemptFolder(NumberedFolder):
    """One numbered exploration and what followed from it."""

    @property
    def transcript(self) -> Path:
        return self.root / "transcript.jsonl"

    @property
    def exchanges(self) -> Path:
        """Every exchange with the model; ``--model recorded/FILE`` takes it."""
        return self.root / "exchanges.jsonl"

    @property
    def raw(self) -> Path:
        """What the agent's own program printed, as it came."""
        return self.root / "agent-raw.log"

    @property
    def gate(self) -> Path:
        """Written where the exploration has a GPU."""
        return self.root / "gate.json"

    @property
    def workspace(self) -> Path:
        return self.root / "workspace"

    @property
    def out(self) -> Path:
        return self.root / "out"

    @property
    def control(self) -> Path:
        """The small volume behind ``/run/orch`` and ``/logs/agent``."""
        return self.root / "control"

    @property
    def candidate(self) -> Path:
        return self.root / "candidate"

    @property
    def patch(self) -> Path:
        return self.candidate / "candidate.patch"

    @property
    def manifest(self) -> Path:
        return self.candidate / "manifest.json"

    @property
    def submission(self) -> Path:
        return self.candidate / "submission.json"

    @property
    def analysis(self) -> Path:
        return self.root / "analysis"

    @property
    def corrections(self) -> Path:
        return self.root / "corrections"

    def replay(self, number: int) -> "ReplayFolder":
        return ReplayFolder(self.root / f"replay-{number:03d}")

    def replays(self) -> tuple["ReplayFolder", ...]:
        return tuple(ReplayFolder(p) for p in _numbered(self.root, "replay"))


@dataclass(frozen=True, slots=True)
class ReplayFolder(NumberedFolder):
    """One numbered formal run of an attempt's candidate."""

    @property
    def attempt(self) -> AttemptFolder:
        return AttemptFolder(self.root.parent)

    @property
    def gate(self) -> Path:
        return self.root / "gate.json"

    @property
    def gate_again(self) -> Path:
        """The gate before a validation that was begun anew."""
        return self.root / "gate-validate.json"

    @property
    def workspace(self) -> Path:
        return self.root / "workspace"

    @property
    def out(self) -> Path:
        return self.root / "out"

    @property
    def checkpoints(self) -> Path:
        """Collected checkpoints, host-owned, read-only from here on."""
        return self.root / "checkpoints"

    @property
    def artifacts(self) -> Path:
        return self.root / "artifacts.json"

    def validation(self, checkpoint: str) -> Path:
        """The validation record of one checkpoint, by its folder name."""
        return self.root / "validate" / checkpoint / "validation.json"

    def scoring(self, number: int) -> "ScoringFolder":
        return ScoringFolder(self.root / f"score-{number:03d}")

    def scorings(self) -> tuple["ScoringFolder", ...]:
        return tuple(ScoringFolder(p) for p in _numbered(self.root, "score"))


@dataclass(frozen=True, slots=True)
class ScoringFolder(NumberedFolder):
    """One numbered run of the evaluator over a replay's accepted checkpoints."""

    @property
    def replay(self) -> ReplayFolder:
        return ReplayFolder(self.root.parent)

    @property
    def gate(self) -> Path:
        return self.root / "gate.json"

    @property
    def summary(self) -> Path:
        return self.root / "summary.json"

    def checkpoint(self, name: str) -> "CheckpointScore":
        return CheckpointScore(self.root / name)


@dataclass(frozen=True, slots=True)
class CheckpointScore:
    """One checkpoint's score inside a scoring."""

    root: Path

    @property
    def summary(self) -> Path:
        return self.root / "out" / "summary.json"

    @property
    def official_receipt(self) -> Path:
        return self.root / "out" / "official-eval-receipt.json"

    @property
    def complete(self) -> Path:
        return self.root / ".complete"


RunFolder = AttemptFolder | ReplayFolder | ScoringFolder
_BY_WORD: Mapping[str, type[RunFolder]] = MappingProxyType(
    {"attempt": AttemptFolder, "replay": ReplayFolder, "score": ScoringFolder}
)


def run_folder(root: Path) -> RunFolder | None:
    """Tell by its name what kind of run lies in a folder; None when it is none."""
    match = _NUMBERED.fullmatch(root.name)
    return None if match is None else _BY_WORD[match.group(1)](root)


def number_of(folder: Path) -> int:
    """Return the number in ``attempt-001``, ``replay-001`` or ``score-001``.

    Raises:
        ValueError: the folder is not one of these.
    """
    match = _NUMBERED.fullmatch(folder.name)
    if match is None:
        raise ValueError(f"{folder.name!r} is not a numbered run folder")
    return int(match.group(2))


def _is_config(path: Path) -> bool:
    """Tell whether a config lies there; no link is one, nor what has the name of a run."""
    if path.is_symlink() or _NUMBERED.fullmatch(path.name):
        return False
    with folder_faults("the config", path, "make it readable, or name another runs folder: --runs"):
        return (path / "config.json").is_file()


def _numbered(root: Path, word: str) -> tuple[Path, ...]:
    if not root.is_dir():
        return ()
    found = [
        path
        for path in root.iterdir()
        if (match := _NUMBERED.fullmatch(path.name)) and match.group(1) == word
    ]
    return tuple(sorted(found, key=number_of))
