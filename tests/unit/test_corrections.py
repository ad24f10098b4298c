"""Labels that persons give: kept beside the originals, registered, and verified."""

import io
import json
import shutil
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from unittest.mock import patch

import pytest

from orchestrator.cli import app
from orchestrator.errors import Exit
from orchestrator.storage import corrections
from receipts.journal import read_journal
from receipts.verify_corrections import check_corrections
from receipts.verify_find import find
from receipts.verify_model import Report
from tests.unit.answered_help import CHECKS, TEXTS, Answered, answered
from tests.unit.sample_runs import SampleRuns

CORRECT = ("--case", "loss", "--answer", "1", "--check", "limits")
SAID = ("--quote", "cannot be undone", "--reason", "it says so")
GIVEN = ("attempt-001", *CORRECT, "--pass", *SAID)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Answered:
    monkeypatch.setenv("ORCH_RUNS", str(tmp_path / "runs"))
    return answered(SampleRuns(tmp_path / "runs"))


def run(*words: str, typed: str = "") -> int:
    with patch.object(sys, "stdin", io.StringIO(typed)):
        return int(app.run(list(words)))


def correct(*words: str) -> int:
    return run("correct", *words)


def faults(made: Answered, *, log: bool = True) -> list[str]:
    report = Report(authenticated=False)
    runs = find(made.sample.root, report).runs
    lines = read_journal(made.sample.runs.campaign).lines if log else None
    report.faults.clear()  # of receipts there are none here
    check_corrections(runs, lines, report)
    return [fault.what for fault in report.faults]


def registered(made: Answered) -> list[dict]:
    lines = read_journal(made.sample.runs.campaign).lines
    return [line.data for line in lines if line.event == "corrected"]


def labels(capsys: pytest.CaptureFixture[str]) -> dict[tuple[str, int, str], tuple]:
    capsys.readouterr()
    assert run("show", "attempt-001", "--json") == Exit.OK
    found = json.loads(capsys.readouterr().out)["labels"]["labels"]
    names = ("original", "reviewed", "corrected", "revised")
    return {
        (one["case"], one["answer"], one["check"]): tuple(one[name] for name in names)
        for one in found
    }


def test_a_correction_is_kept_beside_the_original_and_registered(
    made: Answered, capsys: pytest.CaptureFixture[str]
) -> None:
    before = made.summary.read_bytes()
    assert correct(*GIVEN) == Exit.OK
    found = made.correction(1)
    assert (found["case"], found["answer"], found["check"]) == ("loss", 1, "limits")
    assert (found["original"], found["corrected"]) == (False, True)
    assert (found["quote"], found["reason"]) == ("cannot be undone", "it says so")
    assert found["supersedes"] is None
    (line,) = registered(made)
    assert (line["run_id"], line["number"], line["kind"]) == (made.run_id, 1, "correction")
    assert faults(made) == []
    assert labels(capsys)["loss", 1, "limits"] == (False, None, True, True)
    assert labels(capsys)["loss", 1, "parses"] == (True, None, None, True)
    assert labels(capsys)["loss", 2, "parses"] == (False, None, None, False)
    # Changed back: by another record, which names the one that it supersedes.
    back = ("attempt-001", *CORRECT, "--fail", *SAID)
    assert correct(*back) == Exit.OK
    assert made.correction(2)["supersedes"] == 1
    assert labels(capsys)["loss", 1, "limits"] == (False, None, False, False)
    assert faults(made) == []
    assert made.summary.read_bytes() == before


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((*CORRECT, "--pass", "--quote", "can be undone", "--reason", "r"), "does not stand in"),
        ((*CORRECT, "--pass", "--quote", " ", "--reason", "r"), "--quote wants some words"),
        ((*CORRECT, "--pass", "--quote", "loss", "--reason", "r" * 4001), "--reason wants some"),
        ((*CORRECT, "--pass", "--quote", "loss", "--reason", "\udc80"), "--reason wants some"),
        ((*CORRECT, "--fail", *SAID), "the label is fail already"),
        (("--case", "x", *CORRECT[2:], "--pass", *SAID), "there is no case 'x'"),
        ((*CORRECT[:5], "x", "--pass", *SAID), "there is no check 'x'"),
        ((*CORRECT[:3], "3", *CORRECT[4:], "--pass", *SAID), "loss has no answer 3"),
        (
            ("--case", "target", "--answer", "2", *CORRECT[4:], "--pass", *SAID),
            "target has no answer 2",
        ),
    ],
)
def test_a_correction_that_makes_no_sense_is_refused(
    made: Answered, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], why: str
) -> None:
    assert correct("attempt-001", *words) == Exit.USAGE
    assert why in capsys.readouterr().err
    assert not made.attempt.corrections.exists()


def test_an_attempt_without_answers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ORCH_RUNS", str(tmp_path / "runs"))
    sample = SampleRuns(tmp_path / "runs")
    sample.finished()
    assert correct(*GIVEN) == Exit.USAGE
    assert "asked no questions" in capsys.readouterr().err


def test_a_review_is_blind_shuffled_by_its_seed_and_can_be_taken_up_again(
    made: Answered, capsys: pytest.CaptureFixture[str]
) -> None:
    # Two labels of the first answer, then the end of the input in the middle of it.
    assert run("review", "attempt-001", "--blind", "--seed", "5", typed="y\nn\n") == Exit.OK
    shown = capsys.readouterr().out
    assert "0 of 3 answers are labelled" in shown
    assert "next: orch review --blind " in shown
    hidden = shown.partition("answers are labelled")[0]
    assert not any(word in hidden for word in ("attempt-001", "loss, 1", "[pass]", "[fail]"))
    first = made.correction(1)
    assert (first["kind"], first["blind"], first["seed"]) == ("review", True, 5)
    assert (first["place"], first["total"]) == (1, 3)
    assert list(first["labels"].values()) == [True, False]
    # What is open of it is asked first, in the same order, without the seed being given again.
    assert run("review", "attempt-001", "--blind", typed="y\ns\n\nbad\ny\ny\nq\n") == Exit.OK
    shown = capsys.readouterr().out
    assert "1 of 3 answers are labelled" in shown
    assert shown.count("y for yes, n for no, s to leave it open, q to stop here") == 2
    second, third = made.correction(2), made.correction(3)
    assert (second["case"], second["answer"]) == (first["case"], first["answer"])
    assert {**first["labels"], **second["labels"]}.keys() == CHECKS.keys()
    assert (second["seed"], second["place"], second["supersedes"]) == (5, 1, None)
    assert (third["place"], len(third["labels"])) == (2, 2)
    assert run("review", "attempt-001", typed="n\n" * 4) == Exit.OK
    shown = capsys.readouterr().out
    assert "3 of 3 answers are labelled" in shown
    assert "next: orch show" in shown
    assert "[pass]" in shown or "[fail]" in shown
    assert run("review", "attempt-001") == Exit.OK
    assert "answer 1 of" not in capsys.readouterr().out
    assert run("review", "attempt-001", "--again", typed="n\nq\n") == Exit.OK
    assert made.correction(6)["supersedes"] == 2 or made.correction(6)["supersedes"] == 1
    assert faults(made) == []


def test_answers_of_several_attempts_are_mixed(
    made: Answered, capsys: pytest.CaptureFixture[str]
) -> None:
    other = answered(made.sample, 2)
    words = ("attempt-001", "attempt-002", "attempt-001")
    assert run("review", *words, "--blind", "--seed", "1", typed="y\n" * 18) == Exit.OK
    assert "6 of 6 answers are labelled" in capsys.readouterr().out
    order = sorted(
        ((one, case, number) for one in (made, other) for case, number in TEXTS),
        key=lambda of: sha256(f"1 {of[0].run_id} {of[1]} {of[2]}".encode()).hexdigest(),
    )
    said = [(one, one.correction(number)) for one in (made, other) for number in (1, 2, 3)]
    found = {record["place"]: (one, record["case"], record["answer"]) for one, record in said}
    assert [found[place] for place in range(1, 7)] == order


def test_an_answer_cannot_act_on_the_terminal_and_its_bytes_stay(
    made: Answered, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("review", "attempt-001", "--seed", "3", typed="y\n" * 9) == Exit.OK
    shown = capsys.readouterr().out
    assert "reversed" in shown
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert made.file("loss", 2).read_text() == TEXTS["loss", 2]


def test_no_line_of_an_answer_passes_for_one_of_ours(
    made: Answered, capsys: pytest.CaptureFixture[str]
) -> None:
    forged = (
        f"Done.\n\n{'-' * 72}\nanswer 2 of 2\r\n\x0banswer 3 of 3\n{CHECKS['parses']} (y/n/s/q) "
    )
    made.file("loss", 1).write_text(forged)
    assert run("review", "attempt-001", "--seed", "3", typed="y\n" * 9) == Exit.OK
    shown = capsys.readouterr().out
    for line in ("-" * 72, "answer 2 of 2", "answer 3 of 3", f"{CHECKS['parses']} (y/n/s/q) "):
        assert f"\n| {line}\n" in shown


def test_a_record_that_a_killed_writer_left_is_registered_by_the_next(made: Answered) -> None:
    log = made.sample.runs.campaign
    assert correct(*GIVEN) == Exit.OK
    log.write_text("")
    assert faults(made) == ["never registered in the campaign log"]
    assert correct("attempt-001", *CORRECT, "--fail", *SAID) == Exit.OK
    assert [line["number"] for line in registered(made)] == [1, 2]
    assert faults(made) == []


def edit(**changes: object) -> Callable[[Answered], None]:
    def change(made: Answered) -> None:
        path = made.attempt.corrections / "002.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def spoil_answer(made: Answered) -> None:
    made.file("loss", 1).write_text("other")


def spoil_label(made: Answered) -> None:
    text = json.loads(made.summary.read_text())
    text["metrics"]["loss/limits"][0]["value"] = 1.0
    made.summary.write_text(json.dumps(text))


def lose(made: Answered) -> None:
    (made.attempt.corrections / "002.json").unlink()


def lose_first(made: Answered) -> None:
    (made.attempt.corrections / "001.json").unlink()


def link(made: Answered) -> None:
    path = made.attempt.corrections / "002.json"
    path.rename(path.with_name("kept"))
    path.symlink_to("kept")


def link_all(made: Answered) -> None:
    folder = made.attempt.corrections
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")


def twin(made: Answered) -> None:
    first = made.attempt.corrections / "001.json"
    text = first.read_text().replace('"corrected": true', '"corrected": false')
    first.with_name("0001.json").write_text(text)


@pytest.mark.parametrize(
    ("tamper", "why"),
    [
        (edit(reason="another"), "registered otherwise in the campaign log"),
        (edit(corrected=1), "corrected: Input should be a valid boolean"),
        (edit(more=1), "more: Extra inputs are not permitted"),
        (edit(kind="other"), "neither a correction nor a review"),
        (edit(kind=["review"]), "neither a correction nor"),
        (edit(number=3), "it has number 3"),
        (edit(supersedes=None), "it says that it supersedes None, and that is 1"),
        (edit(quote="never said"), "its quote does not stand in the answer"),
        (edit(case="target"), "it speaks of an answer of other bytes"),
        (edit(check="colour"), "the scoring that it names gave no such label"),
        (edit(checkpoint="../x"), "checkpoint: String should match pattern"),
        (edit(case="../../x"), "case: String should match pattern"),
        (spoil_answer, "it speaks of an answer of other bytes"),
        (spoil_label, "the original label is another"),
        (lose, "correction 2 was registered and is not here"),
        (lose_first, "its numbers have holes"),
        (link, "not a regular file"),
        (link_all, "a link where a folder is expected"),
        (twin, "a number that is not written so"),
    ],
)
def test_what_is_changed_afterwards_shows(
    made: Answered, tamper: Callable[[Answered], None], why: str
) -> None:
    assert correct(*GIVEN) == Exit.OK
    assert correct("attempt-001", *CORRECT, "--fail", *SAID) == Exit.OK
    assert faults(made) == []
    tamper(made)
    assert any(why in what for what in faults(made)), faults(made)


@pytest.mark.parametrize(("lost", "number"), [(lose, 2), (lose_first, 1)])
def test_nothing_is_written_over_what_was_lost(
    made: Answered,
    lost: Callable[[Answered], None],
    number: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert correct(*GIVEN) == Exit.OK
    assert correct("attempt-001", *CORRECT, "--fail", *SAID) == Exit.OK
    lost(made)
    before = [path.read_bytes() for path in corrections.files(made.attempt.corrections)]
    assert correct("attempt-001", *CORRECT[:-1], "explains", "--fail", *SAID) == Exit.TASK_PACK
    assert f"{number:03d}.json is not here" in capsys.readouterr().err
    assert [path.read_bytes() for path in corrections.files(made.attempt.corrections)] == before
    assert len(registered(made)) == 2


def test_a_copy_without_the_log_or_the_answers_is_no_finding(made: Answered) -> None:
    assert correct(*GIVEN) == Exit.OK
    shutil.rmtree(made.scoring.replay.checkpoints)
    assert faults(made, log=False) == []
    assert faults(made) == []


def test_a_damaged_record_is_a_fault_that_is_shown_and_stops_the_next_writer(
    made: Answered, capsys: pytest.CaptureFixture[str]
) -> None:
    assert correct(*GIVEN) == Exit.OK
    path = made.attempt.corrections / "001.json"
    path.write_text(path.read_text().replace('"number": 1', '"number": 4'))
    assert run("show", "attempt-001") == Exit.OK
    assert "it has number 4" in capsys.readouterr().out
    assert correct("attempt-001", *CORRECT, "--fail", *SAID) == Exit.TASK_PACK
    path.write_text(path.read_text().replace('"format": 1', '"format": 9'))
    assert run("show", "attempt-001") == Exit.OK
    assert "has format 9" in capsys.readouterr().out


def test_names_beside_the_records_count_for_nothing(made: Answered) -> None:
    assert correct(*GIVEN) == Exit.OK
    (made.attempt.corrections / ".abcdefgh.tmp").write_text("half")
    assert faults(made) == []
    twin(made)
    assert [path.name for path in corrections.files(made.attempt.corrections)] == ["001.json"]
