import json
from pathlib import Path

import pytest

from orchestrator.cli import app
from orchestrator.errors import Exit
from orchestrator.report import lookup
from tests.unit.sample_runs import HOSTILE, SampleRuns

READING = ("status", "show", "lifecycle", "logs", "report")
ALLOWED = {0x09, 0x0A}


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SampleRuns:
    monkeypatch.setenv("ORCH_RUNS", str(tmp_path / "runs"))
    return SampleRuns(tmp_path / "runs")


@pytest.fixture
def hostile(sample: SampleRuns) -> SampleRuns:
    """A finished attempt and a declined one that hold hostile text wherever a candidate can."""
    sample.name, sample.title, sample.agent = f"evil {HOSTILE}", HOSTILE, f"agent {HOSTILE}"
    sample.no_candidate(2, HOSTILE)
    scoring = sample.finished(1, contested=(HOSTILE,))
    attempt = scoring.replay.attempt
    attempt.logs.mkdir()
    (attempt.logs / "stdout.log").write_bytes(HOSTILE.encode() + b"\n\xff\x9b31m\x1b[2J\n")
    entry = {"ts": HOSTILE, "kind": HOSTILE, "text": HOSTILE}
    attempt.transcript.write_text(f"{json.dumps(entry)}\n{HOSTILE}\n")
    return sample


def _run(*arguments: str) -> None:
    assert app.run(list(arguments)) == Exit.OK


def _arguments(command: str, run: str) -> list[str]:
    return [command] if command == "status" else [command, run]


@pytest.mark.parametrize("flags", [[], ["--json"]])
@pytest.mark.parametrize("command", READING)
def test_LG_01_nothing_acts_on_the_terminal(
    hostile: SampleRuns,
    command: str,
    flags: list[str],
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    for attempt in ("attempt-001", "attempt-002"):
        _run(*_arguments(command, attempt), *flags)
    captured = capsysbinary.readouterr()
    text = captured.out + captured.err
    assert {byte for byte in text if byte < 0x20 or byte == 0x7F} <= ALLOWED
    assert not {c for c in text.decode() if "\x80" <= c <= "\x9f" or c == "\u202e"}


@pytest.mark.parametrize("flags", [[], ["--json"], ["--csv"]])
def test_LG_01_nothing_acts_on_the_terminal_of_who_compares(
    sample: SampleRuns, flags: list[str], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    sample.agent = f"agent {HOSTILE}"
    sample.finished(1, contested=(HOSTILE,))
    _run("compare", "digits_class0", *flags)
    captured = capsysbinary.readouterr()
    text = captured.out + captured.err
    assert b"0.7658" in text
    assert {byte for byte in text if byte < 0x20 or byte == 0x7F} <= ALLOWED
    assert not {c for c in text.decode() if "\x80" <= c <= "\x9f" or c == "\u202e"}


def test_LG_01_raw_bytes_stay_in_the_file_and_come_out_on_request(
    hostile: SampleRuns, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    _run("logs", "attempt-001", "--raw")
    raw = capsysbinary.readouterr().out
    folder = lookup.resolve(hostile.runs, "attempt-001").root
    assert raw.startswith((folder / "logs" / "stdout.log").read_bytes())
    assert b"\x1b[2J" in raw


@pytest.mark.parametrize("command", READING)
def test_json_is_one_document(
    sample: SampleRuns, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sample.finished()
    _run(*_arguments(command, "attempt-001"), "--json")
    document = json.loads(capsys.readouterr().out)
    assert isinstance(document, list | dict)


@pytest.mark.parametrize("run", ["attempt-001", "attempt-001/r", "attempt-001/r/s"])
def test_show_and_lifecycle_take_any_run(
    sample: SampleRuns, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sample.finished()
    for command in ("show", "lifecycle"):
        for flags in ([], ["--json"]):
            _run(command, run, *flags)
            assert "score-001" in capsys.readouterr().out


def test_show_names_the_next_command(
    sample: SampleRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    sample.submitted()
    _run("show", "attempt-001")
    out = capsys.readouterr().out
    assert out.splitlines()[-1].startswith("next: orch replay ")
    assert "fifo" in out


def test_data_cannot_forge_a_line(hostile: SampleRuns, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("status", "show", "lifecycle"):
        _run(*_arguments(command, "attempt-002"))
    assert not [line for line in capsys.readouterr().out.splitlines() if line.startswith("forged")]


def test_the_output_of_a_scoring_is_sealed(
    sample: SampleRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    scoring = sample.finished()
    scoring.logs.mkdir()
    (scoring.logs / "stdout.log").write_text("a final row")
    assert app.run(["logs", "attempt-001/r/s"]) == Exit.USAGE
    captured = capsys.readouterr()
    assert "sealed" in captured.err
    assert "final row" not in captured.out + captured.err


def test_a_transcript_is_told(sample: SampleRuns, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = sample.explored()
    lines = (
        {"ts": "T1", "kind": "message", "text": "I try this"},
        {"ts": "T2", "kind": "call", "command": "ls /out"},
        {"ts": "T3", "kind": "output", "exit_code": 0, "output": "one\ntwo", "seconds": 0.1},
    )
    deep = "[" * 100_000
    folder.transcript.write_text("".join(json.dumps(line) + "\n" for line in lines) + deep)
    _run("logs", "attempt-001")
    assert capsys.readouterr().out.splitlines() == [
        "== transcript.jsonl",
        "[T1] message",
        "    I try this",
        "[T2] $ ls /out",
        "[T3] exit code 0, 0.1 s",
        "    one",
        "    two",
        deep,
    ]


def test_nothing_to_show_is_said(sample: SampleRuns, capsys: pytest.CaptureFixture[str]) -> None:
    _run("status")
    assert "no attempts in" in capsys.readouterr().out
    sample.attempt()
    _run("logs", "attempt-001")
    assert "has written nothing" in capsys.readouterr().out


def test_a_link_is_no_log(sample: SampleRuns, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = sample.attempt()
    folder.logs.mkdir()
    (folder.logs / "stdout.log").symlink_to("/etc/passwd")
    _run("logs", "attempt-001")
    assert "has written nothing" in capsys.readouterr().out


def test_a_name_too_long_for_a_folder_is_the_operators(
    sample: SampleRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(["--runs", str(sample.root.with_name("a" * 300)), "status"]) == Exit.USAGE
    assert "cannot be used: File name too long" in capsys.readouterr().err


def test_status_lists_faults_below(sample: SampleRuns, capsys: pytest.CaptureFixture[str]) -> None:
    scoring = sample.finished()
    scoring.replay.journal.write_bytes(b"garbage\n")
    _run("status")
    out = capsys.readouterr().out
    assert "001 unreadable" in out
    assert "fault: scripted__" in out


def test_report_prints_where_it_is(sample: SampleRuns, capsys: pytest.CaptureFixture[str]) -> None:
    scoring = sample.finished()
    _run("report", "attempt-001/r/s")
    path = Path(capsys.readouterr().out.strip())
    assert path == scoring.replay.attempt.analysis / "report.html"
    assert "0.7658" in path.read_text()
