"""The agent that asks: what its model is told, what is kept of its answers."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from typing_extensions import override

from orchestrator.agents import loop
from orchestrator.agents.answer import MAX_ANSWER, AnswerAgent, kept
from orchestrator.domain.container import ExecResult
from orchestrator.errors import TaskPackError, UsageError
from orchestrator.pipeline.agents import Supply
from orchestrator.ports import ModelRefused
from orchestrator.storage.pack import load_pack
from tests.unit.agents_help import ScriptedSession
from tests.unit.pack_help import TASK, make_pack

ANSWER = """\
interface: answer
answer: {cases: {one: one.md, two: two.md}, repeats: 2}
"""


@dataclass
class Session(ScriptedSession):
    """Answers take a second more each; a submission ends the exploration."""

    left: Iterator[float] = field(default_factory=lambda: iter(_times()))

    @override
    def time_left(self) -> float:
        return next(self.left)

    @override
    def execute(self, command: str, *, timeout: float | None = None) -> ExecResult:
        self.over.set()
        return super().execute(command, timeout=timeout)


def _times() -> Iterator[float]:
    left = 1000.0
    for number in range(1, 100):
        yield left
        left -= number
        yield left


@pytest.fixture(autouse=True)
def no_pause() -> Iterator[None]:
    with patch.object(loop, "_FIRST_PAUSE", 0.0):
        yield


def agent(folder: Path, text: str = ANSWER) -> AnswerAgent:
    folder.mkdir(exist_ok=True)
    for name in ("one", "two"):
        (folder / f"{name}.md").write_text(f"Question {name}?\n")
    return AnswerAgent(load_pack(make_pack(folder, TASK + text)))


def says(content: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": content}}]}


def run(folder: Path, *answers: Any, **changes: Any) -> Session:
    session = Session(answers=list(answers), **changes)
    agent(folder).run(session)
    return session


def put(session: Session) -> list[dict[str, str]]:
    return [told[1] for told in session.told if told[0] == "put"]


def test_each_question_is_asked_afresh_round_by_round(tmp_path: Path) -> None:
    session = run(tmp_path, *map(says, "abcd"), effort="high")
    system = {"role": "system", "content": "do it"}
    questions = [{"role": "user", "content": f"Question {name}?\n"} for name in ("one", "two")]
    expected = {"model": "m-1", "reasoning_effort": "high"}
    assert session.asked == [
        {**expected, "messages": [system, question]} for question in (*questions, *questions)
    ]
    assert [len(files) for files in put(session)] == [2, 3, 4, 5]
    *_, last = put(session)
    assert json.loads(last.pop("answers/times.json")) == {
        "one": {"1": 1.0, "2": 3.0},
        "two": {"1": 2.0, "2": 4.0},
    }
    assert last == {
        "answers/one/1.md": "a",
        "answers/two/1.md": "b",
        "answers/one/2.md": "c",
        "answers/two/2.md": "d",
    }
    assert session.notes[2] == {
        "audit": "answer",
        "case": "one",
        "answer": 2,
        "seconds": 3.0,
        "size": 1,
    }
    assert session.commands == ["/opt/harness/submit.sh --allow-empty"]


def test_a_question_that_is_refused_has_no_answer_and_the_others_go_on(tmp_path: Path) -> None:
    session = run(tmp_path, says("a"), ModelRefused("no"), says("c"), says("d"))
    assert [note["audit"] for note in session.notes] == ["answer", "unanswered", "answer", "answer"]
    assert session.notes[1] == {"audit": "unanswered", "case": "two", "answer": 1}
    assert put(session)[-1].keys() == {
        *("answers/one/1.md", "answers/one/2.md", "answers/two/2.md", "answers/times.json"),
    }


def test_without_any_answer_nothing_is_submitted(tmp_path: Path) -> None:
    session = run(tmp_path, *[ModelRefused("no")] * 4)
    assert session.commands == []
    assert put(session) == []


def test_a_time_is_that_of_the_request_which_was_answered(tmp_path: Path) -> None:
    session = run(tmp_path, {"choices": []}, *map(says, "abcd"))
    assert session.notes[0] == {"audit": "agent_resumed", "resumption": 1}
    assert session.notes[1]["seconds"] == 2.0


def test_the_end_of_the_time_ends_the_asking(tmp_path: Path) -> None:
    session = Session(answers=[says("a"), says("b")])
    session.over.set()
    agent(tmp_path).run(session)
    assert session.commands == []
    assert put(session) == []


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain", "plain"),
        (None, ""),
        ([{"type": "text", "text": "a"}], '[{"type": "text", "text": "a"}]'),
        ("\ud800 \x1b[2J", "\\ud800 \x1b[2J"),
        ("ü" * MAX_ANSWER, "ü" * (MAX_ANSWER // 2)),
        ("a" + "ü" * MAX_ANSWER, "a" + "ü" * ((MAX_ANSWER - 1) // 2)),
    ],
    ids=["text", "none", "parts", "surrogate", "long", "cut inside a character"],
)
def test_what_is_kept_of_an_answer(content: object, text: str) -> None:
    assert kept(content) == text
    assert len(kept(content).encode()) <= MAX_ANSWER


def test_a_task_that_asks_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="asks no questions"):
        AnswerAgent(load_pack(make_pack(tmp_path)))


@pytest.mark.parametrize("name", ["scripted", "loop", "editor", "shell"])
def test_another_agent_is_told_which_one_the_task_wants(tmp_path: Path, name: str) -> None:
    pack = agent(tmp_path).pack
    with pytest.raises(UsageError, match="gives no shell") as refused:
        Supply(_nothing, _nothing).choose(name, pack, model="none", effort="none")
    assert refused.value.remedy == "--agent answer"


def test_an_agent_that_there_is_not_is_told_so(tmp_path: Path) -> None:
    pack = agent(tmp_path).pack
    with pytest.raises(UsageError, match="there is no agent 'answers'") as refused:
        Supply(_nothing, _nothing).choose("answers", pack, model="none", effort="none")
    assert refused.value.remedy == "try one of: answer"


def _nothing() -> Any:
    raise AssertionError("it is not needed")


def test_a_question_that_is_no_text_is_a_fault_of_the_pack(tmp_path: Path) -> None:
    made = agent(tmp_path)
    (tmp_path / "two.md").write_bytes(b"\xff")
    with pytest.raises(TaskPackError, match=r"answer.cases.two: two.md"):
        AnswerAgent(made.pack)


def test_a_question_that_is_missing_is_a_fault_of_the_pack(tmp_path: Path) -> None:
    with pytest.raises(TaskPackError, match=r"answer.cases.one: other.md: no such file"):
        agent(tmp_path, ANSWER.replace("one.md", "other.md"))
