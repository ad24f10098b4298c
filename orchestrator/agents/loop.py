"""Our own small agent: a model, a shell, and a loop. It speaks Chat Completions.

The conversation is kept here, on the host; the model's commands run in the container. Read it from
the top: what the model is told, the one tool it has, and what is done with each of its answers.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import override

from orchestrator.domain.container import ExecResult
from orchestrator.domain.model import Dialect
from orchestrator.ports import Agent, AgentSession, ModelRefused
from orchestrator.storage.pack import Pack

NUDGES = 3
REFUSALS = 20
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 60.0
_SENSELESS = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
_SHOWN = 16_000
"""Characters of a command's output that the model sees: half from its head, half from its end."""

_SYSTEM = (
    "You work alone in a Linux container without a network, at /workspace. Use the tool `shell`, "
    "one command at a time; each runs in a new bash. Nobody reads your messages or answers "
    "questions. When you are done, hand in with /opt/harness/submit.sh."
)
_NUDGE = (
    "You called no tool. {minutes:.0f} minutes are left. If you are done, hand in with "
    "/opt/harness/submit.sh, or give up with /opt/harness/no_candidate.sh REASON; else go on."
)
_SHELL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "shell",
        "description": "Run a bash command in /workspace and see what it prints.",
        "parameters": {
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "What bash -c is given."},
                "timeout": {"type": "number", "description": "Seconds after which it is ended."},
            },
            "required": ["command"],
        },
    },
}


@dataclass(frozen=True)
class LoopAgent(Agent):
    """Asks its model what to do until the model submits, or no longer does anything."""

    pack: Pack

    @property
    @override
    def name(self) -> str:
        return "loop"

    @property
    @override
    def digest(self) -> str:
        return "sha256:" + hashlib.sha256(Path(__file__).read_bytes()).hexdigest()

    @property
    @override
    def interactive(self) -> bool:
        return False

    @property
    @override
    def dialect(self) -> Dialect | None:
        return Dialect.CHAT

    @override
    def run(self, session: AgentSession) -> None:
        messages: list[Mapping[str, Any]] = [
            {"role": "system", "content": _SYSTEM},
            {"role": "user", "content": session.instruction},
        ]
        nudges = 0
        while not session.stopping.is_set():
            message = next_message(session, messages, [_SHELL])
            if message is None:
                return
            messages.append(message)
            if text := message.get("content"):
                session.say(str(text))
            for call in message.get("tool_calls", ()):
                messages.append(_use(session, call))
                if session.stopping.is_set():
                    return
            if "tool_calls" not in message:
                if nudges == NUDGES:
                    return
                nudges += 1
                session.note("agent_nudged", nudge=nudges)
                words = _NUDGE.format(minutes=session.time_left() / 60)
                messages.append({"role": "user", "content": words})


def next_message(
    session: AgentSession,
    messages: list[Mapping[str, Any]],
    tools: list[Mapping[str, Any]],
    ask: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
) -> Mapping[str, Any] | None:
    """Ask the model; try again where its provider failed, and give up where it refused: None.

    ``ask`` stands in for the session's own.
    """
    model, ask = session.model, ask or session.ask
    body: dict[str, Any] = {"model": model.name, "messages": messages}
    if tools:
        body["tools"] = tools
    if model.effort:
        body["reasoning_effort"] = model.effort
    for refusal in range(REFUSALS):
        try:
            message = ask(body)["choices"][0]["message"]
        except ModelRefused as refused:
            session.say(f"(the model did not answer: {refused})")
            if not session.provider_failed():
                return None
        except (KeyError, IndexError, TypeError):
            session.say("(the model's answer holds no message)")
        else:
            if isinstance(message, dict):
                return _kept(message)
        pause = min(_FIRST_PAUSE * 2**refusal, _LONGEST_PAUSE)
        session.note("agent_resumed", resumption=refusal + 1)
        if session.stopping.wait(pause):
            return None
    return None


def _kept(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Keep of a message what may be sent back."""
    kept: dict[str, Any] = {"role": "assistant", "content": message.get("content")}
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls and all(isinstance(call, dict) for call in calls):
        kept["tool_calls"] = calls
    return kept


def _use(session: AgentSession, call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Run a command that the model asks for, and say how it went."""
    try:
        wanted = json.loads(call["function"]["arguments"])
        command, timeout = str(wanted["command"]), wanted.get("timeout")
        limit = float(timeout) if timeout else None
    except _SENSELESS as fault:
        said = f"the call was not understood: {fault!r}; call shell with a command"
    else:
        said = told(session.execute(command, timeout=limit))
    return {"role": "tool", "tool_call_id": str(call.get("id", "")), "content": said}


def told(result: ExecResult) -> str:
    """Say how a command came out: what it printed, and its end."""
    text = shortened(result.output.decode("utf-8", "backslashreplace"))
    ending = "cut off" if result.exit_code is None else f"exit code {result.exit_code}"
    return f"{text}\n[{ending}, {result.seconds:.1f} s]"


def shortened(text: str) -> str:
    """Leave out the middle of what is too long for a model."""
    if len(text) <= _SHOWN:
        return text
    left = len(text) - _SHOWN
    return f"{text[: _SHOWN // 2]}\n[{left} characters left out]\n{text[-_SHOWN // 2 :]}"
