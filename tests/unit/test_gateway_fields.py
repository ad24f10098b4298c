"""Fields that a provider could read otherwise than the gateway: efforts by any name, and types."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.adapters.model_gateway.languages import find
from orchestrator.adapters.model_gateway.policy import Policy
from orchestrator.adapters.model_gateway.shape import RefusedError, Scope
from orchestrator.domain.model import Dialect, Refusal
from orchestrator.ports.models import GatewaySession, ModelChoice
from tests.unit.gateway_cases import (
    CASES,
    CHAT_CASE,
    GEMINI_CASE,
    MESSAGES_CASE,
    RESPONSES_CASE,
    Case,
)
from tests.unit.gateway_help import MODEL

SMALL = {"small-1": MODEL}


@dataclass
class Gate:
    """The tables alone, with a run's own effort before them."""

    effort: str = ""
    dropped: list[str] = field(default_factory=list)

    def pass_on(self, case: Case, body: Mapping[str, Any], path: str = "") -> dict[str, Any]:
        """Return what a provider would get."""
        choice = ModelChoice(f"mock/{MODEL}", MODEL, self.effort, tuple(Dialect), "")
        policy = Policy(GatewaySession("0" * 32, choice, Path("unused"), (0, 0), auxiliary=SMALL))
        route = find("POST", (path or case.path).partition("?")[0], tuple(Dialect))
        scope = Scope(dropped=self.dropped)
        passed = policy.hold(route, json.dumps(body).encode(), {"alt": "sse"}, {}, scope)
        sent: dict[str, Any] = json.loads(passed.sent)
        return sent

    def refuse(self, case: Case, body: Mapping[str, Any], path: str = "") -> RefusedError:
        """Return how a request is refused."""
        with pytest.raises(RefusedError) as caught:
            self.pass_on(case, body, path)
        return caught.value


ADAPTIVE = {"type": "adaptive", "display": "summarized"}
CLEARING = {"type": "clear_thinking_20251015", "keep": "all"}
OTHER_EDIT = {"type": "clear_tool_uses_20250919"}
"""Effort of the run, what a request says, and what is sent of it."""
THINKING: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("", {"thinking": {"type": "enabled", "budget_tokens": 31999}}, {}),
    ("", {"thinking": {"type": "disabled"}}, {}),
    ("", {"thinking": {**ADAPTIVE, "budget_tokens": 9}}, {"thinking": ADAPTIVE}),
    ("high", {"thinking": ADAPTIVE}, {"thinking": ADAPTIVE, "output_config": {"effort": "high"}}),
    (
        "high",
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"output_config": {"effort": "high"}},
    ),
    (
        "high",
        {"output_config": {"effort": "high", "task_budget": {"type": "tokens", "total": 9}}},
        {"output_config": {"effort": "high"}},
    ),
    ("4096", {"thinking": ADAPTIVE}, {"thinking": {**ADAPTIVE, "type": "enabled"}}),
    ("4096", {"thinking": {"type": "disabled"}}, {"thinking": {"type": "enabled"}}),
    ("", {"context_management": {"edits": [CLEARING]}}, {}),
    (
        "",
        {"context_management": {"edits": [CLEARING, OTHER_EDIT]}},
        {"context_management": {"edits": [OTHER_EDIT]}},
    ),
]
NAMES = ("thinking", "output_config", "context_management")


@pytest.mark.parametrize(("effort", "said", "expected"), THINKING, ids=str)
def test_a_budget_of_thinking_is_the_runs_own_or_none(
    effort: str, said: dict[str, Any], expected: dict[str, Any]
) -> None:
    gate = Gate(effort)
    sent = gate.pass_on(MESSAGES_CASE, MESSAGES_CASE.streamed(**said))
    if effort.isdecimal():
        assert sent["thinking"].pop("budget_tokens") == int(effort)
    assert {name: sent[name] for name in NAMES if name in sent} == expected
    gone = {place.replace(":", ".").partition(".")[0] for place in gate.dropped}
    assert gone >= said.keys() - expected.keys()


def test_a_budget_beside_the_runs_own_is_refused() -> None:
    thinking = {"type": "enabled", "budget_tokens": 31999}
    google = {"generation_config": {"thinking_config": {"thinking_budget": 31999}}}
    bodies = [
        (MESSAGES_CASE, MESSAGES_CASE.streamed(thinking=thinking)),
        (GEMINI_CASE, GEMINI_CASE.streamed(**google)),
    ]
    for case, body in bodies:
        refused = Gate("4096").refuse(case, body)
        assert refused.kind is Refusal.NOT_ALLOWED
        assert "31999' is not the effort of this run, 4096" in refused.message


OTHER_SPELLINGS = [
    (CHAT_CASE, {"reasoning": {"effort": "xhigh", "max_tokens": 9}}, "reasoning"),
    (CHAT_CASE, {"thinking": {"type": "enabled", "budget_tokens": 9}}, "thinking"),
    (CHAT_CASE, {"chat_template_kwargs": {"enable_thinking": True}}, "chat_template_kwargs"),
    (CHAT_CASE, {"extra_body": {"reasoning_effort": "xhigh"}}, "extra_body"),
    (RESPONSES_CASE, {"reasoning": {"max_tokens": 9}}, "reasoning.max_tokens"),
    (RESPONSES_CASE, {"reasoning_effort": "xhigh"}, "reasoning_effort"),
    (MESSAGES_CASE, {"effort": "max"}, "effort"),
    (GEMINI_CASE, {"generationConfig": {"thinkingConfig": {"thinking_budget": 9}}}, ""),
    (GEMINI_CASE, {"generation_config": {"thinking_config": {"thinkingBudget": 9}}}, ""),
    (GEMINI_CASE, {"thinkingConfig": {"thinkingBudget": 9}}, "thinkingConfig"),
]


@pytest.mark.parametrize(
    ("case", "said", "dropped"), OTHER_SPELLINGS, ids=lambda v: getattr(v, "dialect", None)
)
def test_no_other_spelling_of_an_effort_passes(
    case: Case, said: Mapping[str, Any], dropped: str
) -> None:
    gate = Gate("high")
    sent = str(gate.pass_on(case, case.streamed(**said)))
    assert not [word for word in ("9", "xhigh", "max'", "enable_thinking") if word in sent]
    assert (dropped or "generationConfig.thinkingConfig.thinkingBudget") in gate.dropped


def test_a_request_for_an_auxiliary_model_gets_the_runs_effort_like_its_model() -> None:
    small = {"generationConfig": {"thinkingConfig": {"thinkingLevel": "LOW"}}}
    path = GEMINI_CASE.whole_path.replace(MODEL, "small-1")
    for effort, thinking in (("high", {"thinkingLevel": "high"}), ("512", {"thinkingBudget": 512})):
        sent = Gate(effort).pass_on(GEMINI_CASE, {**GEMINI_CASE.body, **small}, path)
        assert sent["generationConfig"] == {"thinkingConfig": thinking}


def test_compaction_names_the_runs_own_effort_or_none() -> None:
    path = "/v1/responses/compact"
    plain, other = RESPONSES_CASE.body, {"reasoning": {"effort": "xhigh", "summary": "auto"}}
    assert Gate("high").refuse(RESPONSES_CASE, {**plain, **other}, path)
    assert Gate("high").pass_on(RESPONSES_CASE, plain, path) == plain
    sent = Gate().pass_on(RESPONSES_CASE, {**plain, **other}, path)
    assert sent["reasoning"] == {"summary": "auto"}


CONFUSED = [
    (CHAT_CASE, {"stream": 1}, "true or false"),
    (CHAT_CASE, {"stream": "true"}, "true or false"),
    (CHAT_CASE, {"stream": []}, "true or false"),
    (CHAT_CASE, {"stream": True, "stream_options": [1]}, "an object"),
    (CHAT_CASE, {"max_tokens": "100"}, "a number"),
    (CHAT_CASE, {"n": True}, "a number"),
    (CHAT_CASE, {"reasoning_effort": {"value": "high"}}, "text"),
    (CHAT_CASE, {"tools": "web_search"}, "a list"),
    (CHAT_CASE, {"messages": {"0": {"role": "user", "content": "x"}}}, "a list"),
    (RESPONSES_CASE, {"stream": 1}, "true or false"),
    (RESPONSES_CASE, {"reasoning": "high"}, "an object"),
    (RESPONSES_CASE, {"reasoning": [{"effort": "high"}]}, "an object"),
    (RESPONSES_CASE, {"tools": {"type": "web_search"}}, "a list"),
    (RESPONSES_CASE, {"instructions": ["x"]}, "text"),
    (MESSAGES_CASE, {"stream": 1}, "true or false"),
    (MESSAGES_CASE, {"thinking": "enabled"}, "an object"),
    (MESSAGES_CASE, {"thinking": {"type": ["enabled"]}}, "text"),
    (MESSAGES_CASE, {"thinking": {"type": "enabled", "budget_tokens": "9"}}, "a number"),
    (MESSAGES_CASE, {"output_config": "high"}, "an object"),
    (MESSAGES_CASE, {"max_tokens": True}, "a number"),
    (GEMINI_CASE, {"generationConfig": [1]}, "an object"),
    (GEMINI_CASE, {"generationConfig": {"thinkingConfig": "HIGH"}}, "an object"),
    (GEMINI_CASE, {"tools": "googleSearch"}, "an object"),
]


@pytest.mark.parametrize(
    ("case", "said", "expected"), CONFUSED, ids=lambda v: getattr(v, "dialect", None)
)
def test_a_value_of_another_type_is_refused(
    case: Case, said: Mapping[str, Any], expected: str
) -> None:
    refused = Gate().refuse(case, {**case.body, **said})
    assert refused.kind is Refusal.MALFORMED
    assert f"{expected} is expected" in refused.message


NOTHING = {
    CHAT_CASE.dialect: "stream stream_options tools temperature reasoning_effort logprobs",
    RESPONSES_CASE.dialect: "stream reasoning tools temperature instructions parallel_tool_calls",
    MESSAGES_CASE.dialect: "stream thinking output_config tools temperature system",
    GEMINI_CASE.dialect: "",
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.dialect)
def test_null_says_nothing(case: Case) -> None:
    nothing = dict.fromkeys(NOTHING[case.dialect].split())
    assert Gate().pass_on(case, {**case.body, **nothing})


def test_a_shell_of_the_agents_own_machine_passes_with_its_skills_and_no_others() -> None:
    skill = {"name": "x", "description": "y", "path": "/workspace/x"}
    kept = {"type": "skill_reference", "skill_id": "skill_1"}

    def tools(*skills: Mapping[str, Any]) -> dict[str, Any]:
        local = {"type": "local", "skills": list(skills)}
        return {"tools": [{"type": "shell", "environment": local}, {"type": "local_shell"}]}

    sent = Gate().pass_on(RESPONSES_CASE, RESPONSES_CASE.streamed(**tools(skill)))
    assert sent["tools"] == tools(skill)["tools"]
    refused = Gate().refuse(RESPONSES_CASE, RESPONSES_CASE.streamed(**tools(skill, kept)))
    assert "nothing kept at the provider passes" in refused.message
