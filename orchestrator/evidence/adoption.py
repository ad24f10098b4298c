"""Taking a run over from a supervisor that is gone: who did, when, and how long nobody watched."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from orchestrator.domain.records import PhasePlan
from orchestrator.domain.roles import Phase
from orchestrator.errors import GateRefusedError
from orchestrator.evidence.context import Context
from orchestrator.evidence.ownership import claim_of
from orchestrator.lifecycle.machine import Event
from orchestrator.storage.device_locks import DeviceLock
from orchestrator.storage.journal import Journal, Record
from orchestrator.storage.ledger import Reservation

AUDIT = "adopted"
_NS = 1_000_000_000


class Adopter(StrEnum):
    """What took a run over."""

    WATCHDOG = "watchdog"
    COMMAND = "command"


@dataclass(frozen=True, slots=True)
class Adoption:
    """One taking over.

    Attributes:
        by: what does it.
        since_ns: when the last supervisor was gone, on CLOCK_BOOTTIME of this boot; None when
            nobody was there to see it.
        held: what that one had reserved, where it was handed on.
    """

    by: Adopter = Adopter.COMMAND
    since_ns: int | None = None
    held: Reservation | None = None

    @contextmanager
    def reserved(
        self, ctx: Context, plan: PhasePlan, root: Path, journal: Journal
    ) -> Iterator[Reservation | None]:
        """Hold what the run's container uses; reserved anew where nobody handed it on.

        The container runs already: it is not ended because somebody else has the same by now, and
        None stands for that. A device that is shared then shows in the run's telemetry.
        """
        with ExitStack() as stack:
            held = self.held
            if held is None:
                held = _reserve(ctx, plan, root, journal, stack)
            ctx.guard(root, held)
            yield held

    def note(self, ctx: Context, journal: Journal) -> None:
        """Write the taking over into the journal, with the time in which nobody watched.

        Where nobody saw the supervisor die, it was last seen to live at its last event.
        """
        last = journal.view.records[-1]
        now_ns, now = ctx.clock.boottime_ns(), ctx.clock.utc()
        since_ns = last.mono_ns if self.since_ns is None else self.since_ns
        same_boot = last.boot_id == ctx.clock.boot_id()
        gap = max(0, now_ns - since_ns) / _NS if same_boot else None
        began = last.ts if gap is None else (now - timedelta(seconds=gap)).isoformat()
        journal.append(
            Event.NOTED,
            audit=AUDIT,
            by=self.by.value,
            pid=os.getpid(),
            uid=os.geteuid(),
            gap_from=began,
            gap_to=now.isoformat(),
            gap_s=None if gap is None else round(gap, 3),
        )


def _reserve(
    ctx: Context, plan: PhasePlan, root: Path, journal: Journal, stack: ExitStack
) -> Reservation | None:
    """Reserve what the gate gave this run, as far as it is free; let go of with ``stack``."""
    passed = journal.view.last(Event.GATE_PASSED)
    devices: list[DeviceLock] = []
    for uuid in () if passed is None else passed.data.get("gpus", ()):
        found = ctx.ledger.devices.take(uuid, plan.run_id, Phase.REPLAY)
        if isinstance(found, DeviceLock):
            stack.callback(found.release)
            devices.append(found)
        else:
            ctx.say(f"{root} goes on with {uuid}, which {found} has taken meanwhile")
    try:
        held = stack.enter_context(ctx.ledger.reserve(claim_of(plan, Phase.REPLAY, 0, root)))
    except GateRefusedError as refusal:
        ctx.say(f"{root} goes on without a reservation: {refusal}")
        return None
    held.add(tuple(devices))
    return held


def adoptions(records: Iterable[Record]) -> list[Mapping[str, Any]]:
    """List what ``note`` wrote, for a receipt."""
    return [
        {key: value for key, value in record.data.items() if key != "audit"}
        for record in records
        if record.event is Event.NOTED and record.data.get("audit") == AUDIT
    ]
