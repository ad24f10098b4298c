"""A bench for the gate: a plan, the assets it names, and what the gate asks, all in memory."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.adapters.fake_clock import FakeClock
from orchestrator.adapters.in_memory import InMemoryEngine, Inside
from orchestrator.adapters.in_memory_devices import InMemoryDevices
from orchestrator.adapters.in_memory_processes import InMemoryProcesses
from orchestrator.config import bundled
from orchestrator.domain.gate import Asked, PermittedHolder
from orchestrator.domain.records import EngineRecord, ImageRecord, Material, PhasePlan
from orchestrator.domain.roles import DataRole, Phase
from orchestrator.domain.task import Resources
from orchestrator.evidence.context import Context
from orchestrator.evidence.supervise import StopRequest
from orchestrator.evidence.tree import tree_digest
from orchestrator.phases import gate
from orchestrator.sandbox import RUN_LABEL, Isolation, Users
from orchestrator.storage.ledger import Capacity, Ledger


def show_gpus(inside: Inside) -> int:
    """Say what a container that was given GPUs sees."""
    inside.stdout("".join(f"{uuid}\n" for uuid in inside.spec.gpu_uuids).encode())
    return 0


class Bench:
    """A plan, the assets it names, and what the gate asks."""

    def __init__(
        self, folder: Path, program: Callable[[Inside], int] = show_gpus, host: Path | None = None
    ) -> None:
        self.folder = folder
        self.clock = FakeClock()
        images = {"image": {"/bin/bash": b"#!"}}
        self.engine = InMemoryEngine(program, images=images, clock=self.clock)
        self.ledger = Ledger(host or folder / "host", Capacity(1, 1 << 30), self.clock)
        self.stop = StopRequest()
        self.devices = InMemoryDevices(self.clock)
        self.processes = InMemoryProcesses()
        self.permitted: tuple[PermittedHolder, ...] = ()
        self.asked = Asked()
        self.said: list[str] = []
        self.evidence = folder / "gate.json"
        self.assets = {
            name: self._asset(name, role)
            for name, role in (("data/train", DataRole.TRAIN), ("data/final", DataRole.FINAL))
        }

    def _asset(self, name: str, role: DataRole) -> Material:
        place = self.folder / "assets" / name
        place.mkdir(parents=True)
        (place / "rows").write_text(name)
        return Material(role=role, digest=tree_digest(place), source=str(place))

    @property
    def context(self) -> Context:
        identity = self.engine.identity

        def record() -> EngineRecord:
            found = identity()
            return EngineRecord(
                kind=found.kind,
                engine_id=found.engine_id,
                version=found.version,
                incarnation=found.incarnation,
                boot_id=self.clock.boot_id(),
            )

        return cast(
            "Context",
            SimpleNamespace(
                engine=self.engine,
                ledger=self.ledger,
                stop=self.stop,
                devices=self.devices,
                clock=self.clock,
                asked=self.asked,
                processes=self.processes,
                permitted=lambda: self.permitted,
                say=self.said.append,
                users=Users(),
                isolation=Isolation(),
                harness=bundled("harness"),
                labels=lambda run_id, *_: {RUN_LABEL: run_id},
                engine_record=record,
                now=lambda: self.clock.utc().isoformat(),
            ),
        )

    def plan(self, **changes: Any) -> PhasePlan:
        image = self.engine.image("image")
        plan = PhasePlan(
            run_id="r1",
            number=1,
            created="now",
            version="1",
            official=False,
            relaxations=(),
            engine=self.context.engine_record(),
            image=ImageRecord(reference="image", digest=image.digest, engine_id=image.engine_id),
            resources=Resources(cpus=1, memory=1 << 20, disk=1 << 20),
            materials=self.assets,
            harness_digest="tree:v1:sha256:" + "0" * 64,
            wall=60,
        )
        return plan.model_copy(update=changes)

    def open(self, plan: PhasePlan, *phases: Phase) -> Any:
        chosen = phases or (Phase.REPLAY,)
        return gate.passed(self.context, plan, chosen, self.evidence, 1 << 20)

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.evidence.read_text())
        return found

    def refused(self, plan: PhasePlan, error: type[Exception], *phases: Phase) -> dict[str, Any]:
        """Try the gate; return its evidence. Nothing may be held."""
        with pytest.raises(error) as refusal, self.open(plan, *phases):
            pytest.fail("the gate is open")
        assert self.ledger.held() == ()
        record = self.record()
        assert record["passed"] is False
        assert record["reason"] == str(refusal.value)
        return record
