"""Every signal that we send to one container, and why, written down before it is sent.

So whoever takes a run over from a supervisor that died right then knows that one's deed from a
stranger's, and a deadline or a person's wish from the end that the run came to by itself.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from orchestrator.domain.container import ContainerEnd
from orchestrator.domain.outcome import HostFact, KilledBy, StopReason
from orchestrator.domain.schema import Strict
from orchestrator.errors import StorageFullError
from orchestrator.ports import Container
from orchestrator.storage.durable import Appender


class KillIntent(Strict):
    """One line of ``kills.jsonl``: a signal that is about to be sent.

    Attributes:
        reason: why the run has to end.
        facts: what the host knew by then.
    """

    container: str
    signal: str
    reason: StopReason
    facts: tuple[HostFact, ...] = ()


@dataclass(slots=True)
class KillLedger:
    """The signals sent to one container, those of supervisors before us included.

    ``file`` is where they are kept; None for a container that nobody would take over.
    """

    file: Path | None = None
    sent: list[str] = field(default_factory=list)
    begun: KillIntent | None = None
    """What a supervisor before us was about to do, and perhaps did."""
    _noted: bool = False

    @classmethod
    def recall(cls, file: Path) -> Self:
        """Open the ledger at ``file`` with what supervisors before us wrote.

        A line that was cut off while being written was followed by no signal.
        """
        ledger = cls(file)
        lines = file.read_bytes().splitlines() if file.exists() else []
        for line in lines:
            with suppress(ValidationError):
                intent = KillIntent.model_validate_json(line)
                ledger.begun = ledger.begun or intent
                ledger.sent.append(intent.signal)
        return ledger

    def kill(
        self, container: Container, reason: StopReason, facts: Iterable[HostFact] = ()
    ) -> None:
        """Note that the container is killed, and kill it; again when it lives on."""
        intent = KillIntent(
            container=container.id, signal="KILL", reason=reason, facts=tuple(sorted(facts))
        )
        if self.file is not None and not self._noted:
            # On a full disk the note is lost, never the kill: a deadline holds all the same.
            with suppress(StorageFullError), Appender(self.file) as lines:
                lines.append(intent.model_dump(mode="json"))
        self._noted = True
        self.sent.append(intent.signal)
        container.kill(intent.signal)

    def killer(self, end: ContainerEnd | None) -> KilledBy:
        """Tell who sent a deadly signal, from what the engine saw and what we sent."""
        seen = () if end is None else end.signals
        if seen and not set(seen) & set(self.sent):
            return KilledBy.THIRD_PARTY
        return KilledBy.ORCHESTRATOR if self.sent else KilledBy.NOBODY
