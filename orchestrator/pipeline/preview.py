"""``--dry-run``: the whole plan, as it would be run, with nothing started or written."""

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.domain.attempt import Series, seeded
from orchestrator.domain.container import ContainerSpec
from orchestrator.domain.records import AttemptPlan, PhasePlan, ReplayPlan
from orchestrator.domain.roles import Phase
from orchestrator.errors import UsageError
from orchestrator.evidence.context import Context
from orchestrator.evidence.ownership import devices_of
from orchestrator.phases import explore, replay
from orchestrator.pipeline.on_host import image_record, materials
from orchestrator.pipeline.plans import pack_of, plan_replay, replay_environment
from orchestrator.sandbox import VISIBLE_GPUS, asset_mounts, container_spec
from orchestrator.storage.layout import AttemptFolder, ReplayFolder
from orchestrator.storage.pack import Pack


def of_explore(ctx: Context, pack: Pack, plan: AttemptPlan) -> dict[str, Any]:
    """Describe an exploration and the container it would run in; then what follows it."""
    folder = ctx.runs.config(plan.config).attempt(0)
    spec = explore.spec(ctx, plan, pack, AttemptFolder(folder.root), deadline_ns=0, held=None)
    document = _document(plan, Phase.EXPLORE, spec)
    return {**document, "then": {phase.value: _later(ctx, pack, phase) for phase in _LATER}}


_LATER = (Phase.REPLAY, Phase.VALIDATE, Phase.SCORE)


def _later(ctx: Context, pack: Pack, phase: Phase) -> dict[str, Any]:
    """Describe a phase that nothing is planned for yet: its limits, image, assets and variables."""
    task = pack.spec
    wall = {
        Phase.REPLAY: task.replay.wall,
        Phase.VALIDATE: task.validate_.wall,
        Phase.SCORE: task.score.wall,
    }[phase]
    need = task.resources(phase)
    assets = materials(ctx, pack, (phase,))
    spec = container_spec(
        name="",
        phase=phase,
        image=image_record(ctx, need.image).reference,
        argv=(),
        user=ctx.users.agent,
        agent=ctx.users.agent,
        resources=need,
        mounts=(),
        env=replay_environment(pack, Series()) if phase is Phase.REPLAY else {},
        labels={},
    )
    shown = container(spec)
    env = {name: value for name, value in spec.env.items() if name != VISIBLE_GPUS}
    kept = {key: shown[key] for key in ("image", "read_only", "limits", "tmpfs")}
    return {
        "wall": wall,
        **kept,
        "disk": need.disk,
        "gpus": need.gpus,
        "assets": [
            {"target": mount.target, "asset": name, "role": assets[name].role.value}
            for name, mount in zip(sorted(assets), asset_mounts(phase, assets), strict=True)
        ],
        "env": env,
    }


def of_replay(
    ctx: Context, attempt: AttemptFolder, *, repeats: int | None, official: bool
) -> dict[str, Any]:
    """Describe a replay and the container it would run in; of several, the first that is left.

    Raises:
        UsageError: nothing is left to replay.
    """
    plan = _next_replay(ctx, attempt, repeats, official=official)
    folder = ReplayFolder(attempt.root / "replay-000")
    spec = replay.spec(ctx, plan, folder, deadline_ns=0, held=None)
    return _document(plan, Phase.REPLAY, spec)


def _next_replay(
    ctx: Context, attempt: AttemptFolder, repeats: int | None, *, official: bool
) -> ReplayPlan:
    pack = pack_of(attempt)
    refusals: list[UsageError] = []
    for series in (Series(),) if repeats is None else seeded(repeats):
        try:
            return plan_replay(
                ctx, attempt, pack, series=series, again="dry run", official=official
            )
        except UsageError as refusal:
            refusals.append(refusal)
    raise refusals[0]


def _document(plan: PhasePlan, phase: Phase, spec: ContainerSpec) -> dict[str, Any]:
    """Lay out plan and container; which GPUs it gets, the gate finds out."""
    asked = () if plan.gpu is None else plan.gpu.asked
    gpus = list(asked) or ["any that qualifies and is idle"] * devices_of(plan, (phase,))
    env = {name: value for name, value in spec.env.items() if name != VISIBLE_GPUS}
    return {
        "plan": plan.model_dump(mode="json", by_alias=True),
        "container": {**container(spec), "gpus": gpus, "env": env},
    }


def container(spec: ContainerSpec) -> dict[str, Any]:
    """Put a container's description into plain values."""
    limits = spec.limits
    return {
        "image": spec.image,
        "argv": list(spec.argv),
        "user": spec.user,
        "runtime": spec.runtime,
        "network": "none",
        "read_only": spec.read_only,
        "mounts": [
            {"target": m.target, "source": str(m.source), "writable": m.writable}
            for m in spec.mounts
        ],
        "tmpfs": [{"target": t.target, "size": t.size, "inodes": t.inodes} for t in spec.tmpfs],
        "limits": {
            "cpus": limits.cpus,
            "memory": limits.memory,
            "swap": limits.memory,
            "shm": limits.shm,
            "pids": limits.pids,
            "file_size": limits.file_size,
            "open_files": limits.open_files,
            "message_queue": limits.message_queue,
            "log": limits.log,
        },
        "env": dict(spec.env),
    }


def lines(document: Mapping[str, Any], indent: int = 0) -> Iterator[str]:
    """Lay a document out for a person; what is not set is left out."""
    pad = " " * indent
    for key, value in document.items():
        if _says_nothing(value):
            continue
        if isinstance(value, Mapping):
            yield f"{pad}{key}:"
            yield from lines(value, indent + 2)
        elif isinstance(value, list) and isinstance(value[0], Mapping):
            yield f"{pad}{key}:"
            for row in value:
                facts = (f"{name} {_word(field)}" for name, field in row.items())
                yield f"{pad}  - " + ", ".join(facts)
        else:
            yield f"{pad}{key}: {_word(value)}"


def _says_nothing(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(_says_nothing(part) for part in value.values())
    return value is None or value in ("", [])


def _word(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
