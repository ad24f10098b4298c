"""Anthropic's Claude Code, ``claude -p``: it speaks Messages."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import override

from orchestrator.agents.cli_agent import CliAgent, Reader, mapping, told
from orchestrator.domain.agent_package import PackageSource, Registry
from orchestrator.domain.model import Dialect
from orchestrator.ports import AgentSession

_NAMES = (
    "ANTHROPIC_MODEL",
    "ANTHROPIC_SMALL_FAST_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "CLAUDE_CODE_SUBAGENT_MODEL",
)
"""Every variable by which it would choose a further model: all name the config's own."""
_OFF = (
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
    "DISABLE_AUTOUPDATER",
    "DISABLE_ERROR_REPORTING",
    "DISABLE_TELEMETRY",
    "DISABLE_COST_WARNINGS",
)
_AN_HOUR_MS = "3600000"


@dataclass(frozen=True)
class ClaudeCodeAgent(CliAgent):
    """Runs ``claude -p --output-format stream-json`` without its own confirmations."""

    source: ClassVar[PackageSource] = PackageSource(
        agent="claude-code",
        registry=Registry.NPM,
        package="@anthropic-ai/claude-code",
        version="2.1.332",
        program=("node_modules/@anthropic-ai/claude-code-linux-*[0-9]/claude",),
    )
    speaks: ClassVar[Dialect] = Dialect.MESSAGES

    @override
    def arguments(self, session: AgentSession, words: str, resumed: str | None) -> tuple[str, ...]:
        model = session.model
        again: tuple[str, ...] = ()
        if resumed is not None:
            again = ("--resume", resumed) if resumed else ("--continue",)
        return (
            *("-p", "--output-format", "stream-json", "--verbose"),
            *("--dangerously-skip-permissions", "--model", model.name),
            *(("--effort", model.effort) if model.effort and not model.effort.isdecimal() else ()),
            *("--disallowedTools", "WebSearch,WebFetch"),
            *again,
            *("--", words),
        )

    @override
    def environment(self, session: AgentSession) -> Mapping[str, str]:
        model = session.model
        return {
            "ANTHROPIC_BASE_URL": model.origin,
            "ANTHROPIC_API_KEY": model.key,
            "IS_SANDBOX": "1",
            "BASH_DEFAULT_TIMEOUT_MS": _AN_HOUR_MS,
            "BASH_MAX_TIMEOUT_MS": _AN_HOUR_MS,
            **({"MAX_THINKING_TOKENS": model.effort} if model.effort.isdecimal() else {}),
            **dict.fromkeys(_NAMES, model.name),
            **dict.fromkeys(_OFF, "1"),
        }

    @override
    def reader(self, session: AgentSession) -> Reader:
        return _ClaudeReader(session)


class _ClaudeReader(Reader):
    """Events of ``stream-json``: ``system``, ``assistant``, ``user``, ``result``."""

    @override
    def event(self, event: Mapping[str, Any]) -> None:
        kind = event.get("type")
        if isinstance(event.get("session_id"), str):
            self.session_id = event["session_id"]
        if isinstance(kind, str) and kind in {"assistant", "user"}:
            content = mapping(event.get("message")).get("content")
            for block in content if isinstance(content, list) else ():
                self._block(mapping(block))

    def _block(self, block: Mapping[str, Any]) -> None:
        match block.get("type"):
            case "text":
                self.session.say(told(block.get("text", "")))
            case "thinking":
                self.session.think(told(block.get("thinking", "")))
            case "tool_use":
                self.session.call(str(block.get("name", "")), told(block.get("input", {})))
            case "tool_result":
                failed = 1 if block.get("is_error") is True else None
                self.session.output(told(_text(block.get("content", ""))), failed)
            case _:
                pass


def _text(content: object) -> object:
    """Put the text blocks of a result together."""
    if not isinstance(content, list):
        return content
    return "\n".join(str(mapping(part).get("text", "")) for part in content)
