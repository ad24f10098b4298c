"""The editor's conversation: what its model is told, message by message."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from typing_extensions import override

from orchestrator.agents import loop
from orchestrator.agents.editor import EditorAgent
from orchestrator.agents.loop import NUDGES
from orchestrator.domain.container import ExecResult
from orchestrator.errors import TaskPackError
from orchestrator.ports import ModelRefused
from orchestrator.storage.pack import load_pack
from tests.unit.agents_help import ScriptedSession
from tests.unit.pack_help import TASK, make_pack

CUSTOM = "def forget(model):\n    return model\n# below\n"
EDIT = """\
interface: edit-test-submit
edit: {packages: [bench], editable: {bench/custom.py: [1-2]}, tests: 3}
"""


@dataclass
class Session(ScriptedSession):
    """Accepts a submission, which ends the exploration, unless it is told to refuse."""

    accepts: bool = True

    @override
    def execute(self, command: str, *, timeout: float | None = None) -> ExecResult:
        if self.accepts:
            self.over.set()
        return super().execute(command, timeout=timeout)


@pytest.fixture(autouse=True)
def no_pause() -> Iterator[None]:
    with patch.object(loop, "_FIRST_PAUSE", 0.0):
        yield


def agent(folder: Path, text: str = EDIT) -> EditorAgent:
    bench = folder / "solution/bench"
    bench.mkdir(parents=True)
    (bench / "custom.py").write_text(CUSTOM)
    (bench / "data.bin").write_bytes(b"\xff\xfe")
    (bench / "link.py").symlink_to("custom.py")
    return EditorAgent(load_pack(make_pack(folder, TASK + text)))


def says(*calls: tuple[str, Any], text: str = "") -> dict[str, Any]:
    made = [
        {
            "id": f"c{n}",
            "function": {
                "name": name,
                "arguments": wanted if isinstance(wanted, str) else json.dumps(wanted),
            },
        }
        for n, (name, wanted) in enumerate(calls)
    ]
    return {"choices": [{"message": {"role": "assistant", "content": text, "tool_calls": made}}]}


def run(folder: Path, *answers: Any, accepts: bool = True) -> Session:
    session = Session(answers=[*answers, *[says()] * (NUDGES + 1)], accepts=accepts)
    agent(folder).run(session)
    return session


def answered(session: Session) -> list[str]:
    return [told[1] for told in session.told if told[0] == "output"]


def told(session: Session, what: str) -> list[Any]:
    return [told[1] for told in session.told if told[0] == what]


def replace(content: str, start: int = 2, end: int = 2) -> tuple[str, dict[str, Any]]:
    wanted = {"op": "replace", "filename": "bench/custom.py", "content": content}
    return "edit", {**wanted, "start_line": start, "end_line": end}


REPLACED = "Replaced lines 2-2 by 1. Editable lines of bench/custom.py now: 1-2\n"


def shown(value: str) -> str:
    return f"     1  def forget(model):\n     2      return {value}\n     3| # below"


def test_the_model_is_told_its_files_its_lines_and_how_often_it_may_test(tmp_path: Path) -> None:
    session = run(tmp_path)
    system, user = session.asked[0]["messages"]
    assert "bench/custom.py: 3 lines, editable: 1-2" in system["content"]
    assert "data.bin" not in system["content"]
    assert "You may test 3 times; what is tested last is submitted by itself" in system["content"]
    assert user == {"role": "user", "content": "do it"}
    names = [tool["function"]["name"] for tool in session.asked[0]["tools"]]
    assert names == ["edit", "view", "test", "submit", "undo"]


def test_a_whole_conversation(tmp_path: Path) -> None:
    better = CUSTOM.replace("return model", "return None")
    session = run(
        tmp_path,
        says(("view", {"filename": "bench/custom.py"})),
        says(replace("    return None\n")),
        says(("test", {"filename": "ignored"})),
        says(replace("    return 1\n")),
        says(("undo", {"n": 1})),
        says(replace("    return 2\n"), ("test", {})),
        says(("submit", {"n": 1})),
    )
    assert answered(session) == [
        "bench/custom.py, editable: 1-2\n" + shown("model"),
        REPLACED + shown("None"),
        "Test 1 of 3, 2 left:\nseed 42 digits acc 0.9\n\n[exit code 0, 2.0 s]",
        REPLACED + shown("1"),
        "Undid 1 edit.\nbench/custom.py is editable in 1-2.",
        REPLACED + shown("2"),
        "Test 2 of 3, 1 left:\nseed 42 digits acc 0.9\n\n[exit code 0, 2.0 s]",
        "Test 1 is submitted.",
    ]
    first, second = told(session, "test")
    assert first == {"bench/custom.py": better}
    assert second == {"bench/custom.py": CUSTOM.replace("return model", "return 2")}
    assert told(session, "put") == [first, second, first]
    assert session.commands == ["/opt/harness/submit.sh --allow-empty"]
    assert [note["audit"] for note in session.notes] == ["edit_test", "edit_test", "edit_submit"]
    assert session.notes[-1] == {"audit": "edit_submit", "test": 1, "edits": 3, "changed": 1}


def test_the_third_test_is_submitted_by_itself(tmp_path: Path) -> None:
    session = run(tmp_path, says(("test", {}), ("test", {})), says(("test", ""), ("view", {})))
    assert answered(session)[-1] == (
        "Test 3 of 3, 0 left:\nseed 42 digits acc 0.9\n\n[exit code 0, 2.0 s]\n"
        "That was the last test; it is submitted.\nTest 3 is submitted."
    )
    assert len(answered(session)) == 3
    assert session.notes[-1] == {"audit": "edit_submit", "test": 3, "edits": 0, "changed": 0}


def test_a_refused_submission_is_told_and_another_test_may_be_submitted(tmp_path: Path) -> None:
    session = run(
        tmp_path,
        says(*[("test", {})] * 4),
        says(("submit", {"n": 2})),
        accepts=False,
    )
    last, more, again = answered(session)[-3:]
    refused = "was not accepted:\nprinted\n\n[exit code 0, 0.5 s]"
    assert last.endswith(f"it is submitted.\nError: test 3 {refused}")
    assert more == "Error: all 3 tests are used; submit one of them."
    assert again == f"Error: test 2 {refused}"


@pytest.mark.parametrize(
    ("calls", "why"),
    [
        ([("submit", {"n": 1})], "Error: nothing was tested yet"),
        ([("test", {}), ("submit", {})], "Error: n must be the number of a test, from 1 to 1."),
        ([("test", {}), ("submit", {"n": 2})], "Error: n must be the number of a test, from 1"),
        ([("test", {}), ("submit", {"n": True})], "Error: n must be the number of a test, from"),
        ([("test", {}), ("submit", {"n": [1]})], "Error: n must be the number of a test, from 1 "),
        ([("undo", {})], "Error: nothing to undo."),
        ([("edit", {"op": "create", "filename": "bench/link.py"})], "Error: bench/link.py is ther"),
        ([("view", {"filename": "bench/data.bin"})], "Error: bench/data.bin is no text"),
        ([("view", {"filename": "run.sh"})], "Error: filename must lie in an allowed package"),
    ],
)
def test_what_cannot_be_done_is_an_answer(
    tmp_path: Path, calls: Sequence[tuple[str, Any]], why: str
) -> None:
    session = run(tmp_path, says(*calls))
    assert answered(session)[-1].startswith(why)
    assert session.commands == []


@pytest.mark.parametrize("call", [("shell", {}), ("edit", "[1]"), ("edit", "{"), ("edit", "7")])
def test_a_call_that_is_not_understood_is_answered(tmp_path: Path, call: tuple[str, Any]) -> None:
    session = run(tmp_path, says(call))
    said = session.asked[1]["messages"][-1]
    assert said["tool_call_id"] == "c0"
    assert said["content"].startswith("Error: the call was not understood")
    assert "use edit, view, test, submit, undo." in said["content"]


def test_no_action_is_nudged_three_times(tmp_path: Path) -> None:
    session = run(tmp_path, says(("test", {})))
    assert len(session.asked) == 1 + NUDGES + 1
    assert session.asked[-1]["messages"][-1]["content"] == (
        "You called no tool. 10 minutes and 2 of 3 tests are left. "
        "Go on with edit, view, test or undo, or call submit with the number of a test."
    )
    assert [n["audit"] for n in session.notes] == ["edit_test", *["agent_nudged"] * NUDGES]


def test_a_model_that_is_refused_is_the_end(tmp_path: Path) -> None:
    assert len(run(tmp_path, ModelRefused("no")).asked) == 1


def test_an_answer_is_never_longer_than_a_model_bears(tmp_path: Path) -> None:
    wanted = {"op": "insert", "filename": "bench/custom.py", "after_line": 1}
    session = run(tmp_path, says(("edit", {**wanted, "content": "x" * 100_000})))
    said = answered(session)[0]
    assert len(said) < 17_000
    assert "characters left out" in said


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (EDIT.replace("custom.py", "data.bin"), "bench/data.bin is no text file"),
        (EDIT.replace("1-2", "1-2, 3-4"), "bench/custom.py has 3 lines, not 1-2, 3-4"),
    ],
    ids=["no text", "no such lines"],
)
def test_a_task_whose_lines_are_not_there_is_faulty(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(TaskPackError, match=why):
        agent(tmp_path, text)
