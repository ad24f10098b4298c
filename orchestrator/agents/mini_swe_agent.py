"""mini-SWE-agent: it speaks Chat Completions, and runs with the image's own Python."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import override

from orchestrator.agents.cli_agent import CliAgent, Reader, mapping, told
from orchestrator.domain.agent_package import AGENT_FOLDER, PackageSource, Registry
from orchestrator.domain.model import Dialect
from orchestrator.ports import AgentSession
from orchestrator.sandbox import HOME

_LONGEST_COMMAND = 3600


@dataclass(frozen=True)
class MiniSweAgent(CliAgent):
    """Runs its agent, its model and its settings with a short program that prints each message.

    Its own command line has no session to go on with, and no output to read along.
    """

    source: ClassVar[PackageSource] = PackageSource(
        agent="mini-swe-agent",
        registry=Registry.PYPI,
        package="mini-swe-agent",
        version="2.4.6",
        program=("minisweagent/__init__.py",),
    )
    speaks: ClassVar[Dialect] = Dialect.CHAT
    driver: ClassVar[str] = "mini_swe_agent_driver.py"

    @override
    def arguments(self, session: AgentSession, words: str, resumed: str | None) -> tuple[str, ...]:
        how = "new" if resumed is None else "resume"
        driver = Path(__file__).with_name(self.driver).read_text(encoding="utf-8")
        return ("-c", driver, how, session.model.name, words)

    @override
    def command(self, session: AgentSession) -> tuple[str, ...]:
        return ("python3",)

    @override
    def environment(self, session: AgentSession) -> Mapping[str, str]:
        model = session.model
        return {
            "PYTHONPATH": AGENT_FOLDER,
            "OPENAI_API_KEY": model.key,
            "OPENAI_BASE_URL": f"{model.origin}/v1",
            "OPENAI_API_BASE": f"{model.origin}/v1",
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "MSWEA_SILENT_STARTUP": "1",
            "MSWEA_GLOBAL_CONFIG_DIR": f"{HOME}/.config/mini-swe-agent",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "DRIVER_EFFORT": model.effort,
            "DRIVER_COMMAND_LIMIT": str(int(min(_LONGEST_COMMAND, session.time_left() + 60))),
            "DRIVER_STATE": f"{HOME}/mini-swe-agent.json",
        }

    @override
    def reader(self, session: AgentSession) -> Reader:
        return _MiniReader(session)


class _MiniReader(Reader):
    """The messages of its conversation, as the driver prints them."""

    @override
    def event(self, event: Mapping[str, Any]) -> None:
        text = told(event.get("content") or "")
        match event.get("role"):
            case "assistant":
                if thought := event.get("reasoning_content"):
                    self.session.think(told(thought))
                if text:
                    self.session.say(text)
                calls = event.get("tool_calls")
                for call in calls if isinstance(calls, list) else ():
                    function = mapping(mapping(call).get("function"))
                    self.session.call(
                        str(function.get("name", "")), told(function.get("arguments", ""))
                    )
            case "tool" | "exit":
                self.session.output(text)
            case _:
                pass
