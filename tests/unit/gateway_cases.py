"""One ordinary request of each dialect, and how its provider answers it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.domain.model import Dialect
from tests.mock_models.dialects import CHAT, GEMINI, MESSAGES, RESPONSES, Spelling, encode
from tests.mock_models.turns import Turn
from tests.unit.gateway_help import MODEL

TURN = Turn(
    text="I look first at what is there.",
    thought="What is there to see?",
    tool="bash",
    arguments={"command": "ls -l /workspace"},
)


@dataclass(frozen=True)
class Case:
    dialect: Dialect
    path: str
    whole_path: str
    upstream_path: str
    body: Mapping[str, Any]
    stream: Mapping[str, Any]
    spelling: Spelling
    effort_at: tuple[str, ...]
    error_at: tuple[str, ...]

    def streamed(self, **more: Any) -> dict[str, Any]:
        return {**self.body, **self.stream, **more}

    def events(self, turn: Turn = TURN) -> list[bytes]:
        return [encode(event) for event in self.spelling.events(turn, MODEL)]

    def message(self, reply: Mapping[str, Any]) -> str:
        """Find the words of an error where this dialect's clients look for them."""
        found: Any = reply
        for name in self.error_at:
            found = found[name]
        assert isinstance(found, str)
        return found


CHAT_CASE = Case(
    dialect=Dialect.CHAT,
    path="/v1/chat/completions",
    whole_path="/v1/chat/completions",
    upstream_path="/v1/chat/completions",
    body={"model": MODEL, "messages": [{"role": "user", "content": "go"}]},
    stream={"stream": True},
    spelling=CHAT,
    effort_at=("reasoning_effort",),
    error_at=("error", "message"),
)
RESPONSES_CASE = Case(
    dialect=Dialect.RESPONSES,
    path="/v1/responses",
    whole_path="/v1/responses",
    upstream_path="/v1/responses",
    body={
        "model": MODEL,
        "input": [{"type": "message", "role": "user", "content": "go"}],
        "instructions": "You are careful.",
    },
    stream={"stream": True},
    spelling=RESPONSES,
    effort_at=("reasoning", "effort"),
    error_at=("error", "message"),
)
MESSAGES_CASE = Case(
    dialect=Dialect.MESSAGES,
    path="/v1/messages?beta=true",
    whole_path="/v1/messages?beta=true",
    upstream_path="/v1/messages",
    body={
        "model": MODEL,
        "max_tokens": 100,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "go"}]}],
    },
    stream={"stream": True},
    spelling=MESSAGES,
    effort_at=("output_config", "effort"),
    error_at=("error", "message"),
)
GEMINI_CASE = Case(
    dialect=Dialect.GEMINI,
    path=f"/v1beta/models/{MODEL}:streamGenerateContent?alt=sse",
    whole_path=f"/v1beta/models/{MODEL}:generateContent",
    upstream_path=f"/v1/models/{MODEL}:streamGenerateContent",
    body={"contents": [{"role": "user", "parts": [{"text": "go"}]}]},
    stream={},
    spelling=GEMINI,
    effort_at=("generationConfig", "thinkingConfig", "thinkingLevel"),
    error_at=("error", "message"),
)
CASES = (CHAT_CASE, RESPONSES_CASE, MESSAGES_CASE, GEMINI_CASE)


def at(body: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """Look into a body; None where nothing is."""
    found: Any = body
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def put(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Make a body with one field."""
    for name in reversed(path):
        value = {name: value}
    made: dict[str, Any] = value
    return made
