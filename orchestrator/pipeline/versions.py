"""Whether this version of orch may touch a run: every record of it has to be of a known format."""

from collections.abc import Iterator
from pathlib import Path

from orchestrator.domain.records import ConfigRecord
from orchestrator.report.lookup import attempt_of
from orchestrator.storage.layout import (
    AttemptFolder,
    ConfigFolder,
    ReplayFolder,
    RunFolder,
    ScoringFolder,
)
from orchestrator.storage.records import load, require_format


def config_of(folder: RunFolder) -> ConfigRecord:
    """Read what a run measures.

    Raises:
        TaskPackError: it is missing, damaged, or of another version; nothing below it is ours.
    """
    return load(ConfigFolder(attempt_of(folder).root.parent).config, ConfigRecord)


def require_known(folder: RunFolder) -> None:
    """Refuse a run of another version, before anything of it is touched.

    Raises:
        TaskPackError: one of its records, or its config, has another format.
    """
    config_of(folder)
    for path in (folder.plan, *_others(folder)):
        require_format(path)


def _others(folder: RunFolder) -> Iterator[Path]:
    match folder:
        case AttemptFolder():
            yield folder.submission
        case ReplayFolder():
            yield from (folder.gate, folder.artifacts)
        case ScoringFolder():
            yield folder.summary
