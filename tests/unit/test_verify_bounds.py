"""Whatever lies in a folder, verification answers: in bounded time and memory, with a reason."""

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import verify as verify_command
from orchestrator.cli.app import run
from orchestrator.storage.supervisor import supervising
from receipts import journal, verify_find
from receipts.__main__ import main
from receipts.keys import SigningKey, load_or_create, publish
from receipts.statement import PhaseName
from receipts.verify import verify
from receipts.verify_model import MAX_FAULTS, Report, Step, Verdict, Wanted
from receipts.verify_report import lines
from tests.unit.receipts_help import chain

ATTEMPT = Path("config/attempt-001")


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return load_or_create(tmp_path / "home")


@pytest.fixture
def runs(tmp_path: Path, key: SigningKey) -> Path:
    """Two receipts and nothing else: enough to be read, too little to hold."""
    runs = tmp_path / "runs"
    (runs / ATTEMPT).mkdir(parents=True)
    (runs / "config" / "config.json").write_text("{}")
    chain(runs / ATTEMPT, key, (PhaseName.EXPLORE, PhaseName.SUBMIT))
    publish(key, runs / "keys")
    return runs


def _told(runs: Path) -> str:
    report = verify(runs)
    assert report.verdict is Verdict.FINDING
    return "\n".join(f"{f.step} {f.where.name}: {f.what}" for f in report.faults)


def test_receipts_without_plan_and_journal_are_a_finding(runs: Path) -> None:
    told = _told(runs)
    assert "parse plan.json: missing" in told
    assert "phases attempt-001: no journal" in told


def test_nothing_at_all_is_a_finding(tmp_path: Path) -> None:
    assert "no run here" in _told(tmp_path)
    assert "holds" not in "\n".join(lines(verify(tmp_path)))


def test_a_number_that_was_only_claimed_is_no_finding(tmp_path: Path) -> None:
    (tmp_path / ATTEMPT).mkdir(parents=True)
    report = verify(tmp_path)
    assert report.faults == []
    assert report.verdict is Verdict.UNAUTHENTICATED
    assert "went no further" in report.notes[0]


def test_a_folder_of_countless_receipts_is_not_read_whole(runs: Path) -> None:
    for number in range(5000):
        (runs / ATTEMPT / "receipts" / f"junk-{number}").touch()
    report = verify(runs)
    assert any("more than 100 entries" in fault.what for fault in report.faults)
    assert len(report.faults) < 200


def test_a_folder_of_countless_runs_is_not_read_whole(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_find, "MAX_RUNS", 20)
    for number in range(2, 60):
        (runs / "config" / f"attempt-{number:03d}").mkdir()
    assert "more than 20 runs" in _told(runs)


def test_more_findings_than_anyone_reads_are_counted(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(2, MAX_FAULTS + 20):
        folder = runs / "config" / f"attempt-{number:03d}"
        folder.mkdir()
        (folder / "plan.json").write_text("{}")
    assert len(verify(runs).faults) == MAX_FAULTS
    assert main(["verify", str(runs)]) == 1
    assert "findings more" in capsys.readouterr().out


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.mkdir()


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _deep(path: Path) -> None:
    path.write_bytes(b'{"a":' * 200_000 + b"\n")


def _rubbish(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 100)


def _long_number(path: Path) -> None:
    path.write_bytes(b'{"format": ' + b"9" * 100_000 + b"}\n")


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


DAMAGES = (_fifo, _folder, _loop, _device, _deep, _rubbish, _long_number, _sparse)
PLACES = (
    ATTEMPT / "plan.json",
    ATTEMPT / "lifecycle.jsonl",
    ATTEMPT / "receipts" / "001-explore.json",
    ATTEMPT / ".complete",
    Path("campaign.jsonl"),
    ATTEMPT / "replay-001",
)


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_no_record_is_said_to_be_none(
    runs: Path, damage: Callable[[Path], None], place: Path
) -> None:
    path = runs / place
    path.unlink(missing_ok=True)
    damage(path)
    report = verify(runs)
    assert report.verdict is Verdict.FINDING
    if not (place.name == "replay-001" and damage is _folder):
        assert any(place.name in str(fault.where) for fault in report.faults)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_receipts_folder_that_is_none(runs: Path, damage: Callable[[Path], None]) -> None:
    folder = runs / ATTEMPT / "receipts"
    folder.rename(runs / "elsewhere")
    damage(folder)
    assert "receipts" in _told(runs)


def test_a_run_that_is_a_link_is_not_followed(runs: Path) -> None:
    (runs / "config" / "attempt-002").symlink_to("attempt-001")
    assert "parse attempt-002: not a folder" in _told(runs)
    assert verify(runs).runs == 1


@pytest.mark.parametrize("name", ["attempt-0001", "attempt-000", "attempt-0000000001"])
def test_a_second_folder_of_one_number_is_a_finding(runs: Path, name: str) -> None:
    shutil.copytree(runs / ATTEMPT, runs / "config" / name)
    assert f"parse {name}: a number that is not written so" in _told(runs)
    assert verify(runs).runs == 1


def test_a_config_that_is_a_link_is_a_finding(runs: Path) -> None:
    (runs / "twin").symlink_to("config")
    (runs / "note").symlink_to("keys")
    assert "parse twin: a link to a config" in _told(runs)
    assert "note" not in _told(runs)
    assert verify(runs).runs == 1


def test_folders_that_are_too_many_to_be_read_are_a_finding(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_find, "MAX_RUNS", 20)
    for number in range(30):
        (runs / f"junk-{number}").mkdir()
    assert "more than 20 folders" in _told(runs)


def test_a_line_without_end_is_not_parsed(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MAX_LINE", 1000)
    (runs / ATTEMPT / "lifecycle.jsonl").write_bytes(b'{"a": "' + b"x" * 2000 + b'"}\n')
    assert "longer than 1000 bytes" in _told(runs)


def test_a_journal_larger_than_any_is_not_read(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MAX_FILE", 1000)
    (runs / ATTEMPT / "lifecycle.jsonl").write_bytes(b"x" * 2000)
    assert "larger than 1000 bytes" in _told(runs)


def test_a_candidates_files_are_never_taken_for_ours(runs: Path) -> None:
    before = verify(runs).faults
    for name in ("out", "workspace"):
        forged = runs / ATTEMPT / name / "replay-001" / "receipts"
        forged.mkdir(parents=True)
        (forged / "003-gate.json").write_text("{}")
    assert verify(runs).faults == before


def test_names_do_not_steer_the_terminal(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / ATTEMPT / "receipts" / "\x1b[2J\u202e").write_text("")
    os.close(os.open(bytes(runs / ATTEMPT / "receipts") + b"/\xff", os.O_CREAT))
    for options in ([], ["--json"]):
        assert main(["verify", str(runs), *options]) == 1
        text = capsys.readouterr().out
        assert text.isascii()
        assert "\x1b" not in text


def test_a_published_key_under_a_false_name_is_a_finding(runs: Path, tmp_path: Path) -> None:
    stranger = load_or_create(tmp_path / "stranger")
    (runs / "keys" / ("0" * 64 + ".pem")).write_bytes(stranger.verifying.pem)
    (runs / "keys" / "rubbish.pem").write_bytes(b"-----BEGIN")
    told = _told(runs)
    assert "it holds key" in told
    assert "no readable Ed25519 public key" in told


def test_orch_verify_ends_as_the_standalone_command_does(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(runs)]) == 1
    told = capsys.readouterr().out
    assert run(["verify", str(runs)]) == 1
    assert capsys.readouterr().out == told
    assert run(["verify", str(runs / "missing")]) == 64
    (tmp_path / "no.pem").write_text("rubbish")
    capsys.readouterr()
    arguments = ["verify", str(runs), "--key", str(tmp_path / "no.pem")]
    for verifier in (run, main):  # no finding: nothing was checked
        assert verifier(arguments) == 64
        assert "no readable Ed25519 public key" in capsys.readouterr().err


@dataclass
class Looks:
    """A verification that finds something the first ``faulty`` times."""

    faulty: int
    meanwhile: Callable[[], object] = lambda: None
    count: int = 0

    def __call__(self, folder: Path, _: Wanted) -> Report:
        self.count += 1
        report = Report(authenticated=False)
        if self.count <= self.faulty:
            report.fault(Step.COMMIT, folder, "missing")
            self.meanwhile()
        return report


@pytest.mark.parametrize(("faulty", "count", "code"), [(2, 3, 3), (99, 6, 1)])
def test_what_is_found_while_a_run_is_seen_to_is_looked_at_again(
    runs: Path, monkeypatch: pytest.MonkeyPatch, faulty: int, count: int, code: int
) -> None:
    looks = Looks(faulty)
    monkeypatch.setattr(verify_command, "check", looks)
    monkeypatch.setattr(verify_command, "_PAUSES", (0,) * 5)
    with supervising(runs / ATTEMPT):
        assert run(["verify", str(runs / ATTEMPT)]) == code
    assert looks.count == count


def test_what_is_found_is_looked_at_again_once_a_run_has_moved(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving = Looks(1, (runs / ATTEMPT / ".complete").touch)
    still = Looks(1)
    for looks, code in ((moving, 3), (still, 1)):
        monkeypatch.setattr(verify_command, "check", looks)
        assert run(["verify", str(runs)]) == code
    assert (moving.count, still.count) == (2, 1)


@pytest.mark.parametrize("shut", ["runs", "runs/config"])
def test_a_folder_that_may_not_be_read_is_said_to_be_one(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shut: str
) -> None:
    look = os.scandir

    def refuse(path: os.PathLike[str]) -> Any:
        if Path(path) == runs.parent / shut:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return look(path)

    monkeypatch.setattr(os, "scandir", refuse)
    given = shut == "runs"
    assert main(["verify", str(runs)]) == (64 if given else 1)
    assert run(["verify", str(runs)]) == (64 if given else 1)
    told = capsys.readouterr()
    assert told.err.count("Permission denied") == (2 if given else 0)
    assert told.out.count("config: cannot be read: Permission denied") == (0 if given else 2)


def test_nothing_in_a_runs_place_stops_the_command(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / "config" / "attempt-000").touch()
    (runs / "config" / "attempt-002").touch()
    assert run(["verify", str(runs)]) == 1
    assert "attempt-002: not a folder" in capsys.readouterr().out
