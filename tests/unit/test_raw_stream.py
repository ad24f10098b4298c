"""What an agent's program prints: kept within bounds, and cut into lines."""

from pathlib import Path

from orchestrator.evidence.raw_stream import Lines, RawLog


def test_lines_come_whole_however_they_arrive() -> None:
    got: list[str] = []
    lines = Lines(got.append)
    for piece in (b"on", b"e\ntwo\n\nth", b"ree \xff"):
        lines.take(piece)
    assert got == ["one", "two"]
    lines.end()
    assert got == ["one", "two", "three \\xff"]


def test_a_line_that_is_too_long_is_left_out_and_takes_no_memory() -> None:
    got: list[str] = []
    lines = Lines(got.append, limit=8)
    for _ in range(1000):
        lines.take(b"x" * 7)
    assert len(lines._begun) <= 8
    lines.take(b"\n12345678\n123456789\nend\n")
    assert got == ["12345678", "end"]


def test_the_file_takes_no_more_than_its_limit_also_when_it_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "raw"
    log = RawLog(path, limit=10)
    log.write(b"12345678")
    log.write(b"90ab")
    log.close()
    log.write(b"late")
    log.close()
    assert path.read_bytes() == b"1234567890"
    again = RawLog(path, limit=10)
    again.write(b"x")
    again.close()
    assert path.stat().st_size == 10
