"""What is kept of a container's output."""

from io import FileIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import Buffer, override

from orchestrator.evidence.capped_log import CappedLog


def written(log: CappedLog, *pieces: bytes, stream: str = "stdout") -> None:
    for piece in pieces:
        log.write(stream, piece)
    log.close()


def test_what_fits_is_kept_as_it_came(tmp_path: Path) -> None:
    written(CappedLog(tmp_path), b"\xff\x00", b"two\n")
    assert (tmp_path / "stdout.log").read_bytes() == b"\xff\x00two\n"
    assert (tmp_path / "stderr.log").read_bytes() == b""


def test_head_and_tail_are_kept_and_the_gap_is_said(tmp_path: Path) -> None:
    written(CappedLog(tmp_path, cap=4, tail=3), b"abcdefghij")
    assert (tmp_path / "stdout.log").read_bytes() == b"abcd\n[orch: 3 bytes left out]\nhij"


def test_without_a_gap_nothing_is_said(tmp_path: Path) -> None:
    written(CappedLog(tmp_path, cap=4, tail=6), b"abcde", b"fghij")
    assert (tmp_path / "stdout.log").read_bytes() == b"abcdefghij"


@given(st.lists(st.binary(max_size=50), max_size=20))
def test_however_it_comes_it_is_bounded_and_adds_up(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("log")
    log = CappedLog(folder, cap=40, tail=20)
    written(log, *pieces, stream="stderr")
    whole = b"".join(pieces)
    kept = (folder / "stderr.log").read_bytes()
    assert log.seen["stderr"] == len(whole)
    assert len(kept) <= 40 + 20 + 40
    if len(whole) <= 60:
        assert kept == whole
    else:
        assert kept.startswith(whole[:40])
        assert kept.endswith(whole[-20:])
        assert f"[orch: {len(whole) - 60} bytes left out]".encode() in kept


def test_a_full_disk_is_remembered_and_holds_nobody_up(tmp_path: Path) -> None:
    log = CappedLog(tmp_path)
    log._files["stdout"].close()
    log._files["stdout"] = open("/dev/full", "wb", buffering=0)  # type: ignore[assignment]  # noqa: PTH123, SIM115
    log.write("stdout", b"x" * 100)
    assert log.error is not None
    assert log.error.errno == 28
    log.write("stderr", b"dropped")
    log.close()
    assert log.seen == {"stdout": 100, "stderr": 7}
    assert (tmp_path / "stderr.log").read_bytes() == b"\n[orch: 7 bytes left out]\n"


def test_a_short_write_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = CappedLog(tmp_path)

    class Slow(FileIO):
        @override
        def write(self, data: Buffer) -> int:
            return super().write(bytes(data)[:3])

    log._files["stdout"].close()
    log._files["stdout"] = Slow(tmp_path / "stdout.log", "a")
    written(log, b"abcdefghij")
    assert (tmp_path / "stdout.log").read_bytes() == b"abcdefghij"


def test_an_evaluators_words_are_sealed(tmp_path: Path) -> None:
    written(CappedLog(tmp_path, mode=0o600), b"secret")
    assert (tmp_path / "stdout.log").stat().st_mode & 0o777 == 0o600
