"""Run mini-SWE-agent in a container: ``new|resume MODEL WORDS``; a JSON object a message.

It is its own agent with its own prompts and settings; what is added is that every message is
printed as it comes, and kept, so that a conversation can be gone on with.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from minisweagent.agents.default import AgentConfig, DefaultAgent  # type: ignore[import-not-found]
from minisweagent.config import get_config_from_spec  # type: ignore[import-not-found]
from minisweagent.environments.local import LocalEnvironment  # type: ignore[import-not-found]
from minisweagent.models.litellm_model import LitellmModel  # type: ignore[import-not-found]

_ENVIRONMENT = os.environ  # noqa: TID251 - it runs in the container, where orch is not
STATE = Path(_ENVIRONMENT["DRIVER_STATE"])
PRINTED = ("role", "content", "reasoning_content", "tool_calls")


class PrintingAgent(DefaultAgent):  # type: ignore[misc]
    """The agent as it comes; it prints and keeps its messages."""

    earlier: list[dict[str, Any]] | None = None

    def add_messages(self, *messages: dict[str, Any]) -> list[dict[str, Any]]:
        """Add messages to the conversation; those of an earlier one come first."""
        if self.earlier is not None and not self.messages:
            messages, self.earlier = (*self.earlier, messages[-1]), None
            self.messages.extend(messages)
            return list(messages)
        added: list[dict[str, Any]] = super().add_messages(*messages)
        for message in messages:
            shown = {name: message[name] for name in PRINTED if message.get(name)}
            print(json.dumps(shown, default=str), flush=True)  # noqa: T201
        STATE.write_text(json.dumps(self.messages, default=str), encoding="utf-8")
        return added


def kept() -> list[dict[str, Any]]:
    """Read the conversation so far; a call that ended it gets an answer, as providers insist."""
    told = [m for m in json.loads(STATE.read_text(encoding="utf-8")) if m["role"] != "exit"]
    calls = told[-1].get("tool_calls") or () if told else ()
    return told + [
        {"role": "tool", "tool_call_id": call["id"], "content": "(this ended your turn)"}
        for call in calls
    ]


def main() -> int:
    """Run or resume."""
    how, name, words = sys.argv[1:]
    config = get_config_from_spec("mini.yaml")
    known = set(AgentConfig.model_fields)
    settings = {key: value for key, value in config["agent"].items() if key in known}
    model = dict(config["model"])
    if effort := _ENVIRONMENT["DRIVER_EFFORT"]:
        wanted = {"reasoning_effort": effort, "allowed_openai_params": ["reasoning_effort"]}
        model["model_kwargs"] = {**model.get("model_kwargs", {}), **wanted}
    limit = int(_ENVIRONMENT["DRIVER_COMMAND_LIMIT"])
    agent = PrintingAgent(
        LitellmModel(**{**model, "model_name": f"openai/{name}"}),
        LocalEnvironment(**{**config["environment"], "timeout": limit}),
        **{**settings, "cost_limit": 0.0},  # the gateway holds the budget
    )
    if how == "resume" and STATE.exists():
        agent.earlier = kept()
        agent.config.instance_template = "{{task}}"
    agent.run(words)
    return 0


if __name__ == "__main__":
    sys.exit(main())
