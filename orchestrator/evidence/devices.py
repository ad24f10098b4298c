"""Finding GPUs that qualify, that nobody has, and that are idle for long enough: the gate's hunt.

A device is locked before the first look at it, and let go again where something speaks against
it. With ``auto`` the next one that qualifies is then tried; devices that were asked for by name
have no substitutes.
"""

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

from orchestrator.domain.device import Device, DeviceLibrary
from orchestrator.domain.gate import PASSING, STAND_IN, WORTH_WAITING, Finding, Refusal
from orchestrator.domain.gate_evidence import DeviceEvidence, DeviceRecord
from orchestrator.domain.quantity import human
from orchestrator.domain.records import GpuPlan, PhasePlan
from orchestrator.domain.roles import Phase
from orchestrator.domain.task import GpuSpec
from orchestrator.errors import (
    DeviceLostError,
    DeviceUnreadableError,
    GateRefusedError,
    ResourcesBusyError,
)
from orchestrator.evidence.claims import claimed
from orchestrator.evidence.context import Context
from orchestrator.evidence.idleness import SAMPLE_EVERY, Rule, Seen, Window
from orchestrator.evidence.sample_log import SampleLog
from orchestrator.storage.device_locks import DeviceLock

_SHORTEST_PAUSE = 0.05
_NS = 1_000_000_000
_LISTED = "orch gpus lists what this host has"
_RESET = "reset it (nvidia-smi --gpu-reset), or have it repaired"
_REMEDIES: Mapping[Refusal, str] = MappingProxyType(
    {
        Refusal.LEASED: "wait for it with --wait 2h; orch gpus shows who has what",
        Refusal.RESERVED: "stop that container, or wait for its end with --wait 2h",
        Refusal.PROCESS: "wait with --wait 2h, or permit it in orch.toml if it belongs there",
        Refusal.UTILIZED: "wait with --wait 2h; orch gpus shows who uses what",
        Refusal.MEMORY: "find who has it open (fuser -v /dev/nvidia*), or reset the GPU",
        Refusal.REMAP: _RESET,
        Refusal.XID: _RESET,
        Refusal.LOST: "reset the GPU or reboot; it is marked unusable until then",
        Refusal.MIG: "choose an instance; " + _LISTED,
        Refusal.ABSENT: _LISTED,
        Refusal.UNQUALIFIED: "see gpu: in task.yaml; " + _LISTED,
        Refusal.CANNOT_TELL: "use a device whose driver tells it, or a newer driver",
        Refusal.GAP: "the host is overloaded, or its driver hangs; try again",
    }
)


@dataclass(slots=True)
class _Chosen:
    device: Device
    lock: DeviceLock
    window: Window


class Hunt:
    """One try to get ``count`` devices for a run; ``evidence`` tells afterwards what was seen."""

    def __init__(self, ctx: Context, run_id: str, phase: Phase, gpu: GpuPlan, count: int) -> None:
        self._ctx = ctx
        self._run_id = run_id
        self._phase = phase
        self._gpu = gpu
        self._count = count
        self._rule = Rule(gpu.gate, ctx.permitted())
        self._log = SampleLog(self._rule, ctx.clock.boottime_ns())
        self._library: DeviceLibrary | None = None
        self._listed: tuple[Device, ...] = ()
        self._candidates: deque[Device] = deque()
        self._chosen: list[_Chosen] = []
        self._findings: list[Finding] = []
        self._looked_ns = 0

    def run(self) -> tuple[DeviceLock, ...]:
        """Return the locks of devices that were idle all through the window.

        Raises:
            GateRefusedError: there are not enough of them; none is held then.
            DeviceUnreadableError: the driver does not answer.
            InterruptedByOperator: a person asked for a stop meanwhile.
        """
        try:
            self._library = self._ctx.devices.library()
            self._listed = self._ctx.devices.devices()
            self._candidates = deque(self._qualified())
            while True:
                while len(self._chosen) < self._count:
                    self._take()
                self._look()
                if self._idle() and not self._drop_claimed():
                    return tuple(chosen.lock for chosen in self._chosen)
                self._pause()
        except BaseException:
            for chosen in self._chosen:
                chosen.lock.release()
            raise

    def evidence(self) -> DeviceEvidence:
        """Say what was seen, and what came of it."""
        untold = self._log.unsupported
        return DeviceEvidence(
            library=self._library,
            asked=self._gpu.asked,
            window_s=self._gpu.gate.idle_for,
            max_memory_used=self._gpu.gate.max_memory_used,
            max_utilization=self._gpu.gate.max_utilization,
            permitted=self._rule.permitted,
            devices=tuple(_device_record(chosen.device) for chosen in self._chosen),
            refusals=tuple(self._findings),
            holders=self._log.holders,
            samples=tuple(self._log.rows),
            unsupported={uuid: tuple(sorted(what)) for uuid, what in untold.items() if what},
        )

    def _qualified(self) -> Iterator[Device]:
        """Go through the devices that may be tried; note what speaks against those asked for."""
        known = {device.uuid: device for device in self._listed}
        for uuid in self._gpu.asked or tuple(known):
            mark = self._ctx.ledger.devices.mark(uuid, self._ctx.clock.boot_id())
            if mark is not None:
                sentence = f"{uuid} is not to be used until the host is restarted: {mark.reason}"
                self._findings.append(Finding(Refusal.UNUSABLE, uuid, sentence))
            elif uuid not in known:
                sentence = f"this host has no GPU {uuid}"
                self._findings.append(Finding(Refusal.ABSENT, uuid, sentence))
            elif why := unqualified(known[uuid], self._gpu.qualify):
                self._findings.append(Finding(Refusal.UNQUALIFIED, uuid, why))
            else:
                yield known[uuid]

    def _take(self) -> None:
        """Choose the next candidate, unless somebody has it.

        Raises:
            GateRefusedError: none is left.
        """
        if not self._candidates:
            raise self._refusal()
        device = self._candidates.popleft()
        lock = self._ctx.ledger.devices.take(device.uuid, self._run_id, self._phase)
        if isinstance(lock, DeviceLock):
            self._chosen.append(_Chosen(device, lock, Window(device, self._rule)))
            self._drop_claimed()
        else:
            sentence = f"{device.uuid} is held by run {lock}"
            self._findings.append(Finding(Refusal.LEASED, device.uuid, sentence))

    def _look(self) -> None:
        """Look at every chosen device once; let those go that something speaks against."""
        self._looked_ns = self._ctx.clock.boottime_ns()
        for chosen in tuple(self._chosen):
            try:
                sample = self._ctx.devices.sample(chosen.device.uuid)
            except DeviceLostError as lost:
                self._mark(chosen.device.uuid, str(lost))
                self._drop(chosen, Finding(Refusal.LOST, chosen.device.uuid, str(lost)))
                continue
            pids = {process.pid for process in sample.processes}
            seen = Seen(sample, {pid: self._ctx.processes.facts(pid) for pid in pids})
            self._log.add(seen)
            found = chosen.window.add(seen, patient=not self._candidates)
            if found is not None:
                self._drop(chosen, found)

    def _mark(self, uuid: str, why: str) -> None:
        self._ctx.ledger.devices.mark_unusable(uuid, why, self._ctx.clock.boot_id())

    def _drop(self, chosen: _Chosen, why: Finding) -> None:
        self._findings.append(why)
        self._chosen.remove(chosen)
        chosen.lock.release()

    def _idle(self) -> bool:
        enough = len(self._chosen) == self._count
        return enough and all(chosen.window.complete for chosen in self._chosen)

    def _drop_claimed(self) -> bool:
        """Let devices go that another container was given meanwhile; tell whether any was."""
        claims = self._ctx.engine.device_claims()
        dropped = False
        for chosen in tuple(self._chosen):
            other = claimed(chosen.device, self._listed, claims, self._run_id)
            if other is not None:
                self._drop(chosen, other)
                dropped = True
        return dropped

    def _pause(self) -> None:
        """Wait for the next look; what looking itself took counts, as with many devices it may."""
        took = (self._ctx.clock.boottime_ns() - self._looked_ns) / _NS
        pause = max(_SHORTEST_PAUSE, min(SAMPLE_EVERY, self._gpu.gate.idle_for / 4) - took)
        if len(self._chosen) == self._count:
            self._ctx.clock.wait(self._ctx.stop.event, pause)
        self._ctx.stop.check("a GPU was seen idle for long enough")

    @property
    def may_pass(self) -> bool:
        """Whether waiting may help: something that can pass speaks against a device."""
        return any(finding.reason in WORTH_WAITING for finding in self._findings)

    def _refusal(self) -> GateRefusedError:
        """Put into one sentence why there are not enough devices."""
        found = self._findings
        if not found:
            many = f"the task asks for {self._count} GPU(s), this host has {len(self._listed)}"
            return GateRefusedError(f"{Refusal.ABSENT}: {many}", remedy=_LISTED)
        # The reason that waiting may remove comes first: with it gone, the run can start.
        first = next((f for f in found if f.reason in WORTH_WAITING), found[0])
        others = "; ".join(f.sentence for f in found if f is not first)
        message = f"{first}; {others}" if others else str(first)
        remedy = _REMEDIES.get(first.reason, "")
        if first.reason is Refusal.UNUSABLE:
            where = self._ctx.ledger.devices.where(first.uuid)
            remedy = f"reboot; or reset the GPU, and remove {where}"
        refusal = ResourcesBusyError if first.reason in PASSING else GateRefusedError
        return refusal(message, remedy=remedy)


@contextmanager
def readable() -> Iterator[None]:
    """Refuse where the driver does not answer: what is unknown is never idle."""
    try:
        yield
    except DeviceUnreadableError as silent:
        raise GateRefusedError(f"{Refusal.UNREADABLE}: {silent}", remedy=silent.remedy) from silent


def check_driver(ctx: Context, plan: PhasePlan, gpu: GpuPlan, count: int) -> str:
    """Check that the host has as many GPUs as are asked for, whatever they do; say what it has.

    Raises:
        GateRefusedError: it has not, its driver does not answer, or its library is a stand-in
            that the plan knows nothing of.
    """
    with readable():
        library, listed = ctx.devices.library(), ctx.devices.devices()
    if library is None:
        raise GateRefusedError(
            f"{Refusal.ABSENT}: the task asks for {count} GPU(s), this host has no NVIDIA driver",
            remedy="run it on a host with GPUs; orch gpus says what orch sees",
        )
    if not library.official and STAND_IN not in plan.relaxations:
        raise GateRefusedError(
            f"{Refusal.STAND_IN}: {library.path} is a stand-in, and the plan does not say so",
            remedy="start the run again: the plan will say it",
        )
    usable = [device for device in listed if not unqualified(device, gpu.qualify)]
    if not gpu.asked and len(usable) < count:
        models = ", ".join(sorted({device.model for device in listed})) or "none"
        raise GateRefusedError(
            f"{Refusal.UNQUALIFIED}: {len(usable)} GPU(s) here are what the task asks for, "
            f"it wants {count}; there are: {models}",
            remedy="see gpu: in task.yaml; orch gpus lists what this host has",
        )
    return f"driver {library.driver}, {len(usable)} of {len(listed)} qualify, {count} asked for"


def unqualified(device: Device, wanted: GpuSpec) -> str:
    """Say in a sentence why a device is not what a task asks for; empty when it is."""
    if wanted.models and not any(_is_model(device, model) for model in wanted.models):
        return f"{device.uuid} is a {device.model}, the task asks for {' or '.join(wanted.models)}"
    if device.memory < wanted.min_memory:
        has, asks = human(device.memory), human(wanted.min_memory)
        return f"{device.uuid} has {has} of memory, the task asks for {asks}"
    if _version(device.driver) < _version(wanted.min_driver):
        asks = wanted.min_driver
        return f"{device.uuid} runs driver {device.driver}, the task asks for {asks} or newer"
    return ""


def _is_model(device: Device, model: str) -> bool:
    """Tell whether a model is named in a device's full name, as whole words."""
    pattern = rf"(?<![a-z0-9]){re.escape(model.lower())}(?![a-z0-9])"
    return re.search(pattern, device.model.lower()) is not None


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"[0-9]+", text))


def _device_record(device: Device) -> DeviceRecord:
    return DeviceRecord(
        uuid=device.uuid,
        model=device.model,
        memory=device.memory,
        driver=device.driver,
        parent=device.parent,
    )


def resolve(asked: str, listed: Sequence[Device]) -> tuple[str, ...]:
    """Turn ``--gpu`` into UUIDs at once; none for ``auto``.

    Raises:
        ValueError: an index is none of the listed devices', or a device is named twice.
    """
    if asked == "auto":
        return ()
    found = []
    for name in asked.split(","):
        if not name.isdecimal():
            found.append(name)
        elif int(name) < len(listed):
            found.append(listed[int(name)].uuid)
        else:
            raise ValueError(f"there is no GPU {name}: {len(listed)} are listed")
    if len(set(found)) < len(found):
        raise ValueError(f"{asked!r} names a GPU twice")
    return tuple(found)
