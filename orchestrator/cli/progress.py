"""What a person sees while a run goes on: plain lines, and on a terminal one line that counts."""

import logging
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread
from types import FrameType

from orchestrator.cli.logging import FACTS, LOGGER
from orchestrator.cli.render import Stream, emit, write
from orchestrator.domain.quantity import human
from orchestrator.evidence.supervise import Beat, StopRequest
from orchestrator.report.text import one_line

_UP_AND_CLEAR = "\r\x1b[K"


class Progress:
    """Says what happens on stderr. ``beat`` comes about once a second while a container runs."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._shown = False
        self._log = logging.getLogger(LOGGER)
        self.latest: Beat | None = None

    def say(self, text: str) -> None:
        """Print one line."""
        self._clear()
        emit(one_line(text), to=Stream.ERR)
        self._log.info("said", extra={FACTS: {"text": text}})

    def beat(self, beat: Beat) -> None:
        """Show where a running container stands; on a terminal only."""
        self.latest = beat
        if self._live:
            write(sys.stderr, _UP_AND_CLEAR + one_line(described(beat)))
            self._shown = True

    def _clear(self) -> None:
        if self._shown:
            write(sys.stderr, _UP_AND_CLEAR)
            self._shown = False

    def close(self) -> None:
        """Leave the terminal with a clean line."""
        self._clear()


def described(beat: Beat) -> str:
    """Say in a line what runs, how long it may go on, and what memory it has used."""
    memory = "" if beat.memory is None else f", memory {human(beat.memory)}"
    return f"{beat.phase}: {_clock(beat.spent)} gone, {_clock(beat.left)} left{memory}"


def _clock(seconds: float) -> str:
    whole = max(0, int(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


_LEFT = (
    "leaving it to the background, which goes on with a replay and ends anything else, "
    "with what an agent left kept"
)

_NOT_PAUSED = (
    "Ctrl-Z pauses nothing here: the clock of a run goes on, and nobody would see to it; "
    "Ctrl-C stops the run"
)


def _cost(beat: Beat | None) -> str:
    spent = "" if beat is None else f" after {_clock(beat.spent)} of {beat.phase}"
    return (
        f"stopping{spent}: it ends as terminal_operator, its time is spent and it is not "
        "run again by itself; Ctrl-C once more leaves it to the background instead"
    )


@contextmanager
def interruptible(stop: StopRequest, progress: Progress) -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into a wish to stop, and say first what that costs."""

    def ask() -> str:
        return asked(stop.ask(), progress)

    with heeding({signal.SIGINT: ask, signal.SIGTERM: ask}, progress):
        yield


def asked(count: int, progress: Progress) -> str:
    """Say what the ``count``-th wish to stop means for the run that is under way."""
    return _cost(progress.latest) if count == 1 else _LEFT


@contextmanager
def heeding(
    wishes: Mapping[signal.Signals, Callable[[], str]], progress: Progress
) -> Iterator[None]:
    """Let signals be wishes; each wish returns the line to say.

    A terminal that hangs up is no wish: the work goes on without it. Nor is Ctrl-Z: a supervisor
    that is paused holds its run, so that nobody would end the container at its deadline.
    """
    wishes = {signal.SIGTSTP: lambda: _NOT_PAUSED, **wishes}
    told: SimpleQueue[str] = SimpleQueue()

    def heed(number: int, _frame: FrameType | None) -> None:
        told.put(wishes[signal.Signals(number)]())

    def tell() -> None:
        """Say it in a thread: a signal may come in the middle of a line that is being printed."""
        while text := told.get():
            progress.say(text)

    teller = Thread(target=tell, name="interrupts", daemon=True)
    teller.start()
    before = {number: signal.signal(number, heed) for number in wishes}
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        told.put("")
        teller.join()
        progress.close()
        for number, handler in before.items():
            signal.signal(number, handler)
