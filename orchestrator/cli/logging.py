"""Where orch's own log goes: always into a file, with ``-v`` to the terminal too.

A line of the file is one JSON object, everything beyond printable ASCII escaped. The file is made
by the first line that is logged, so that commands which only read leave no trace.
"""

import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from typing_extensions import override

from orchestrator.cli.context import Invocation
from orchestrator.cli.render import Stream, emit
from orchestrator.report.text import one_line

LOG_NAME = "orch.log"
LOGGER = "orch"
"""The name of the logger that everything of ours is logged by."""
FACTS = "facts"
"""The key of ``extra`` that holds a line's own facts, as a mapping."""


class _File(logging.Handler):
    """Appends lines to a file that is opened when the first one comes."""

    def __init__(self, path: Path, *, echo: bool) -> None:
        super().__init__()
        self._path = path
        self._echo = echo
        self._lost = False

    @override
    def emit(self, record: logging.LogRecord) -> None:
        """Write one line; show it on the terminal where that was asked for.

        A log that cannot be written is complained of once; no run ends for it.
        """
        head = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        facts: dict[str, Any] = dict(getattr(record, FACTS, {}))
        if record.exc_info:
            facts["exception"] = logging.Formatter().formatException(record.exc_info)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="ascii") as file:
                file.write(json.dumps({**head, **facts}) + "\n")
        except OSError as failure:
            if not self._lost:
                emit(f"orch: {self._path}: {failure.strerror}", to=Stream.ERR)
            self._lost = True
        if self._echo:
            rest = (f"{key}={value}" for key, value in facts.items())
            emit(one_line(" ".join((*head.values(), *rest))), to=Stream.ERR)


def configure(call: Invocation) -> None:
    """Send what ``LOGGER`` gets to ``orch.log`` in the runs folder and, with ``-v``, to stderr.

    Commands that do more than read call this first.
    """
    logger = logging.getLogger(LOGGER)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.handlers = [_File(call.settings.runs / LOG_NAME, echo=call.verbose)]
