"""OpenAI's Codex CLI, ``codex exec``: it speaks Responses."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import override

from orchestrator.agents.cli_agent import CliAgent, Reader, mapping, told
from orchestrator.domain.agent_package import PackageSource, Registry
from orchestrator.domain.model import Dialect
from orchestrator.ports import AgentSession

_KEY = "ORCH_MODEL_KEY"


@dataclass(frozen=True)
class CodexAgent(CliAgent):
    """Runs ``codex exec --json`` with a provider of its own, and nothing that calls home."""

    source: ClassVar[PackageSource] = PackageSource(
        agent="codex",
        registry=Registry.NPM,
        package="@openai/codex",
        version="0.171.0",
        program=("node_modules/@openai/codex-linux-*/vendor/*/bin/codex",),
    )
    speaks: ClassVar[Dialect] = Dialect.RESPONSES

    @override
    def arguments(self, session: AgentSession, words: str, resumed: str | None) -> tuple[str, ...]:
        model = session.model
        settings = {
            "model_provider": '"orch"',
            "model_providers.orch.name": '"orch"',
            "model_providers.orch.base_url": f'"{model.origin}/v1"',
            "model_providers.orch.env_key": f'"{_KEY}"',
            "model_providers.orch.wire_api": '"responses"',
            "web_search": '"disabled"',
            "analytics.enabled": "false",
            "check_for_update_on_startup": "false",
        }
        if model.effort:
            settings["model_reasoning_effort"] = f'"{model.effort}"'
        again = () if resumed is None else ("resume", resumed or "--last")
        return (
            *("exec", *again, "--json", "--skip-git-repo-check"),
            *("--dangerously-bypass-approvals-and-sandbox", "--model", model.name),
            *(word for feature in _OFF for word in ("--disable", feature)),
            *(word for name, value in settings.items() for word in ("-c", f"{name}={value}")),
            *("--", words),
        )

    @override
    def environment(self, session: AgentSession) -> Mapping[str, str]:
        return {_KEY: session.model.key}

    @override
    def reader(self, session: AgentSession) -> Reader:
        return _CodexReader(session)


_OFF = ("plugins", "apps", "remote_plugin")


class _CodexReader(Reader):
    """Events of ``codex exec --json``: ``thread.started``, ``item.completed``, ``error``."""

    @override
    def event(self, event: Mapping[str, Any]) -> None:
        match event.get("type"):
            case "thread.started":
                self.session_id = str(event.get("thread_id", ""))
            case "item.started":
                self._begun(mapping(event.get("item")))
            case "item.completed":
                self._done(mapping(event.get("item")))
            case "error":
                self.session.output(told(event.get("message", "")))
            case _:
                pass

    def _begun(self, item: Mapping[str, Any]) -> None:
        if item.get("type") == "command_execution":
            self.session.call("command", told(item.get("command", "")))

    def _done(self, item: Mapping[str, Any]) -> None:
        match item.get("type"):
            case "agent_message":
                self.session.say(told(item.get("text", "")))
            case "reasoning":
                self.session.think(told(item.get("text", "")))
            case "command_execution":
                code = item.get("exit_code")
                text = told(item.get("aggregated_output", ""))
                self.session.output(text, code if isinstance(code, int) else None)
            case "error":
                self.session.output(told(item.get("message", "")))
            case str() as other:
                rest = {name: value for name, value in item.items() if name not in {"id", "type"}}
                self.session.call(other, told(rest))
            case _:
                pass
