"""What an agent works with besides its container: its session, its model, and their record."""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from orchestrator.domain.agent_package import AGENT_FOLDER
from orchestrator.domain.container import Mount
from orchestrator.domain.model import NO_MODEL
from orchestrator.domain.records import AttemptPlan
from orchestrator.evidence import raw_stream, transcript
from orchestrator.evidence.context import Context
from orchestrator.evidence.model_room import RELAY, SOCKET, ModelRoom, record_digests
from orchestrator.evidence.raw_stream import RawLog
from orchestrator.evidence.session import ContainerSession
from orchestrator.evidence.transcript import Transcript
from orchestrator.evidence.trial import Trials
from orchestrator.lifecycle.machine import Event
from orchestrator.ports import Agent, Container
from orchestrator.ports.models import MAX_RECORD
from orchestrator.storage.journal import Journal
from orchestrator.storage.layout import AttemptFolder


@dataclass(slots=True)
class Desk:
    """Open until the exploration has ended. ``room`` and ``raw`` are None without a model."""

    ctx: Context
    plan: AttemptPlan
    folder: AttemptFolder
    journal: Journal
    deadline_ns: int
    transcript: Transcript
    room: ModelRoom | None = None
    raw: RawLog | None = None

    @classmethod
    def open(
        cls,
        ctx: Context,
        plan: AttemptPlan,
        agent: Agent,
        folder: AttemptFolder,
        journal: Journal,
        deadline_ns: int,
    ) -> Self:
        """Open the transcript and, for an agent with a model, its gateway.

        Raises:
            UsageError: the model's key has gone since the plan was made.
            InfrastructureError: the host would not give a socket.
        """
        desk = cls(
            ctx, plan, folder, journal, deadline_ns, Transcript(folder.transcript, ctx.clock)
        )
        if plan.model != NO_MODEL:
            desk.raw = RawLog(folder.raw)
            desk.room = ModelRoom.open(
                ctx.models(),
                plan,
                agent,
                folder,
                desk.transcript,
                ctx.clock,
                owner=ctx.users.agent,
                deadline_ns=deadline_ns,
            )
        return desk

    @property
    def socket(self) -> Path | None:
        """Of the gateway; None without a model."""
        return None if self.room is None else self.room.gateway.socket

    def session(
        self, container: Container, text: str, stop: threading.Event, trials: Trials | None
    ) -> ContainerSession:
        """Give the agent its hands; ``trials`` is for one without a shell."""
        return ContainerSession(
            container=container,
            clock=self.ctx.clock,
            transcript=self.transcript,
            text=text,
            user=self.ctx.users.agent,
            env={},
            deadline_ns=self.deadline_ns,
            command_wall=self.plan.task.explore.command_wall,
            stop=stop,
            on_leftover=self._note_leftover,
            say_aloud=self.ctx.say,
            on_note=self._note,
            room=self.room,
            raw=self.raw,
            trials=trials,
        )

    def provider_gone(self) -> str | None:
        """Say that the provider stayed away for too long; None while it did not.

        Raises:
            StorageFullError: exchanges can no longer be recorded.
        """
        return None if self.room is None else self.room.gateway.failed()

    def hang_up(self) -> None:
        """End what is being asked of the model: the exploration is over."""
        if self.room is not None:
            self.room.gateway.close()

    def ended(self) -> dict[str, Any]:
        """Close everything, and say what the model came to and what is kept of it."""
        self.close()
        if self.room is None:
            return {}
        return {**self.room.facts(), "records": record_digests(self.folder)}

    def close(self) -> None:
        """Close everything. Calling it twice is fine."""
        self.hang_up()
        self.transcript.close()
        if self.raw is not None:
            self.raw.close()

    def _note(self, what: str, **facts: Any) -> None:
        self.journal.append(Event.NOTED, audit=what, **facts)

    def _note_leftover(self, command: str, pids: tuple[int, ...]) -> None:
        self._note("command_limit", command=command[:200], cleared_pids=list(pids))


def record_size(plan: AttemptPlan) -> int:
    """Say how many bytes the record of an agent and its model may come to."""
    model = 0 if plan.model == NO_MODEL else MAX_RECORD + raw_stream.MAX_BYTES
    return transcript.MAX_BYTES + model


def harness_of(plan: AttemptPlan) -> tuple[str, ...]:
    """Name what an agent with a model needs of the harness besides."""
    return () if plan.model == NO_MODEL else (RELAY,)


def desk_mounts(plan: AttemptPlan, socket: Path | None) -> tuple[Mount, ...]:
    """Bind the agent's package and the gateway's socket, the latter writable: it is bound as it is.

    A view of it would be another inode, which nobody listens at.
    """
    package, found = plan.agent_package, []
    if package is not None:
        found.append(Mount(package.installed.folder, AGENT_FOLDER))
    if socket is not None:
        found.append(Mount(socket, SOCKET, writable=True))
    return tuple(found)
