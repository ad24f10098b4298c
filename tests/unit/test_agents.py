"""Agents that come as programs: how they are started, read along, nudged and resumed."""

import json
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from orchestrator.agents import cli_agent
from orchestrator.agents.claude_code import ClaudeCodeAgent
from orchestrator.agents.cli_agent import NUDGES, RESUMPTIONS, CliAgent
from orchestrator.agents.codex import CodexAgent
from orchestrator.agents.gemini_cli import GeminiCliAgent
from orchestrator.agents.mini_swe_agent import MiniSweAgent
from orchestrator.agents.opencode import OpencodeAgent
from orchestrator.agents.registry import agent_names, make_agent, package_of, split_version
from orchestrator.errors import AgentUnstartedError, UsageError
from orchestrator.storage.pack import Pack, load_pack
from tests.unit.agents_help import Run, ScriptedSession

CLASSES = (CodexAgent, ClaudeCodeAgent, GeminiCliAgent, OpencodeAgent, MiniSweAgent)
BEGUN = '{"type": "thread.started", "thread_id": "t-1"}'


@pytest.fixture(scope="module")
def pack() -> Pack:
    return load_pack(Path("digits_class0"))


@pytest.fixture(autouse=True)
def no_pause() -> Iterator[None]:
    with ExitStack() as stack:
        for name in ("_FIRST_PAUSE", "_ENDED", "_CUT_OFF"):
            stack.enter_context(patch.object(cli_agent, name, 0.0))
        yield


def words_of(session: ScriptedSession) -> list[str]:
    return [argv[-1] for argv, _ in session.started]


def test_an_agent_that_ends_early_is_nudged_in_its_own_session_and_then_left(pack: Pack) -> None:
    session = ScriptedSession(runs=[Run((BEGUN,)) for _ in range(10)])
    CodexAgent(pack).run(session)
    assert len(session.started) == 1 + NUDGES
    assert words_of(session)[0] == "do it"
    for argv, _ in session.started[1:]:
        assert argv[1:4] == ("exec", "resume", "t-1")
        assert argv[-1].startswith("You have ended your turn")
        assert "10 minutes are left" in argv[-1]
    assert [note["audit"] for note in session.notes] == ["agent_nudged"] * NUDGES


def test_an_agent_whose_provider_failed_is_resumed_and_that_is_no_nudge(pack: Pack) -> None:
    failing = [Run((BEGUN,), exit_code=1, provider_failed=True) for _ in range(RESUMPTIONS)]
    session = ScriptedSession(runs=[*failing, Run(), Run()], ends_with=RESUMPTIONS + 2)
    CodexAgent(pack).run(session)
    audits = [note["audit"] for note in session.notes]
    assert audits == ["agent_resumed"] * RESUMPTIONS + ["agent_nudged"]
    assert words_of(session)[1].startswith("The connection to the model was lost")


def test_a_provider_that_fails_without_end_is_not_waited_for_without_end(pack: Pack) -> None:
    session = ScriptedSession(runs=[Run(exit_code=1, provider_failed=True) for _ in range(99)])
    CodexAgent(pack).run(session)
    assert len(session.started) == 1 + RESUMPTIONS + NUDGES


def test_a_program_that_was_ended_with_its_container_is_neither(pack: Pack) -> None:
    session = ScriptedSession(runs=[Run(exit_code=None, provider_failed=True)], ends_with=1)
    CodexAgent(pack).run(session)
    assert len(session.started) == 1
    assert session.notes == []


def test_a_program_that_was_cut_off_while_the_exploration_goes_on_is_resumed(pack: Pack) -> None:
    session = ScriptedSession(runs=[Run((BEGUN,), exit_code=None), Run()], ends_with=2)
    CodexAgent(pack).run(session)
    assert [argv[1:3] for argv, _ in session.started] == [("exec", "--json"), ("exec", "resume")]


def test_an_exploration_that_is_over_starts_nothing_more(pack: Pack) -> None:
    session = ScriptedSession(runs=[Run()])
    session.over.set()
    CodexAgent(pack).run(session)
    assert session.started == []


MISSING = "relay: /opt/agent/codex: No such file or directory"


@pytest.mark.parametrize("code", [126, 127])
def test_a_program_that_cannot_be_run_is_the_hosts_failure(code: int, pack: Pack) -> None:
    session = ScriptedSession(runs=[Run((MISSING,), exit_code=code, asks=False)])
    with pytest.raises(AgentUnstartedError, match=f"exit {code}: {MISSING}"):
        CodexAgent(pack).run(session)
    assert len(session.started) == 1


@pytest.mark.parametrize(
    "first",
    [
        Run((MISSING,), exit_code=127),
        Run((BEGUN,), exit_code=127, asks=False),
        Run((MISSING,), exit_code=1, asks=False),
        Run((MISSING,), exit_code=None, asks=False),
    ],
    ids=["it asked", "it spoke", "it failed", "it was cut off"],
)
def test_what_may_be_an_agents_own_doing_is_never_the_hosts(first: Run, pack: Pack) -> None:
    session = ScriptedSession(runs=[first, *(Run() for _ in range(NUDGES))])
    CodexAgent(pack).run(session)
    assert len(session.started) == 1 + NUDGES


@pytest.mark.parametrize("kind", CLASSES)
def test_model_and_key_reach_the_program_and_nothing_else_does(
    kind: type[CliAgent], pack: Pack
) -> None:
    session, agent = ScriptedSession(), kind(pack)
    argv, env = agent.arguments(session, "w", None), dict(agent.environment(session))
    said = json.dumps([argv, env, dict(agent.files(session))])
    assert "m-1" in said
    assert "http://127.0.0.1:8377" in said
    assert session.model.key in said


@pytest.mark.parametrize("kind", CLASSES)
def test_an_effort_is_handed_on_only_where_one_is_set(kind: type[CliAgent], pack: Pack) -> None:
    def said(effort: str) -> str:
        session, agent = ScriptedSession(effort=effort), kind(pack)
        files = dict(agent.files(session))
        return json.dumps(
            [agent.arguments(session, "w", None), dict(agent.environment(session)), files]
        )

    assert "exacting" in said("exacting").lower()
    assert '"effort' not in said("").lower()


def test_an_effort_in_numbers_is_a_budget_of_thinking(pack: Pack) -> None:
    session = ScriptedSession(effort="16000")
    claude, gemini = ClaudeCodeAgent(pack), GeminiCliAgent(pack)
    assert claude.environment(session)["MAX_THINKING_TOKENS"] == "16000"
    assert "--effort" not in claude.arguments(session, "w", None)
    (settings,) = gemini.files(session).values()
    assert '"thinkingBudget": 16000' in settings


CODEX = (
    {"type": "item.completed", "item": {"type": "reasoning", "text": "hm"}},
    {"type": "item.started", "item": {"type": "command_execution", "command": "ls"}},
    {
        "type": "item.completed",
        "item": {"type": "command_execution", "aggregated_output": "a\n", "exit_code": 0},
    },
    {"type": "item.completed", "item": {"type": "file_change", "id": "i", "changes": ["f"]}},
    {"type": "item.completed", "item": {"type": "agent_message", "text": "done"}},
    {"type": "error", "message": "stream lost"},
)
CLAUDE = (
    {"type": "system", "subtype": "init", "session_id": "s-1"},
    {
        "type": "assistant",
        "message": {
            "content": [
                {"type": "thinking", "thinking": "hm"},
                {"type": "text", "text": "now"},
                {"type": "tool_use", "name": "Bash", "input": {"command": "ls"}},
            ]
        },
    },
    {
        "type": "user",
        "message": {
            "content": [
                {"type": "tool_result", "content": [{"type": "text", "text": "a"}]},
                {"type": "tool_result", "content": "no", "is_error": True},
            ]
        },
    },
)
GEMINI = (
    {"type": "init", "session_id": "g-1"},
    {"type": "message", "role": "user", "content": "do it"},
    {"type": "message", "role": "assistant", "content": "no", "delta": True},
    {"type": "message", "role": "assistant", "content": "w", "delta": True},
    {"type": "tool_use", "tool_name": "run_shell_command", "parameters": {"command": "ls"}},
    {"type": "tool_result", "status": "success", "output": "a"},
    {"type": "tool_result", "status": "error", "output": "no"},
)
OPENCODE = (
    {"type": "text", "sessionID": "o-1", "part": {"text": "now"}},
    {
        "type": "tool_use",
        "part": {
            "tool": "bash",
            "state": {"input": {"command": "ls"}, "output": "a", "metadata": {"exit": 0}},
        },
    },
    {"type": "error", "error": {"name": "APIError"}},
)
MINI = (
    {"role": "system", "content": "you are"},
    {
        "role": "assistant",
        "content": "now",
        "reasoning_content": "hm",
        "tool_calls": [{"function": {"name": "bash", "arguments": '{"command": "ls"}'}}],
    },
    {"role": "tool", "content": "a"},
)
LS = '{"command": "ls"}'


@pytest.mark.parametrize(
    ("kind", "stream", "session_id", "told"),
    [
        (
            CodexAgent,
            CODEX,
            "",
            [
                ("think", "hm"),
                ("call", "command", "ls"),
                ("output", "a\n", 0),
                ("call", "file_change", '{"changes": ["f"]}'),
                ("say", "done"),
                ("output", "stream lost", None),
            ],
        ),
        (
            ClaudeCodeAgent,
            CLAUDE,
            "s-1",
            [
                ("think", "hm"),
                ("say", "now"),
                ("call", "Bash", LS),
                ("output", "a", None),
                ("output", "no", 1),
            ],
        ),
        (
            GeminiCliAgent,
            GEMINI,
            "g-1",
            [
                ("say", "now"),
                ("call", "run_shell_command", LS),
                ("output", "a", None),
                ("output", "no", 1),
            ],
        ),
        (
            OpencodeAgent,
            OPENCODE,
            "o-1",
            [
                ("say", "now"),
                ("call", "bash", LS),
                ("output", "a", 0),
                ("output", '{"name": "APIError"}', None),
            ],
        ),
        (
            MiniSweAgent,
            MINI,
            "",
            [("think", "hm"), ("say", "now"), ("call", "bash", LS), ("output", "a", None)],
        ),
    ],
)
def test_a_stream_becomes_a_transcript(
    kind: type[CliAgent],
    stream: tuple[dict[str, Any], ...],
    session_id: str,
    told: list[tuple[Any, ...]],
    pack: Pack,
) -> None:
    session = ScriptedSession()
    reader = kind(pack).reader(session)
    for event in stream:
        reader.take(json.dumps(event))
    assert session.told == told
    assert reader.session_id == session_id


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize(
    "line",
    [
        "Reading prompt",
        "{",
        "[1]",
        "{}",
        '{"type": 7}',
        '{"type": "item.completed", "item": 3}',
        '{"type": "assistant", "message": {"content": [1, {"type": "text", "text": {"a": 1}}]}}',
        '{"type": "tool_use", "part": {"state": []}}',
        '{"role": "assistant", "content": 3, "tool_calls": {"a": 1}}',
        '{"a": ' * 3000,
        '{"type": ["assistant"], "role": [], "session_id": 1}',
    ],
)
def test_a_stream_may_hold_anything(kind: type[CliAgent], line: str, pack: Pack) -> None:
    kind(pack).reader(ScriptedSession()).take(line)


def test_what_can_just_be_read_may_be_nested_too_deeply_to_be_written(pack: Pack) -> None:
    reader = CodexAgent(pack).reader(ScriptedSession())
    for depth in range(600, 1000):
        nested = "[" * depth + "]" * depth
        item = '{"type": "agent_message", "text": %s}' % nested  # noqa: UP031 - full of braces
        reader.take('{"type": "item.completed", "item": %s}' % item)  # noqa: UP031


def test_a_message_without_end_is_kept_in_bounds(pack: Pack) -> None:
    session = ScriptedSession()
    reader = GeminiCliAgent(pack).reader(session)
    piece = json.dumps({"type": "message", "role": "assistant", "content": "x" * 60_000})
    tracemalloc.start()
    for _ in range(200):
        reader.take(piece)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    reader.take('{"type": "result"}')
    assert session.told == [("say", "x" * 65_536)]
    assert peak < 2 * 1024**2


@pytest.mark.parametrize("named", ["\\ud800", "--config=x", "a\\u0000b", "x" * 100_000])
def test_a_session_that_is_named_by_what_no_program_would_is_the_latest(
    named: str, pack: Pack
) -> None:
    begun = BEGUN.replace("t-1", named)
    session = ScriptedSession(runs=[Run((begun,)) for _ in range(NUDGES + 1)])
    CodexAgent(pack).run(session)
    assert [argv[3] for argv, _ in session.started[1:]] == ["--last"] * NUDGES


def test_every_agent_is_found_by_its_name_and_version(pack: Pack) -> None:
    assert {kind.source.agent for kind in CLASSES} <= set(agent_names())
    for kind in CLASSES:
        source = kind.source
        assert package_of(source.agent) == source
        made = make_agent(f"{source.agent}@{source.version}", pack)
        assert (made.name, made.package) == (source.agent, source)
        assert made.digest.startswith("sha256:")
    assert package_of("scripted") is None
    assert split_version("codex@1.2") == ("codex", "1.2")
    assert split_version("codex") == ("codex", None)
    with pytest.raises(UsageError, match="no agent 'codx'") as refusal:
        package_of("codx")
    assert refusal.value.remedy == "try one of: codex"
