"""A look from inside: a container that is given GPUs must see exactly those.

Some engines ignore a request for GPUs without a word, and a runtime may show more than was asked
for. So a container of the phase's own image, with nothing of the run in it, says what it sees
before anything else may use the devices.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from typing_extensions import override

from orchestrator.domain.gate import Refusal
from orchestrator.domain.records import PhasePlan
from orchestrator.domain.roles import Phase
from orchestrator.errors import GateRefusedError, InfrastructureError
from orchestrator.evidence.context import Context, container_name
from orchestrator.evidence.devices import readable
from orchestrator.evidence.rooms import HARNESS, harness_mounts
from orchestrator.ports import LogSink
from orchestrator.sandbox import PHASE_LABEL, container_spec

_SCRIPT = "gpus.sh"
_PATIENCE = 60.0
_MAX_OUTPUT = 64 * 1024
_NS = 1_000_000_000
_UUID = re.compile(r"(?:GPU|MIG)-[A-Za-z0-9/-]{1,128}")
_REMEDY = "install the NVIDIA Container Toolkit for this engine, then restart the engine"


@dataclass(slots=True)
class _Output(LogSink):
    """Keeps what a container says, up to a bound."""

    kept: bytearray = field(default_factory=bytearray)

    @override
    def write(self, stream: str, data: bytes) -> None:
        self.kept += data[: _MAX_OUTPUT - len(self.kept)]


def require_seen(
    ctx: Context, plan: PhasePlan, phase: Phase, gpus: tuple[str, ...], cpuset: str
) -> str:
    """Check that a container of ``phase`` sees exactly ``gpus``; say what it saw.

    Raises:
        GateRefusedError: it sees others, or none.
    """
    with readable():
        parents = {device.parent for device in ctx.devices.devices() if device.uuid in gpus}
    said = _ask(ctx, plan, phase, gpus, cpuset)
    seen = set(_UUID.findall(said))
    if seen - (parents - set(gpus)) != set(gpus):
        raise GateRefusedError(
            f"{Refusal.NOT_SEEN}: a container that was given {_list(gpus)} sees {_list(seen)}",
            remedy=_REMEDY,
        )
    return _list(seen)


def _list(uuids: Collection[str]) -> str:
    return ", ".join(sorted(uuids)) or "no GPU"


def _ask(ctx: Context, plan: PhasePlan, phase: Phase, gpus: tuple[str, ...], cpuset: str) -> str:
    deadline_ns = ctx.clock.boottime_ns() + int(_PATIENCE * _NS)
    spec = container_spec(
        name=container_name(phase, plan.run_id, "-gpus"),
        phase=phase,
        image=plan.image_of(phase).reference,
        argv=("sh", f"{HARNESS}/{_SCRIPT}"),
        user=ctx.users.agent,
        agent=ctx.users.agent,
        resources=plan.resources,
        mounts=harness_mounts(ctx.harness, _SCRIPT),
        env={},
        labels=ctx.labels(plan.run_id, plan.engine, deadline_ns),
        isolation=ctx.isolation.of(plan),
        cpuset=cpuset,
        workdir="/",
        gpus=gpus,
    )
    # It is none of the phase's own containers, which a run that is taken over is looked up by.
    spec = replace(spec, labels={**spec.labels, PHASE_LABEL: "gate"})
    try:
        container = ctx.engine.create(spec)
        output = _Output()
        try:
            container.start(output)
            if container.wait(_PATIENCE) is None:
                raise InfrastructureError(f"it did not answer within {_PATIENCE:.0f} s")
        finally:
            container.remove()
    except InfrastructureError as failure:
        raise GateRefusedError(
            f"{Refusal.NOT_SEEN}: no container with {_list(gpus)} could be had: {failure}",
            remedy=_REMEDY,
        ) from failure
    return output.kept.decode("ascii", errors="replace")
