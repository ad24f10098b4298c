"""Where orch's own log goes: always into a file, with ``-v`` to the terminal too.

A line of the file is one JSON object, everything beyond printable ASCII escaped. The file is made
by the first line that is logged, so that commands which only read leave no trace.
"""

from pathlib import Path
from typing import Any

import structlog
from structlog.typing import EventDict, WrappedLogger

from orchestrator.cli.context import Invocation
from orchestrator.cli.render import Stream, emit
from orchestrator.report.text import one_line

LOG_NAME = "orch.log"


class _File:
    """Appends lines to a file that is opened when the first one comes."""

    def __init__(self, path: Path, *, echo: bool) -> None:
        self._path = path
        self._echo = echo
        self._lost = False

    def msg(self, line: str, *, said: str) -> None:
        """Write ``line``; show ``said`` on the terminal where that was asked for.

        A log that cannot be written is complained of once; no run ends for it.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="ascii") as file:
                file.write(line + "\n")
        except OSError as failure:
            if not self._lost:
                emit(f"orch: {self._path}: {failure.strerror}", to=Stream.ERR)
            self._lost = True
        if self._echo:
            emit(said, to=Stream.ERR)

    debug = info = warning = error = critical = exception = msg


def configure(call: Invocation) -> None:
    """Send every structlog logger to ``orch.log`` in the runs folder and, with ``-v``, to stderr.

    Commands that do more than read call this first.
    """
    file = _File(call.settings.runs / LOG_NAME, echo=call.verbose)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _rendered,
        ],
        logger_factory=lambda *_names: file,
        cache_logger_on_first_use=False,
    )


def _rendered(
    logger: WrappedLogger, method: str, event: EventDict
) -> tuple[tuple[str], dict[str, Any]]:
    """Render an event twice: as JSON for the file and as a line for a person."""
    line = structlog.processors.JSONRenderer(ensure_ascii=True)(logger, method, dict(event))
    time, level, what = event.pop("timestamp"), event.pop("level"), event.pop("event")
    rest = " ".join(f"{key}={value}" for key, value in event.items())
    return (str(line),), {"said": one_line(f"{time} {level} {what} {rest}")}
