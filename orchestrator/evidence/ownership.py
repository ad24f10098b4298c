"""What a run may call its own for as long as it lasts: CPUs, memory, disk, and GPUs proven idle.

Reserved first, for that is told at once; then the devices, locked before the first look at them.
What somebody else has is waited for where the operator asked for that, with nothing held
meanwhile. Last, a container proves that the engine shows it exactly those devices.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.domain.quantity import human
from orchestrator.domain.records import GateCheck, GateRecord, GpuPlan, PhasePlan
from orchestrator.domain.roles import Phase
from orchestrator.errors import GateRefusedError, OrchError, ResourcesBusyError
from orchestrator.evidence.context import Context, save
from orchestrator.storage.ledger import Claim, Reservation

_POLL = 2.0
_NS = 1_000_000_000


@dataclass(slots=True)
class Trail:
    """The gate's evidence as it grows."""

    checks: list[GateCheck] = field(default_factory=list)
    devices: dict[str, Any] | None = None

    def check(self, name: str, probe: Callable[[], str]) -> None:
        """Run one check; its detail is what it found, its refusal what was wrong."""
        try:
            detail = probe()
        except OrchError as refusal:
            self.checks.append(GateCheck(name=name, passed=False, detail=str(refusal)))
            raise
        self.checks.append(GateCheck(name=name, passed=True, detail=detail))


@contextmanager
def owned(
    ctx: Context,
    plan: PhasePlan,
    phases: tuple[Phase, ...],
    claim: Claim,
    checks: Callable[[Trail], None],
    path: Path | None,
) -> Iterator[Reservation]:
    """Hold what a run asks for; its devices are idle when it begins.

    Args:
        phases: which of the run's phases use it, one after the other.
        checks: what is to be checked before.
        path: where the evidence goes, refused or not; None to keep none.

    Raises:
        GateRefusedError: a check said no, or it cannot be had; the reason is one sentence.
        ResourcesBusyError: somebody else has it, and was waited for if that was asked.
        InterruptedByOperator: a person asked for a stop meanwhile.
    """
    started, trail, reason = ctx.now(), Trail(), ""
    held: Reservation | None = None
    with ExitStack() as stack:
        try:
            checks(trail)
            obtained = stack.enter_context(_Obtaining(ctx, plan, phases, claim, trail).run())
            _look_inside(ctx, plan, phases, obtained, trail)
            held = obtained
        except OrchError as refusal:
            reason = str(refusal)
            raise
        finally:
            record = GateRecord(
                passed=held is not None,
                started=started,
                ended=ctx.now(),
                checks=tuple(trail.checks),
                cpuset="" if held is None else held.cpuset,
                gpus=() if held is None else held.gpus,
                devices=trail.devices,
                reason=reason,
            )
            if path is not None:
                save(path, record, replace=True)
        yield held


def _look_inside(
    ctx: Context, plan: PhasePlan, phases: tuple[Phase, ...], held: Reservation, trail: Trail
) -> None:
    """Have a container of each phase prove that it sees exactly its devices."""
    if not held.gpus:
        return
    from orchestrator.evidence.device_probe import require_seen  # noqa: PLC0415 - GPUs only

    for phase in phases:
        if count := devices_of(plan, (phase,)):
            name = f"GPUs in a container of {plan.image_of(phase).reference}"
            probe = partial(require_seen, ctx, plan, phase, held.gpus[:count], held.cpuset)
            trail.check(name, probe)


def named(held: Reservation) -> dict[str, Any]:
    """Say in a journal what a run has for its own; devices by UUID."""
    gpus = {"gpus": list(held.gpus)} if held.gpus else {}
    return {"cpuset": held.cpuset, **gpus}


def claim_of(plan: PhasePlan, phase: Phase, disk: int, folder: Path) -> Claim:
    """Say what a run asks for besides its devices; ``disk`` bytes at ``folder``."""
    need = plan.resources
    return Claim(plan.run_id, phase, need.cpus, need.memory, disk, folder)


def devices_of(plan: PhasePlan, phases: tuple[Phase, ...]) -> int:
    """How many GPUs phases of a run get, one after the other."""
    counts = {} if plan.gpu is None else plan.gpu.counts
    return max((counts.get(phase, 0) for phase in phases), default=0)


def require_driver(ctx: Context, plan: PhasePlan, phases: tuple[Phase, ...], trail: Trail) -> None:
    """Check, before anything long is done, that the host has the GPUs at all.

    A run that asks for none never wakes the driver.

    Raises:
        GateRefusedError: it has not, its driver does not answer, or its library is a stand-in
            that the plan knows nothing of.
    """
    gpu, count = plan.gpu, devices_of(plan, phases)
    if gpu is None or not count:
        return
    from orchestrator.evidence.devices import check_driver  # noqa: PLC0415 - GPUs only

    trail.check("GPU driver", lambda: check_driver(ctx, plan, gpu, count))


@dataclass(slots=True)
class _Obtaining:
    ctx: Context
    plan: PhasePlan
    phases: tuple[Phase, ...]
    claim: Claim
    trail: Trail
    tries: int = 0
    may_pass: bool = False
    said: str = ""

    def run(self) -> Reservation:
        """Try until everything is ours, or waiting is over."""
        began_ns = self.ctx.clock.boottime_ns()
        give_up_ns = began_ns + int(self.ctx.asked.wait * _NS)
        before = len(self.trail.checks)
        while True:
            self.tries += 1
            self.may_pass = False
            del self.trail.checks[before:]
            try:
                return self._try(began_ns)
            except GateRefusedError as refusal:
                passing = self.may_pass or isinstance(refusal, ResourcesBusyError)
                if not passing or self.ctx.clock.boottime_ns() >= give_up_ns:
                    raise
                self._wait(refusal, give_up_ns)

    def _try(self, began_ns: int) -> Reservation:
        with ExitStack() as stack:
            held = stack.enter_context(self._reserve())
            gpu, count = self.plan.gpu, devices_of(self.plan, self.phases)
            if gpu is not None and count:
                self._hunt(gpu, count, held, began_ns)
            stack.pop_all()
            return held

    def _reserve(self) -> Reservation:
        claim, held = self.claim, list[Reservation]()

        def reserve() -> str:
            held.append(self.ctx.ledger.reserve(claim))
            sizes = f"memory {human(claim.memory)}, disk {human(claim.disk)}"
            return f"cpus {held[0].cpuset}, {sizes}"

        self.trail.check("reservation", reserve)
        return held[0]

    def _hunt(self, gpu: GpuPlan, count: int, held: Reservation, began_ns: int) -> None:
        from orchestrator.evidence.devices import Hunt, readable  # noqa: PLC0415 - GPUs only

        waited_ns = self.ctx.clock.boottime_ns() - began_ns
        hunt = Hunt(self.ctx, self.plan.run_id, self.phases[0], gpu, count)

        def find() -> str:
            with readable():
                held.add(hunt.run())
            return ", ".join(held.gpus)

        try:
            self.trail.check("GPUs", find)
        finally:
            self.may_pass = hunt.may_pass
            seen = hunt.evidence().model_copy(
                update={"waited_s": round(waited_ns / _NS, 3), "tries": self.tries}
            )
            self.trail.devices = seen.model_dump(mode="json")

    def _wait(self, refusal: GateRefusedError, give_up_ns: int) -> None:
        """Let some time pass; say once for what."""
        if str(refusal) != self.said:
            self.said = str(refusal)
            self.ctx.say(f"waiting: {refusal}")
        left = (give_up_ns - self.ctx.clock.boottime_ns()) / _NS
        self.ctx.clock.wait(self.ctx.stop.event, min(_POLL, max(0.0, left)))
        self.ctx.stop.check("what it waited for was free")
