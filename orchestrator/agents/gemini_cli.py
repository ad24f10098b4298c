"""Google's Gemini CLI, ``gemini -p``: it speaks generateContent, and brings its own Node."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import override

from orchestrator.agents.cli_agent import CliAgent, Reader, told
from orchestrator.domain.agent_package import PackageSource, Registry
from orchestrator.domain.model import Dialect
from orchestrator.ports import AgentSession, SessionModel
from orchestrator.sandbox import HOME

_SETTINGS = {
    "security": {"auth": {"selectedType": "gemini-api-key"}},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
    "tools": {"exclude": ["google_web_search", "web_fetch"]},
}


@dataclass(frozen=True)
class GeminiCliAgent(CliAgent):
    """Runs ``gemini --output-format stream-json`` without its own confirmations."""

    source: ClassVar[PackageSource] = PackageSource(
        agent="gemini-cli",
        registry=Registry.NPM,
        package="@google/gemini-cli",
        version="0.61.0",
        program=(
            "node_modules/node-linux-*/bin/node",
            "node_modules/@google/gemini-cli/bundle/gemini.js",
        ),
        beside=("node-linux-{machine}@22.23.5",),
    )
    speaks: ClassVar[Dialect] = Dialect.GEMINI

    @property
    @override
    def auxiliary(self) -> tuple[str, ...]:
        """What it routes, summarises and checks with, whatever its model is."""
        return (
            "gemini-2.5-flash",
            "gemini-2.5-flash-lite",
            "gemini-3-flash-preview",
            "gemini-3.1-flash-lite",
        )

    @override
    def arguments(self, session: AgentSession, words: str, resumed: str | None) -> tuple[str, ...]:
        again = () if resumed is None else ("--resume", resumed or "latest")
        return (
            *("--model", session.model.name, "--output-format", "stream-json"),
            *("--approval-mode", "yolo", "--skip-trust", *again),
            f"--prompt={words}",
        )

    @override
    def files(self, session: AgentSession) -> Mapping[str, str]:
        settings = {**_SETTINGS, **_effort(session.model)}
        return {f"{HOME}/.gemini/settings.json": json.dumps(settings)}

    @override
    def environment(self, session: AgentSession) -> Mapping[str, str]:
        model = session.model
        return {
            "GOOGLE_GEMINI_BASE_URL": model.origin,
            "GEMINI_API_KEY": model.key,
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
            "GEMINI_CLI_NO_RELAUNCH": "true",
        }

    @override
    def reader(self, session: AgentSession) -> Reader:
        return _GeminiReader(session)


def _effort(model: SessionModel) -> Mapping[str, Any]:
    """Override the thinking that it asks for by itself; a number is a budget of tokens."""
    if not model.effort:
        return {}
    number = model.effort.isdecimal()
    thinking = (
        {"thinkingBudget": int(model.effort)} if number else {"thinkingLevel": model.effort.upper()}
    )
    config = {"generateContentConfig": {"thinkingConfig": thinking}}
    override = {"match": {"model": model.name}, "modelConfig": config}
    return {"modelConfigs": {"customOverrides": [override]}}


class _GeminiReader(Reader):
    """Events of ``stream-json``: ``init``, ``message``, ``tool_use``, ``tool_result``, ``error``.

    A message comes in pieces; it is whole when something else comes.
    """

    def __init__(self, session: AgentSession) -> None:
        super().__init__(session)
        self._said = ""

    @override
    def event(self, event: Mapping[str, Any]) -> None:
        kind = event.get("type")
        if kind == "message":
            if event.get("role") == "assistant":
                self._said = told(self._said + told(event.get("content", "")))
            return
        if self._said:
            self.session.say(self._said)
            self._said = ""
        match kind:
            case "init":
                self.session_id = str(event.get("session_id", ""))
            case "tool_use":
                tool, given = str(event.get("tool_name", "")), event.get("parameters", {})
                self.session.call(tool, told(given))
            case "tool_result":
                failed = None if event.get("status") == "success" else 1
                self.session.output(told(event.get("output", event.get("error", ""))), failed)
            case "error":
                self.session.output(told(event.get("message", "")))
            case _:
                pass
