"""What an exploration with a model has besides: its gateway, its agent's package, and the record.

The gateway's exchanges are the host's own word of what the model was asked and said, and of the
tokens. Each puts a line into the transcript; all of them lie whole in ``exchanges.jsonl``.
"""

import hashlib
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from orchestrator.domain.agent_package import InstalledAgent
from orchestrator.domain.model import Exchange, Refusal
from orchestrator.domain.records import AttemptPlan
from orchestrator.evidence.transcript import LineKind, Transcript
from orchestrator.ports import Agent, Clock, ModelRefused, SessionModel
from orchestrator.ports.models import Gateway, GatewaySession, ModelChoice, ModelGateway
from orchestrator.storage.layout import AttemptFolder

SOCKET = "/run/orch/model.sock"
PORT = 8377
"""Of the container's own loopback, where the relay listens."""
RELAY = "relay.py"
_NS = 1_000_000_000
_SERVER_FAULT = 500
_TOO_MANY = 429
_CHAT = "http://model/v1/chat/completions"
_JSON = {"content-type": "application/json"}
_LONGEST_ANSWER = 900.0


def effort_of(effort: str) -> str:
    """Read ``--effort`` as gateways do: empty leaves it to the provider."""
    return "" if effort == "none" else effort


@dataclass(slots=True)
class ModelRoom:
    """An open gateway. Close it with the exploration."""

    gateway: Gateway
    choice: ModelChoice
    transcript: Transcript
    clock: Clock
    deadline_ns: int
    installed: InstalledAgent | None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _failed: bool = False
    _answered_as: set[str] = field(default_factory=set)
    _refused: dict[str, int] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        models: ModelGateway,
        plan: AttemptPlan,
        agent: Agent,
        folder: AttemptFolder,
        transcript: Transcript,
        clock: Clock,
        *,
        owner: tuple[int, int],
        deadline_ns: int,
    ) -> Self:
        """Open the gateway that the plan asks for.

        Raises:
            UsageError: the key has gone since the plan was made.
            InfrastructureError: the host would not give a socket.
        """
        explore = plan.task.explore
        choice = models.choose(plan.model, effort_of(plan.effort), explore.budget)
        rooms: list[Self] = []

        def hear(exchange: Exchange) -> None:
            rooms[0].take(exchange)

        gateway = models.open(
            GatewaySession(
                run_id=plan.run_id,
                choice=choice,
                record=folder.exchanges,
                owner=owner,
                budget=explore.budget,
                max_outage=explore.max_outage,
                auxiliary=dict.fromkeys(agent.auxiliary, choice.name),
                tools=frozenset(explore.provider_tools),
                on_exchange=hear,
            )
        )
        planned = plan.agent_package
        installed = None if planned is None else planned.installed
        room = cls(gateway, choice, transcript, clock, deadline_ns, installed)
        rooms.append(room)
        return room

    @property
    def model(self) -> SessionModel:
        """What the agent is told of its model."""
        return SessionModel(self.choice.name, self.choice.effort, f"http://127.0.0.1:{PORT}")

    def relayed(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Run a program with the relay beside it, for as long as it runs."""
        return ("python3", "-I", f"/opt/harness/{RELAY}", str(PORT), SOCKET, *argv)

    def ask(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask for one chat completion from the host; see ``ports.AgentSession.ask``."""
        import httpx  # noqa: PLC0415 - agents that run in the container need none

        transport = httpx.HTTPTransport(uds=str(self.gateway.socket))
        try:
            with httpx.Client(transport=transport, timeout=_LONGEST_ANSWER) as client:
                sent = json.dumps(dict(body)).encode("ascii")
                answer = client.post(_CHAT, content=sent, headers=_JSON)
                found = _whole(answer.content)
        except (httpx.HTTPError, ValueError, RecursionError) as error:
            self._note(failed=True)
            raise ModelRefused(f"no answer: {error}") from error
        if not answer.is_success or not isinstance(found, dict):
            raise ModelRefused(_told(found))
        return found

    def take(self, exchange: Exchange) -> None:
        """Hear of an exchange that has ended, on a thread of the gateway.

        Raises:
            StorageFullError: the transcript cannot take it.
        """
        if exchange.dialect is None or (not exchange.model and exchange.refusal is None):
            return
        asked = exchange.refusal in {None, Refusal.UPSTREAM, Refusal.BUSY}
        if asked:
            self._note(failed=exchange.status >= _SERVER_FAULT or exchange.status == _TOO_MANY)
        with self._lock:
            if exchange.reply.model:
                self._answered_as.add(exchange.reply.model)
            if exchange.refusal is not None:
                kind = exchange.refusal.value
                self._refused[kind] = self._refused.get(kind, 0) + 1
        usage = exchange.usage
        said: dict[str, Any] = {
            "exchange": exchange.number,
            "model": exchange.reply.model or exchange.model,
            "input": usage.input,
            "cached": usage.cached,
            "output": usage.output,
            "reasoning": usage.reasoning,
            "cost": round(usage.cost, 6),
            "seconds": round(exchange.seconds, 3),
            "time_left": round(max(0.0, (self.deadline_ns - self.clock.boottime_ns()) / _NS), 1),
        }
        if exchange.refusal is not None:
            said |= {"refused": exchange.refusal.value, "why": exchange.message}
        self.transcript.add(LineKind.TOKENS, **said)

    def _note(self, *, failed: bool) -> None:
        with self._lock:
            self._failed = failed

    @property
    def provider_failed(self) -> bool:
        """Whether the last thing that was asked failed for the provider."""
        with self._lock:
            return self._failed

    def facts(self) -> dict[str, Any]:
        """Say what the model came to, for the record of the exploration's end."""
        used = self.gateway.usage()
        with self._lock:
            return {
                "model": {
                    "name": self.choice.model,
                    "upstream": self.choice.upstream,
                    "answered_as": sorted(self._answered_as),
                    "requests": used.requests,
                    "input_tokens": used.input,
                    "cached_tokens": used.cached,
                    "output_tokens": used.output,
                    "reasoning_tokens": used.reasoning,
                    "cost": round(used.cost, 6),
                    "refused": dict(sorted(self._refused.items())),
                },
                "provider_outage_s": round(self.gateway.outage(), 1),
            }


def record_digests(folder: AttemptFolder) -> dict[str, str]:
    """Name what an exploration with a model leaves of it, by the bytes of the files."""
    found = {}
    for path in (folder.transcript, folder.exchanges, folder.raw):
        if path.exists():
            with path.open("rb") as file:
                found[path.name] = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    return found


def _whole(raw: bytes) -> Any:
    """Parse an answer; half a character in it, which could not be sent back, becomes a mark.

    Raises:
        ValueError: it is no JSON.
    """
    text = json.dumps(json.loads(raw), ensure_ascii=False)
    return json.loads(text.encode("utf-8", "replace"))


def _told(answer: object) -> str:
    """Find the words in a provider's refusal."""
    error = answer.get("error") if isinstance(answer, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return str(message or answer)[:500]
