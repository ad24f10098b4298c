"""What an exploration's model came to: requests, tokens, cost, outages and what was refused."""

from collections.abc import Mapping
from typing import Any

from orchestrator.domain.records import AttemptPlan
from orchestrator.lifecycle.machine import Event
from orchestrator.report import words
from orchestrator.storage.journal import JournalView

_ENDS = (Event.CAPTURED, Event.DECLINED, Event.INFRASTRUCTURE, Event.OPERATOR)
_NOTES = {"agent_nudged": "nudged", "agent_resumed": "resumed for its provider"}


def lines(plan: AttemptPlan | None, journal: JournalView) -> tuple[tuple[str, str], ...]:
    """Say it as facts; none where there was no model."""
    ends = (journal.last(event) for event in _ENDS)
    data = next((end.data for end in ends if end is not None and "model" in end.data), {})
    model = data.get("model")
    if not isinstance(model, Mapping):
        return ()
    facts = [("model use", _use(model))]
    answered = ", ".join(map(str, _list(model.get("answered_as"))))
    if plan is None or answered != plan.model.partition("/")[2]:
        facts.append(("answered as", answered or "nobody"))
    away = data.get("provider_outage_s")
    if isinstance(away, int | float) and away > 0:
        facts.append(("provider away", words.duration(away)))
    refused = model.get("refused")
    if isinstance(refused, Mapping) and refused:
        told = (f"{kind} {count}" for kind, count in refused.items())
        facts.append(("refused by the gateway", ", ".join(told)))
    for audit, word in _NOTES.items():
        times = sum(note.data.get("audit") == audit for note in journal.all(Event.NOTED))
        if times:
            facts.append((word, f"{times} times" if times > 1 else "once"))
    return tuple(facts)


def package(plan: AttemptPlan) -> tuple[tuple[str, str], ...]:
    """Say what the agent's package is; nothing where it comes with orch."""
    if plan.agent_package is None:
        return ()
    found = plan.agent_package.package
    text = f"{found.registry} {found.package} {found.version} {words.short_digest(found.digest)}"
    return (("package", text),)


def _use(model: Mapping[str, Any]) -> str:
    def of(name: str) -> str:
        value = model.get(name, 0)
        return f"{value:,}" if isinstance(value, int) else str(value)

    asked = f"{of('input_tokens')} tokens in ({of('cached_tokens')} cached)"
    answered = f"{of('output_tokens')} out ({of('reasoning_tokens')} reasoning)"
    return f"{of('requests')} requests, {asked}, {answered}, cost {model.get('cost')}"


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
