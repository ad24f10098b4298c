"""What containers and agents wrote: read leniently, told in the order it is stored.

Everything here is hostile text. It is decoded and nothing more; whoever prints it cleans it.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.errors import UsageError
from orchestrator.report.lookup import path_id
from orchestrator.storage.layout import AttemptFolder, RunFolder, ScoringFolder

_STREAMS = ("stdout.log", "stderr.log")


def output_files(folder: RunFolder) -> tuple[Path, ...]:
    """Find the files that hold a run's output; those that do not exist are left out.

    Raises:
        UsageError: it is a scoring, whose output is sealed.
    """
    if isinstance(folder, ScoringFolder):
        name = path_id(folder)
        raise UsageError(
            f"the output of {name} is sealed: an evaluator may print rows of the final data",
            remedy=f"its numbers: orch show {name}; whoever may see such rows: {folder.logs}",
        )
    paths = [folder.logs / name for name in _STREAMS]
    if isinstance(folder, AttemptFolder):
        paths.append(folder.transcript)
    return tuple(path for path in paths if path.is_file() and not path.is_symlink())


def told(path: Path) -> Iterator[str]:
    """Give a file's lines as text; a transcript as commands, outputs and messages."""
    with path.open(encoding="utf-8", errors="backslashreplace") as file:
        if path.suffix == ".jsonl":
            for line in file:
                yield from _transcribed(line)
        else:
            yield from (line.removesuffix("\n") for line in file)


class Follower:
    """Gives what was added to a run's output since it was last asked, in whole lines."""

    def __init__(self, folder: RunFolder) -> None:
        """Begin with what is there already.

        Raises:
            UsageError: it is a scoring, whose output is sealed.
        """
        output_files(folder)
        self._folder = folder
        self._read: dict[Path, int] = {}

    def news(self) -> Iterator[str]:
        """Give the new lines as ``told`` does; what is not ended yet comes once it is."""
        for path in output_files(self._folder):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                for raw in file:
                    if not raw.endswith(b"\n"):
                        break
                    self._read[path] = self._read.get(path, 0) + len(raw)
                    line = raw.decode("utf-8", "backslashreplace")
                    yield from _transcribed(line) if path.suffix == ".jsonl" else (line[:-1],)


def _transcribed(line: str) -> Iterator[str]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        entry = None
    if not isinstance(entry, dict):
        yield line.removesuffix("\n")
        return
    yield f"[{entry.get('ts', '?')}] {_heading(entry)}"
    body = entry.get("output") or entry.get("text")
    if isinstance(body, str):
        yield from (f"    {part}" for part in body.splitlines())


def _heading(entry: dict[str, Any]) -> str:
    if "command" in entry:
        return f"$ {entry['command']}"
    if "tool" in entry:
        return f"{entry['tool']} {entry.get('arguments', '')}"
    if entry.get("kind") == "tokens":
        return _tokens(entry)
    if "output" in entry:
        cut = ", cut off" if entry.get("truncated") else ""
        if "seconds" not in entry:
            code = entry.get("exit_code")
            return "output" if code is None else f"output, exit code {code}"
        return f"exit code {entry.get('exit_code')}, {entry['seconds']} s{cut}"
    return str(entry.get("kind", "?"))


def _tokens(entry: dict[str, Any]) -> str:
    """Say what an exchange with the model took."""
    if "refused" in entry:
        return f"exchange {entry.get('exchange')} refused ({entry['refused']}): {entry.get('why')}"
    return (
        f"exchange {entry.get('exchange')}, {entry.get('model')}: {entry.get('input')} tokens in "
        f"({entry.get('cached')} cached), {entry.get('output')} out, {entry.get('seconds')} s, "
        f"cost {entry.get('cost')}"
    )
