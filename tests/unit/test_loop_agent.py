"""Our own loop: what its model is told, and what is done with each of its answers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from orchestrator.agents import loop
from orchestrator.agents.loop import NUDGES, REFUSALS, LoopAgent
from orchestrator.ports import ModelRefused
from orchestrator.storage.pack import load_pack
from tests.unit.agents_help import ScriptedSession


@pytest.fixture(autouse=True)
def no_pause() -> Iterator[None]:
    with patch.object(loop, "_FIRST_PAUSE", 0.0):
        yield


def says(text: str = "", *commands: str, arguments: str = "") -> dict[str, Any]:
    calls = [
        {"id": f"c{n}", "function": {"name": "shell", "arguments": arguments or wanted(command)}}
        for n, command in enumerate(commands)
    ]
    return {"choices": [{"message": {"role": "assistant", "content": text, "tool_calls": calls}}]}


def wanted(command: str) -> str:
    return json.dumps({"command": command})


def run(*answers: Any, failed: bool = False, effort: str = "") -> ScriptedSession:
    session = ScriptedSession(answers=list(answers), failed=failed, effort=effort)
    LoopAgent(load_pack(Path("digits_class0"))).run(session)
    return session


END = [says("done")] * (NUDGES + 1)


def test_a_command_is_run_and_its_output_goes_back() -> None:
    session = run(says("look", "ls", "pwd"), *END)
    assert session.commands == ["ls", "pwd"]
    assert session.told[0] == ("say", "look")
    asked = session.asked[1]
    assert asked["model"] == "m-1"
    assert "reasoning_effort" not in asked
    *_, first, second = asked["messages"]
    assert (first["tool_call_id"], second["tool_call_id"]) == ("c0", "c1")
    assert first["content"] == "printed\n\n[exit code 0, 0.5 s]"


def test_the_task_is_the_first_thing_said_and_the_effort_the_configs() -> None:
    session = run(*END, effort="high")
    assert session.asked[0]["messages"][1] == {"role": "user", "content": "do it"}
    assert session.asked[0]["reasoning_effort"] == "high"


def test_a_model_that_does_nothing_is_nudged_and_then_left() -> None:
    session = run(*END)
    assert len(session.asked) == NUDGES + 1
    assert [note["audit"] for note in session.notes] == ["agent_nudged"] * NUDGES
    assert "10 minutes are left" in session.asked[1]["messages"][-1]["content"]


@pytest.mark.parametrize(
    "arguments",
    [
        "no json",
        "[]",
        "{}",
        '"x"',
        '{"command": "x", "timeout": "soon"}',
        f'{{"command": "x", "timeout": {"9" * 400}}}',
        "[" * 100_000,
    ],
)
def test_a_call_that_is_not_understood_is_answered(arguments: str) -> None:
    session = run(says("", "x", arguments=arguments), *END)
    assert session.commands == []
    assert "was not understood" in session.asked[1]["messages"][-1]["content"]


def test_a_refusal_ends_it_and_a_failing_provider_is_asked_again() -> None:
    assert len(run(ModelRefused("spent")).asked) == 1
    session = run(*[ModelRefused("away")] * REFUSALS, failed=True)
    assert len(session.asked) == REFUSALS
    assert {note["audit"] for note in session.notes} == {"agent_resumed"}


def test_an_answer_without_a_message_is_asked_again() -> None:
    nothing = ({"choices": []}, {"choices": [7]}, {"choices": [{"message": "no"}]})
    session = run(*nothing, *END)
    assert len(session.asked) == len(nothing) + len(END)


@pytest.mark.parametrize("calls", [7, [7], "shell", {}])
def test_calls_that_are_none_are_as_if_there_were_none(calls: Any) -> None:
    session = run({"choices": [{"message": {"content": "x", "tool_calls": calls}}]}, *END[1:])
    assert [note["audit"] for note in session.notes] == ["agent_nudged"] * NUDGES
