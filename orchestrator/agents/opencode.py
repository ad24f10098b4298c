"""opencode, ``opencode run``: it speaks Chat Completions."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import override

from orchestrator.agents.cli_agent import CliAgent, Reader, mapping, told
from orchestrator.domain.agent_package import PackageSource, Registry
from orchestrator.domain.model import Dialect
from orchestrator.ports import AgentSession

_OFF = (
    "OPENCODE_DISABLE_AUTOUPDATE",
    "OPENCODE_DISABLE_MODELS_FETCH",
    "OPENCODE_DISABLE_LSP_DOWNLOAD",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS",
)
_NO_NPM = {
    "npm_config_registry": "http://127.0.0.1:9",
    "npm_config_fetch_retries": "0",
    "npm_config_offline": "true",
}
"""It would fetch plugins for each folder of settings, and wait for a registry in vain."""


@dataclass(frozen=True)
class OpencodeAgent(CliAgent):
    """Runs ``opencode run --format json`` with one provider, which is the gateway."""

    source: ClassVar[PackageSource] = PackageSource(
        agent="opencode",
        registry=Registry.NPM,
        package="opencode-ai",
        version="1.18.33",
        program=("node_modules/opencode-linux-*[46]/bin/opencode",),
    )
    speaks: ClassVar[Dialect] = Dialect.CHAT

    @override
    def arguments(self, session: AgentSession, words: str, resumed: str | None) -> tuple[str, ...]:
        again: tuple[str, ...] = ()
        if resumed is not None:
            again = ("--session", resumed) if resumed else ("--continue",)
        model = ("--model", f"orch/{session.model.name}")
        return ("run", "--format", "json", "--auto", *model, *again, "--", words)

    @override
    def environment(self, session: AgentSession) -> Mapping[str, str]:
        model = session.model
        settings = {"reasoningEffort": model.effort} if model.effort else {}
        config = {
            "model": f"orch/{model.name}",
            "small_model": f"orch/{model.name}",
            "autoupdate": False,
            "share": "disabled",
            "permission": {"webfetch": "deny", "websearch": "deny"},
            "provider": {
                "orch": {
                    "npm": "@ai-sdk/openai-compatible",
                    "name": "orch",
                    "options": {"baseURL": f"{model.origin}/v1", "apiKey": model.key},
                    "models": {model.name: {"name": model.name, "options": settings}},
                }
            },
        }
        off = dict.fromkeys(_OFF, "1")
        return {"OPENCODE_CONFIG_CONTENT": json.dumps(config), **off, **_NO_NPM}

    @override
    def reader(self, session: AgentSession) -> Reader:
        return _OpencodeReader(session)


class _OpencodeReader(Reader):
    """Events of ``--format json``: ``text``, ``reasoning``, ``tool_use``, ``error``."""

    @override
    def event(self, event: Mapping[str, Any]) -> None:
        if isinstance(event.get("sessionID"), str):
            self.session_id = event["sessionID"]
        part = mapping(event.get("part"))
        match event.get("type"):
            case "text":
                self.session.say(told(part.get("text", "")))
            case "reasoning":
                self.session.think(told(part.get("text", "")))
            case "tool_use":
                state = mapping(part.get("state"))
                self.session.call(str(part.get("tool", "")), told(state.get("input", {})))
                answer = state.get("output", state.get("error", ""))
                code = mapping(state.get("metadata")).get("exit")
                self.session.output(told(answer), code if isinstance(code, int) else None)
            case "error":
                self.session.output(told(event.get("error", "")))
            case _:
                pass
