"""What every phase is handed: the adapters, the records and the operator's wishes."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator.domain.container import EngineIdentity
from orchestrator.domain.gate import Asked, PermittedHolder
from orchestrator.domain.records import EngineRecord
from orchestrator.domain.roles import Phase
from orchestrator.domain.schema import Strict
from orchestrator.errors import GateRefusedError, UsageError
from orchestrator.evidence.capped_log import CappedLog
from orchestrator.evidence.kills import KillLedger
from orchestrator.evidence.observer import Observer, Subject
from orchestrator.evidence.supervise import Beat, StopRequest, Watch
from orchestrator.lifecycle.machine import Event
from orchestrator.ports import (
    AgentPackages,
    Clock,
    Container,
    ContainerEngine,
    DeviceProbe,
    Guards,
    ProcessTable,
    TreeStore,
    Views,
    Volumes,
)
from orchestrator.ports.models import ModelGateway
from orchestrator.sandbox import (
    BOOT_LABEL,
    DEADLINE_LABEL,
    INSTANCE_LABEL,
    RUN_LABEL,
    Isolation,
    Users,
)
from orchestrator.storage.assets import AssetStore
from orchestrator.storage.campaign import Campaign
from orchestrator.storage.durable import write_json
from orchestrator.storage.layout import RunsFolder
from orchestrator.storage.ledger import Ledger, Reservation
from orchestrator.storage.supervisor import holders, note_watchdog
from receipts.keys import SigningKey


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a phase came out, as the event to append and its data. Never an exception."""

    event: Event
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Context:
    """The adapters and records a phase works with. Built by ``wiring``; a fake one by tests."""

    runs: RunsFolder
    engine: ContainerEngine
    volumes: Volumes
    views: Views
    isolation: Isolation
    store: TreeStore
    clock: Clock
    devices: DeviceProbe
    processes: ProcessTable
    campaign: Campaign
    ledger: Ledger
    assets: AssetStore
    users: Users
    key: SigningKey
    guards: Guards
    stop: StopRequest
    say: Callable[[str], None]
    beat: Callable[[Beat], None]
    harness: Path
    models: Callable[[], ModelGateway]
    """Opens what is between an agent and its model; built where one has a model."""
    packages: Callable[[], AgentPackages]
    permitted: Callable[[], tuple[PermittedHolder, ...]] = tuple
    """Who may be on a GPU that is to be idle, by this host's ``orch.toml``."""
    asked: Asked = field(default_factory=Asked)
    look: bool = False
    """Nothing will be run: an image or an asset that this host lacks is shown as absent."""

    def now(self) -> str:
        """Return the time for a record, UTC."""
        return self.clock.utc().isoformat()

    def watch(
        self,
        phase: Phase,
        container: Container,
        deadline_ns: int,
        log: CappedLog,
        *,
        outgrown: Callable[[], bool],
        quiet: bool = False,
        kills: Path | None = None,
        subject: Subject | None = None,
    ) -> Watch:
        """Put a container under supervision.

        Args:
            subject: how it is looked at while it runs; None for not at all.
            outgrown: whether a folder of it holds more than it should (``Rooms.outgrown``).
            quiet: keeps the terminal to the agent.
            kills: where our signals are kept for whoever may take the container over.
        """
        beat = _unheard if quiet else self.beat
        return Watch(
            phase,
            container,
            self.clock,
            deadline_ns,
            self.stop,
            log,
            beat,
            outgrown=outgrown,
            kills=KillLedger() if kills is None else KillLedger.recall(kills),
            observer=None if subject is None else self._observer(subject, container),
            on_broken=self._mark_unusable,
        )

    def _observer(self, subject: Subject, container: Container) -> Observer:
        if subject.gpus:
            subject = replace(subject, permitted=self._still_permitted())
        return Observer(subject, container, self.clock, self.processes, self.devices)

    def _still_permitted(self) -> tuple[PermittedHolder, ...]:
        """Read again who may be on a GPU, now that a run is under way.

        Raises:
            GateRefusedError: that cannot be read: a slip in the operator's file says nothing of
                the run, which waits until it is mended.
        """
        try:
            return self.permitted()
        except UsageError as slip:
            raise GateRefusedError(str(slip), remedy=slip.remedy) from slip

    def _mark_unusable(self, uuid: str, reason: str) -> None:
        """Keep a GPU from every run until this host has been restarted."""
        self.ledger.devices.mark_unusable(uuid, reason, self.clock.boot_id())

    def guard(self, root: Path, held: Reservation | None) -> None:
        """Have the run at ``root`` taken over, should this process, which supervises it, die.

        Args:
            held: what stays reserved for whoever takes it over.
        """
        if holders(root).watchdog is not None:
            return
        watchdog = self.guards.watch(root, () if held is None else held.descriptors)
        if watchdog is not None:
            note_watchdog(root, watchdog)

    def engine_record(self) -> EngineRecord:
        """Say which engine answers now."""
        found: EngineIdentity = self.engine.identity()
        return EngineRecord(
            kind=found.kind,
            engine_id=found.engine_id,
            version=found.version,
            incarnation=found.incarnation,
            boot_id=self.clock.boot_id(),
        )

    @property
    def instance(self) -> str:
        """A short name of this runs folder, the same for everyone who opens it."""
        return hashlib.sha256(str(self.runs.root.resolve()).encode()).hexdigest()[:12]

    def own(self, run_id: str) -> Mapping[str, str]:
        """Name the containers of a run by their labels; those of a copied folder's twin are not."""
        return {INSTANCE_LABEL: self.instance, RUN_LABEL: run_id}

    def labels(self, run_id: str, engine: EngineRecord, deadline_ns: int) -> Mapping[str, str]:
        """Label a container so that whoever finds it knows whose it is and when it must be gone."""
        return {
            INSTANCE_LABEL: self.instance,
            RUN_LABEL: run_id,
            BOOT_LABEL: engine.boot_id,
            "orch.engine": engine.engine_id,
            DEADLINE_LABEL: str(deadline_ns),
        }


def _unheard(_beat: Beat) -> None:
    """Tell nobody."""


def container_name(phase: Phase, run_id: str, suffix: str = "") -> str:
    """Name a container; unique because run ids are."""
    return f"orch-{phase.value}-{run_id[:12]}{suffix}"


def save(path: Path, record: Strict, *, replace: bool = False) -> None:
    """Write a record of ours durably."""
    write_json(path, record.model_dump(mode="json", by_alias=True), replace=replace)


def load_json_size_capped(data: bytes) -> Any:
    """Parse bytes that a candidate or an evaluator wrote; non-finite numbers are let through.

    Raises:
        ValueError: not JSON, or a key is given twice.
    """

    def no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a key is given twice")
        return found

    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=no_twins)
    except RecursionError as deep:
        raise ValueError("nested too deeply") from deep
