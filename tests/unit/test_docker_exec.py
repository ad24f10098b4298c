"""How what a command prints on its two streams becomes one output."""

from collections.abc import Generator
from typing import Any, cast

import pytest

from orchestrator.adapters import docker_exec
from orchestrator.adapters.docker_api import Stream
from orchestrator.adapters.docker_exec import CappedOutput

Frame = tuple[str, bytes]


class Printed:
    """A stream of these frames."""

    def __init__(self, *frames: Frame) -> None:
        self._frames = frames

    def frames(self) -> Generator[Frame, None, None]:
        yield from self._frames


def taken(*frames: Frame) -> list[bytes]:
    pieces: list[bytes] = []
    output = CappedOutput(1000, pieces.append)
    docker_exec._read(cast("Stream", cast("Any", Printed(*frames))), output)
    assert output.kept == b"".join(pieces)
    return pieces


def test_a_line_of_one_stream_is_not_broken_by_the_other() -> None:
    frames = (
        ("stdout", b'{"a": '),
        ("stderr", b"a warning"),
        ("stdout", b"1}\n{"),
        ("stderr", b"\n"),
        ("stdout", b'"b": 2}\n'),
    )
    assert taken(*frames) == [b'{"a": 1}\n', b"a warning\n", b'{"b": 2}\n']


def test_what_ends_without_a_line_is_taken_at_the_end() -> None:
    assert taken(("stdout", b"x"), ("stderr", b"y"), ("stdout", b"z")) == [b"xz", b"y"]


def test_a_line_without_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_exec, "_LONGEST_LINE", 3)
    assert taken(("stdout", b"abc"), ("stdout", b"d"), ("stdout", b"e")) == [b"abc", b"de"]
