"""What Ctrl-C does, and what a person is told."""

import os
import signal
import time
from threading import current_thread

import pytest

from orchestrator.cli.progress import Progress, described, interruptible
from orchestrator.domain.roles import Phase
from orchestrator.evidence.supervise import Beat, StopRequest


def press(stop: StopRequest, times: int) -> None:
    """Press Ctrl-C and wait until each was noted; pending signals of a kind are one."""
    for number in range(1, times + 1):
        os.kill(os.getpid(), signal.SIGINT)
        give_up = time.monotonic() + 10
        while not (stop.leave if number > 1 else stop.asked):
            assert time.monotonic() < give_up


def test_one_stops_and_says_what_it_costs(capsys: pytest.CaptureFixture[str]) -> None:
    stop, progress = StopRequest(), Progress()
    progress.beat(Beat(Phase.REPLAY, spent=3725, left=10, memory=None))
    with interruptible(stop, progress):
        press(stop, 1)
    assert not stop.leave
    said = capsys.readouterr().err
    assert "stopping after 1:02:05 of replay" in said
    assert "terminal_operator" in said


def test_two_leave_the_container(capsys: pytest.CaptureFixture[str]) -> None:
    stop = StopRequest()
    with interruptible(stop, Progress()):
        press(stop, 2)
    assert stop.leave
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("stopping: ")
    assert "leaving it to the background" in second


def test_a_pause_is_none_and_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Were it one, a container would outlive its deadline."""
    stop = StopRequest()
    with interruptible(stop, Progress()):
        assert signal.getsignal(signal.SIGTSTP) is not signal.SIG_DFL  # else this stands still
        os.kill(os.getpid(), signal.SIGTSTP)
    assert not stop.asked
    assert capsys.readouterr().err.startswith("Ctrl-Z pauses nothing here: ")


def test_it_is_said_outside_the_signal_handler() -> None:
    """Inside, it could find the terminal's lock held by the very line it interrupted."""
    stop, progress = StopRequest(), Progress()
    where: list[str] = []
    progress.say = lambda _: where.append(current_thread().name)  # type: ignore[method-assign]
    with interruptible(stop, progress):
        press(stop, 1)
    assert where == ["interrupts"]


def test_the_handlers_are_put_back() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)
    before = [signal.getsignal(number) for number in numbers]
    with interruptible(StopRequest(), Progress()):
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert [signal.getsignal(number) for number in numbers] == before


def test_a_beat_is_one_line() -> None:
    beat = Beat(Phase.EXPLORE, spent=61, left=3600, memory=5 << 20)
    assert described(beat) == "explore: 0:01:01 gone, 1:00:00 left, memory 5 MiB"
