"""The edit-test-submit interface: from a model's edits to the score of their replay."""

import json
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.rig import PUBLISH, Rig, events, final, kill_group, last, until
from tests.e2e.test_models import audits, mock, transcript
from tests.mock_models.server import MockModels
from tests.mock_models.turns import Turn

RUN = (
    PUBLISH
    + """\
. bench/custom.sh
ls /assets/data >&2
for seed in 42 123; do echo "seed $seed digits value $value"; done
touch bench/left-behind
publish 10 $value
"""
)
CUSTOM = "# how good it is\nvalue=0.1\n# the end\n"
BETTER = {"op": "replace", "start_line": 2, "end_line": 2, "filename": "bench/custom.sh"}


def call(tool: str, **arguments: Any) -> Turn:
    return Turn(tool=tool, arguments=arguments)


def edit(content: str) -> Turn:
    return call("edit", content=content, **BETTER)


def pack(rig: Rig, tests: int = 3, **changes: Any) -> Path:
    place = rig.root / "pack/solution/bench"
    place.mkdir(parents=True, exist_ok=True)
    (place / "custom.sh").write_text(CUSTOM)
    rules = {"packages": ["bench"], "editable": {"bench/custom.sh": ["2-2"]}, "tests": tests}
    return rig.pack(RUN, interface="edit-test-submit", edit=rules, **changes)


def explore(rig: Rig, turns: Iterable[Turn], **changes: Any) -> tuple[Path, MockModels]:
    made = pack(rig, **changes)
    with mock(rig, iter(turns)) as models:
        attempt = rig.explore(made, "--agent", "editor", "--model", "mock/mock-1")
    return attempt, models


def answers(models: MockModels) -> list[str]:
    """What the tools answered, as the model saw it with its last request."""
    sent = models.asked[-1].body["messages"]
    return [message["content"] for message in sent if message["role"] == "tool"]


def in_order(answer: str) -> str:
    """What a test wrote to its stdout; where among it the line of stderr comes is open."""
    assert "train\n" in answer
    return answer.replace("train\n", "")


def tried(attempt: Path) -> list[dict[str, Any]]:
    return [e["data"] for e in events(attempt) if e["data"].get("audit") == "edit_test"]


def test_edits_are_tested_submitted_replayed_and_scored(rig: Rig) -> None:
    turns = (edit("value=0.7"), call("test"), edit("value=0.2"), call("test"), call("submit", n=1))
    attempt, models = explore(rig, turns)
    names = [tool["function"]["name"] for tool in models.asked[0].body["tools"]]
    assert names == ["edit", "view", "test", "submit", "undo"]
    captured = last(attempt, "captured")
    assert (captured["reason"], captured["origin"]) == ("agent_explicit_submit", "agent")
    assert [(t["test"], t["edits"], t["exit_code"]) for t in tried(attempt)] == [
        (1, 1, 0),
        (2, 2, 0),
    ]
    first = answers(models)[1]
    assert first.startswith("Test 1 of 3, 2 left:\n")
    assert "seed 42 digits value 0.7\nseed 123 digits value 0.7\n" in in_order(first)
    assert "final" not in first
    assert "exit code 0" in first
    assert "seed 42 digits value 0.2" in answers(models)[3]
    patch = (attempt / "candidate/candidate.patch").read_text()
    assert "+value=0.7" in patch
    assert "left-behind" not in patch
    calls = [
        line["tool"] for line in transcript(attempt) if line["kind"] == "call" and "tool" in line
    ]
    assert calls == ["edit", "test", "edit", "test", "submit"]
    replay = rig.replay(attempt, "--through", "score")
    assert final(replay) == "validated"
    scoring = replay / "score-001"
    assert final(scoring) == "scored"
    assert json.loads((scoring / "summary.json").read_text())["best"]["value"] == 0.7
    rig.nothing_left()


def test_the_last_test_is_submitted_by_itself(rig: Rig) -> None:

    attempt, models = explore(rig, (call("test"), edit("value=0.4"), call("test")), tests=2)
    assert len(models.asked) == 3
    assert last(attempt, "captured")["reason"] == "agent_explicit_submit"
    assert "+value=0.4" in (attempt / "candidate/candidate.patch").read_text()
    said = [line["output"] for line in transcript(attempt) if line["kind"] == "output"][-1]
    assert "That was the last test; it is submitted.\nTest 2 is submitted." in said


def test_a_submission_without_an_edit_is_taken_and_flagged_and_a_test_ends_with_the_proxy(
    rig: Rig,
) -> None:
    evaluator = rig.root / "pack/proxy/fast.sh"
    evaluator.parent.mkdir(parents=True)
    evaluator.write_text("echo proxy of $(cat /out/checkpoints/checkpoint-10/weights.txt)\n")
    proxy = {"command": "proxy/fast.sh", "metric": "guess"}
    attempt, models = explore(rig, (call("test"), call("submit", n=1)), proxy=proxy)
    assert "seed 123 digits value 0.1\nproxy of 0.1\n" in in_order(answers(models)[0])
    assert last(attempt, "captured")["empty"] is True
    assert audits(attempt)[-1] == "edit_submit"
    assert tried(attempt)[0]["edits"] == 0


def test_no_action_is_nudged_three_times_and_the_last_test_is_what_is_left(rig: Rig) -> None:
    turns = (edit("value=0.5"), call("test"), edit("value=0.9"))
    attempt, models = explore(rig, turns)
    captured = last(attempt, "captured")
    assert captured["origin"] == "host_early_exit_capture"
    assert audits(attempt).count("agent_nudged") == 3
    assert "+value=0.5" in (attempt / "candidate/candidate.patch").read_text()
    nudge = models.asked[-1].body["messages"][-1]["content"]
    assert nudge.startswith("You called no tool. ")
    assert "2 of 3 tests are left" in nudge


def test_a_test_that_takes_too_long_is_ended_and_the_conversation_goes_on(rig: Rig) -> None:
    slow = "value=0.1; echo began; sleep 60"
    turns = (edit(slow), call("test"), call("undo"), call("test"), call("submit", n=2))
    attempt, models = explore(rig, turns, explore={"command_wall": "10s"})
    told = answers(models)
    assert told[1].startswith("Test 1 of 3, 2 left:\nbegan\n")
    assert told[1].endswith("Its time was over.")
    assert told[2].startswith("Undid 1 edit.")
    assert last(attempt, "captured")["empty"] is True
    rig.nothing_left()


def test_the_deadline_ends_a_test_that_runs(rig: Rig) -> None:
    turns = (edit("sleep 300"), call("test"))
    attempt, _ = explore(rig, turns, explore={"wall": "12s"})
    captured = last(attempt, "captured")
    assert (captured["reason"], captured["origin"]) == ("phase_deadline", "host_deadline_capture")
    assert "+sleep 300" in (attempt / "candidate/candidate.patch").read_text()
    rig.nothing_left()


def test_a_supervisor_that_is_killed_during_a_test_leaves_nothing_of_it(rig: Rig) -> None:
    turns = (edit("echo began; sleep 300"), call("test"))
    made = pack(rig)
    with mock(rig, iter(turns)):
        process = rig.start("explore", made, "--agent", "editor", "--model", "mock/mock-1")
        printed = until(lambda: list(rig.runs.glob("*/attempt-001/logs/test-1/stdout.log")))[0]
        until(lambda: "began" in printed.read_text())
        kill_group(process)
        process.communicate()
        attempt = rig.settled(printed.parents[2])
    assert final(attempt) == "infrastructure"
    assert (attempt / "kept/workspace/bench/custom.sh").read_text().count("began") == 1
    rig.nothing_left()


def test_a_person_who_interrupts_ends_the_test_too(rig: Rig) -> None:
    turns = (edit("echo began; sleep 300"), call("test"))
    made = pack(rig)
    with mock(rig, iter(turns)):
        process = rig.start("explore", made, "--agent", "editor", "--model", "mock/mock-1")
        printed = until(lambda: list(rig.runs.glob("*/attempt-001/logs/test-1/stdout.log")))[0]
        until(lambda: "began" in printed.read_text())
        kill_group(process, signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert final(printed.parents[2]) == "operator"
    rig.nothing_left()


def test_agents_with_a_shell_are_refused_and_the_editor_wants_its_interface(rig: Rig) -> None:
    made = pack(rig)
    for agent in ("scripted", "loop"):
        done = rig.call("explore", made, "--agent", agent)
        assert done.code == 64
        assert "gives no shell" in done.err
        assert "--agent editor" in done.err
    plain = rig.pack(folder="plain")
    done = rig.call("explore", plain, "--agent", "editor", "--model", "mock/mock-1")
    assert done.code == 64
    assert "is worked on in a shell" in done.err


@pytest.mark.parametrize(
    ("editable", "why"),
    [
        ({"bench/none.sh": ["1-1"]}, "is no text file"),
        ({"bench/custom.sh": ["2-4"]}, "has 3 lines"),
    ],
    ids=["no file", "no such lines"],
)
def test_a_task_that_names_lines_that_are_not_there_is_refused(
    rig: Rig, editable: dict[str, list[str]], why: str
) -> None:
    place = rig.root / "pack/solution/bench"
    place.mkdir(parents=True, exist_ok=True)
    (place / "custom.sh").write_text(CUSTOM)
    rules = {"packages": ["bench"], "editable": editable}
    made = rig.pack(RUN, interface="edit-test-submit", edit=rules)
    done = rig.call("explore", made, "--agent", "editor", "--model", "mock/mock-1")
    assert done.code == 65
    assert why in done.err
