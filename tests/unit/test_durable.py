import errno
import json
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.domain.attempt import RunKind
from orchestrator.errors import StorageFullError, TaskPackError
from orchestrator.lifecycle.machine import Event, State
from orchestrator.storage import durable
from orchestrator.storage.journal import Journal, read_journal
from tests.unit.records_help import TickingClock


@pytest.fixture
def no_residue(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    assert not [p.name for p in tmp_path.iterdir() if p.name.endswith(".tmp")]


def test_a_file_is_written_whole_with_its_mode(no_residue: Path) -> None:
    path = no_residue / "a"
    durable.write_file(path, b"x" * 3_000_000, mode=0o640)
    assert path.stat().st_size == 3_000_000
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert path.stat().st_nlink == 1


def test_an_existing_file_is_never_clobbered(no_residue: Path) -> None:
    path = no_residue / "a"
    durable.write_file(path, b"old")
    with pytest.raises(FileExistsError):
        durable.write_file(path, b"new")
    assert path.read_bytes() == b"old"
    durable.write_file(path, b"new", replace=True)
    assert path.read_bytes() == b"new"


def test_a_link_at_the_name_is_not_written_through(no_residue: Path) -> None:
    target = no_residue / "target"
    target.write_bytes(b"precious")
    (no_residue / "link").symlink_to(target)
    with pytest.raises(FileExistsError):
        durable.write_file(no_residue / "link", b"new")
    durable.write_file(no_residue / "link", b"new", replace=True)
    assert target.read_bytes() == b"precious"
    assert not (no_residue / "link").is_symlink()


def test_CK_22_a_name_of_255_bytes_can_be_written(no_residue: Path) -> None:
    durable.write_file(no_residue / ("n" * 255), b"x")


def test_short_writes_are_continued(no_residue: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: whole(fd, bytes(data)[:7]))
    durable.write_file(no_residue / "a", b"0123456789" * 5)
    monkeypatch.undo()
    assert (no_residue / "a").read_bytes() == b"0123456789" * 5


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("call", ["write", "fsync", "link"])
def test_a_storage_fault_names_the_path_and_leaves_nothing(
    no_residue: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    calls = []

    def fail(*_: object) -> int:
        calls.append(call)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(StorageFullError, match=str(no_residue / "a")):
        durable.write_file(no_residue / "a", b"x")
    assert calls == [call]
    assert list(no_residue.iterdir()) == []


def test_any_failed_fsync_is_final(no_residue: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fail(_: int) -> None:
        calls.append(1)
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageFullError):
        durable.write_file(no_residue / "a", b"x")
    assert len(calls) == 1


@pytest.fixture
def nearly_full(tmp_path: Path) -> Iterator[Path]:
    """A file system with 4 KiB left, an older receipt and freed-on-demand ballast on it."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = (
        os.geteuid() == 0
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)],
            check=False,
            capture_output=True,
        ).returncode
    )
    if not mounted:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        durable.write_file(folder / "001-explore.json", b"old receipt")
        durable.make_ballast(folder / ".ballast", size=64 * 1024)
        left = shutil.disk_usage(folder).free
        (folder / "filler").write_bytes(b"\0" * (left - 4096))
        assert shutil.disk_usage(folder).free == 4096
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_SC_06_a_full_disk_leaves_old_files_and_no_part_of_a_new_one(nearly_full: Path) -> None:
    before = {path.name: path.read_bytes() for path in nearly_full.iterdir()}
    for replace in (False, True):
        with pytest.raises(StorageFullError, match=r"summary\.json: No space left") as raised:
            durable.write_file(nearly_full / "summary.json", b"s" * 20 * 1024, replace=replace)
        assert raised.value.exit_code == 75
        assert raised.value.remedy
    with pytest.raises(StorageFullError):
        durable.write_file(nearly_full / "001-explore.json", b"n" * 20 * 1024, replace=True)
    assert {path.name: path.read_bytes() for path in nearly_full.iterdir()} == before


def _note_without_end(journal: Journal) -> None:
    while True:
        journal.append(Event.NOTED, text="x" * 1000)


def test_SC_06_the_ending_can_still_be_written_once_the_ballast_is_freed(
    nearly_full: Path,
) -> None:
    journal = Journal(nearly_full / "lifecycle.jsonl", RunKind.REPLAY, "run", TickingClock())
    journal.append(Event.REGISTERED)
    with pytest.raises(StorageFullError):
        _note_without_end(journal)
    told = read_journal(nearly_full / "lifecycle.jsonl", RunKind.REPLAY)
    assert told == journal.view
    assert durable.free_ballast(nearly_full / ".ballast")
    journal.append(Event.INFRASTRUCTURE, reason="disk_full")
    assert journal.state is State.TERMINAL_INFRASTRUCTURE


def test_other_faults_pass_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        durable.write_file(tmp_path / "missing" / "a", b"x")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'{"a": NaN}', "NaN"),
        (b"[Infinity]", "Infinity"),
        (b"[-Infinity]", "-Infinity"),
        (b"[1e999]", "1e999"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "'c' twice"),
        (b'"\xff"', "utf-8"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b"{} {}", "Extra data"),
        (b'{"a": 1', "delimiter"),
        (b"", "Expecting value"),
        (b"[" * 200_000, "recursion"),
        (b'"\\ud800"', "surrogates"),
        (b"1" * 5000, "digits"),
    ],
)
def test_only_strict_json_is_parsed(text: bytes, says: str) -> None:
    with pytest.raises(TaskPackError, match=says):
        durable.parse_json(text)


def test_strict_json_round_trips(tmp_path: Path) -> None:
    value = {"b": [1.5, None, True], "a": "snow\u2603man \U0001f600 \x1b"}
    durable.write_json(tmp_path / "v.json", value)
    assert durable.read_json(tmp_path / "v.json") == value
    text = (tmp_path / "v.json").read_text()
    assert text.endswith("}\n")
    assert text.index('"a"') < text.index('"b"')
    assert durable.parse_json(b'"\\u2603 \\ud83d\\ude00"') == "\u2603 \U0001f600"


def test_nan_is_never_written(no_residue: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        durable.write_json(no_residue / "v.json", {"a": float("nan")})
    assert list(no_residue.iterdir()) == []


def test_reading_takes_regular_files_of_limited_size_only(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(json.dumps("x" * 100).encode())
    (tmp_path / "link").symlink_to(file)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "bad").write_bytes(b"{")
    with pytest.raises(TaskPackError, match="link: not a regular file"):
        durable.read_json(tmp_path / "link")
    for name in ("fifo", "."):
        with pytest.raises(TaskPackError, match="not a regular file"):
            durable.read_json(tmp_path / name)
    with pytest.raises(TaskPackError, match="larger than 50 bytes"):
        durable.read_json(file, max_bytes=50)
    with pytest.raises(TaskPackError, match="bad: not strict JSON"):
        durable.read_json(tmp_path / "bad")
    with pytest.raises(FileNotFoundError):
        durable.read_json(tmp_path / "missing")


def test_folders_are_made_once(tmp_path: Path) -> None:
    durable.make_folder(tmp_path / "f", mode=0o1777)
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o1777
    with pytest.raises(FileExistsError):
        durable.make_folder(tmp_path / "f")
    durable.make_folder(tmp_path / "f", exist_ok=True)
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o1777
    (tmp_path / "link").symlink_to(tmp_path / "f")
    with pytest.raises(FileExistsError):
        durable.make_folder(tmp_path / "link", exist_ok=True)


def test_a_failed_append_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.write
    with durable.Appender(tmp_path / "lines.jsonl") as lines:
        lines.append({"n": 1})
        monkeypatch.setattr(os, "write", lambda fd, data: whole(fd, data[:3]))
        with pytest.raises(StorageFullError, match="No space left"):
            lines.append({"n": 2})
        monkeypatch.undo()
        lines.append({"n": 3})
    assert (tmp_path / "lines.jsonl").read_text() == '{"n":1}\n{"n":3}\n'


def test_a_line_that_did_not_reach_the_disk_is_not_left_to_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with durable.Appender(tmp_path / "lines.jsonl") as lines:
        lines.append({"n": 1})
        monkeypatch.setattr(os, "fdatasync", fail)
        with pytest.raises(StorageFullError, match="Input/output error"):
            lines.append({"n": 2})
        monkeypatch.undo()
        lines.append({"n": 3})
    assert (tmp_path / "lines.jsonl").read_text() == '{"n":1}\n{"n":3}\n'


def test_ballast_is_allocated_and_freed_once(tmp_path: Path) -> None:
    ballast = tmp_path / ".ballast"
    durable.make_ballast(ballast, size=256 * 1024)
    durable.make_ballast(ballast, size=1)
    assert ballast.stat().st_blocks * 512 >= 256 * 1024
    assert durable.free_ballast(ballast)
    assert not durable.free_ballast(ballast)
