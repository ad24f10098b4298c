"""Step 5: what went into a phase is what came out of another, and what must be equal is equal."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from pydantic import JsonValue

from receipts.canonical import sha256_hex
from receipts.statement import PhaseName
from receipts.verify_model import Kind, Receipt, Report, Run, Step
from receipts.verify_records import Image, PlanBase, ReplayPlan, Task

ROLES: Mapping[PhaseName, frozenset[str]] = MappingProxyType(
    {
        PhaseName.EXPLORE: frozenset({"anchor", "train", "proxy"}),
        PhaseName.SUBMIT: frozenset(),
        PhaseName.GATE: frozenset({"anchor", "train"}),
        PhaseName.REPLAY: frozenset({"anchor", "train"}),
        PhaseName.COLLECT: frozenset(),
        PhaseName.VALIDATE: frozenset({"anchor"}),
        PhaseName.SCORE: frozenset({"reference", "final"}),
    }
)
"""Which phase sees which role; held against ``VISIBLE_ROLES`` by a test."""

WIDENED: Mapping[PhaseName, frozenset[str]] = MappingProxyType(
    {
        PhaseName.SCORE: frozenset({"anchor", "train"}),
        PhaseName.VALIDATE: frozenset({"train"}),
    }
)
"""What a task may show to a phase besides, asset by asset; held against ``WIDENABLE``."""

_LIMITS = ("cpus", "memory", "shm", "tmp", "pids", "disk", "gpus", "read_only")
_HARNESSED = frozenset({PhaseName.EXPLORE, PhaseName.REPLAY, PhaseName.VALIDATE})
_CONTAINED = _HARNESSED | {PhaseName.SCORE}
_HOST_ONLY = frozenset({PhaseName.SUBMIT, PhaseName.COLLECT})
_OWN = frozenset({"plan", "harness", "seccomp"})
"""Materials of one run alone: another version of orch may bring another harness and filter."""


def check_edges(run: Run, task: str | None, report: Report) -> None:
    """Check every edge that ends in ``run``."""
    for receipt in run.receipts:
        if task is not None and receipt.materials.get("task") != task:
            what = f"its task is {receipt.materials.get('task')}"
            report.fault(Step.EDGES, receipt.path, what)
        _check_plan(run, receipt, report)
        _check_roles(run, receipt, report)
    _check_equal(run, report)
    _check_resources(run, report)
    for later, what in _breaks(run):
        report.fault(Step.EDGES, later.path, what)


def _check_plan(run: Run, receipt: Receipt, report: Report) -> None:
    """Check a receipt against the plan it was made from."""
    if run.plan is None:
        return
    for word, found, wanted in _planned(run, run.plan, receipt):
        if found != wanted:
            report.fault(Step.EDGES, receipt.path, f"its {word} is not the plan's")
    limits, need = receipt.statement.predicate.limits, _need(run, receipt)
    for name in _LIMITS if receipt.phase in _CONTAINED and need is not None else ():
        if limits.get(name) != (need or {}).get(name):
            report.fault(Step.EDGES, receipt.path, f"its limit {name} is not the plan's")


def _image_of(plan: PlanBase, phase: PhaseName) -> Image:
    """Return the image that the plan gives a phase: a replay validates in one of its own."""
    if isinstance(plan, ReplayPlan) and phase is PhaseName.VALIDATE:
        return plan.validator_image
    return plan.image


def _planned(run: Run, plan: PlanBase, receipt: Receipt) -> Iterator[tuple[str, object, object]]:
    """Yield what a receipt says, and what the plan says, of everything both speak of."""
    said, materials = receipt.statement.predicate, receipt.materials
    attempt, replay, scoring = run.attempt_plan(), run.replay_plan(), run.scoring_plan()
    image = said.image and (said.image.reference, said.image.digest)
    of_phase = _image_of(plan, receipt.phase)
    planned = None if receipt.phase in _HOST_ONLY else (of_phase.reference, of_phase.digest)
    yield "plan", materials.get("plan"), run.plan_digest
    yield "image", image, planned
    yield "runtime", said.runtime, None if receipt.phase in _HOST_ONLY else plan.runtime
    yield "official", said.official, plan.official
    yield "relaxations", said.relaxations, plan.relaxations
    yield "version", said.orchestrator, plan.version
    if receipt.phase in _HARNESSED:
        yield "harness", materials.get("harness"), plan.harness_digest
    if receipt.phase in _CONTAINED:
        yield "seccomp", materials.get("seccomp", ""), plan.seccomp
    if receipt.phase in _CONTAINED - {PhaseName.VALIDATE}:
        yield "wall", said.limits.get("wall_s"), plan.wall
    if scoring:
        yield "task", materials.get("task"), scoring.task_digest
        yield "evaluator", materials.get("evaluator"), scoring.evaluator_digest
    elif attempt:
        yield "task", materials.get("task"), attempt.task_digest
        if receipt.phase is PhaseName.EXPLORE:
            yield "workspace", materials.get("workspace", ""), attempt.workspace
        elif receipt.phase is PhaseName.SUBMIT and attempt.workspace and "base" in materials:
            yield "base", materials["base"], attempt.workspace
    if replay and receipt.phase in {PhaseName.GATE, PhaseName.REPLAY}:
        yield "patch", materials.get("patch"), replay.patch_sha256
        yield "manifest", materials.get("manifest"), replay.manifest_digest
        yield "base", materials.get("base"), replay.base_digest
    if replay and receipt.phase is PhaseName.REPLAY:
        yield "argv", said.argv, replay.argv


def _need(run: Run, receipt: Receipt) -> Mapping[str, JsonValue] | None:
    """What the plan gives the phase; validation has its own settings in the attempt's task."""
    if receipt.phase is not PhaseName.VALIDATE:
        return run.plan.resources if run.plan else None
    attempt = run.attempt_plan()
    return _merged(attempt.task, "validate_") if attempt else None


def _merged(task: Task, phase: str) -> dict[str, JsonValue]:
    """Lay a phase's settings over the task's defaults."""
    own: dict[str, JsonValue] = getattr(task, phase)
    return {
        name: own[name] if own.get(name) is not None else task.defaults[name]
        for name in task.defaults
    }


def _check_resources(run: Run, report: Report) -> None:
    """Check that the plan gives the phase what the task, as the attempt froze it, asks for."""
    attempt = run.attempt_plan()
    if attempt is None or run.plan is None:
        return
    entered = "explore" if attempt.entry != "checkpoint" else "validate_"
    phase = {Kind.ATTEMPT: entered, Kind.REPLAY: "replay", Kind.SCORING: "score"}[run.kind]
    wanted = _merged(attempt.task, phase)
    for name in ("image", *_LIMITS):
        if run.plan.resources.get(name) != wanted.get(name):
            report.fault(Step.EDGES, run.folder / "plan.json", f"its {name} is not the task's")
    if not isinstance(run.plan, ReplayPlan):
        return
    command = attempt.task.replay.get("command")
    if isinstance(command, str) and list(run.plan.argv) != command.split():
        report.fault(Step.EDGES, run.folder / "plan.json", "its command is not the task's")
    tree = run.plan.manifest_digest
    if tree is not None:
        named = f"{attempt.task_digest}\0{tree}\0{run.plan.image.digest}".encode()
        if run.plan.candidate != f"candidate:v1:sha256:{sha256_hex(named)}":
            what = "its candidate is not named by this task, tree and image"
            report.fault(Step.EDGES, run.folder / "plan.json", what)


def _check_roles(run: Run, receipt: Receipt, report: Report) -> None:
    """Check that the phase saw the roles it may see: all of them, as the task declares them."""
    seen = dict(_assets(receipt))
    for path, (role, _) in seen.items():
        if role not in ROLES[receipt.phase] | WIDENED.get(receipt.phase, frozenset()):
            report.fault(Step.EDGES, receipt.path, f"{receipt.phase} saw {path} of role {role}")
    attempt = run.attempt_plan()
    if attempt is None or receipt.phase in {PhaseName.SUBMIT, PhaseName.COLLECT}:
        return
    declared = {
        path: asset
        for path, asset in attempt.task.assets.items()
        if asset.role in ROLES[receipt.phase]
        or (
            asset.role in WIDENED.get(receipt.phase, frozenset())
            and receipt.phase.value in asset.also
        )
    }
    for path in sorted(declared.keys() | seen.keys()):
        if path not in seen:
            report.fault(Step.EDGES, receipt.path, f"asset {path} of the task is missing")
        elif path not in declared:
            report.fault(Step.EDGES, receipt.path, f"asset {path} is none the task shows it")
        elif seen[path][0] != declared[path].role:
            what = f"asset {path} has role {seen[path][0]}, the task says {declared[path].role}"
            report.fault(Step.EDGES, receipt.path, what)
        elif declared[path].digest not in {None, seen[path][1]}:
            report.fault(Step.EDGES, receipt.path, f"asset {path} is not the one the task locks")


def _assets(receipt: Receipt) -> Iterator[tuple[str, tuple[str, str]]]:
    for name, digest in receipt.materials.items():
        role, colon, path = name.partition(":")
        if colon:
            yield path, (role, digest)


def _check_equal(run: Run, report: Report) -> None:
    """Check that one name means one thing, and one image name one image, all along the line."""
    known: dict[str, tuple[str, Receipt, Run]] = {}
    for above in run.line():
        for receipt in above.receipts:
            named = {k: v for k, v in receipt.materials.items() if k not in _OWN}
            image = receipt.statement.predicate.image
            if image is not None:
                named[f"image {image.reference}"] = image.digest
            if "harness" in receipt.materials:
                version = receipt.statement.predicate.orchestrator
                named[f"harness of orch {version}"] = receipt.materials["harness"]
            for name, digest in named.items():
                first, where, _ = known.setdefault(name, (digest, receipt, above))
                if first != digest and above is run:
                    what = f"its {name} is not that of {where.path.name}"
                    report.fault(Step.EDGES, receipt.path, what)


def _breaks(run: Run) -> Iterator[tuple[Receipt, str]]:
    """Yield each edge between two phases that ends in this run and does not hold."""
    line = {receipt.phase: receipt for above in run.line() for receipt in above.receipts}
    for earlier, later, edge in _EDGES:
        ends = run.receipt(later)
        if earlier in line and ends is not None:
            for what in edge(line[earlier], ends):
                yield ends, what


def _submitted(explore: Receipt, submit: Receipt) -> Iterator[str]:
    if _files_of(explore) != _files_in(submit):
        yield "what was submitted is not what the exploration gave out"


def _replayed(submit: Receipt, later: Receipt) -> Iterator[str]:
    patch = submit.subjects().get("candidate/candidate.patch")
    if later.materials.get("patch") != (f"sha256:{patch}" if patch else None):
        yield "its patch is not the one that was submitted"
    for name in ("manifest", "base"):
        if later.materials.get(name) != submit.materials.get(name):
            yield f"its {name} is not that of the submission"


def _judged(given: Receipt, validate: Receipt) -> Iterator[str]:
    if _checkpoints_of(given) != _checkpoints_in(validate):
        yield f"it judged other checkpoints than {given.phase} gave out"


def _accepted(validate: Receipt, _: Receipt) -> Iterator[str]:
    if not _checkpoints_of(validate).items() <= _checkpoints_in(validate).items():
        yield "it accepted a checkpoint that it was not given"


def _scored(validate: Receipt, score: Receipt) -> Iterator[str]:
    accepted, scored = _checkpoints_of(validate), _checkpoints_in(score)
    for name in sorted(accepted.keys() | scored.keys()):
        if accepted.get(name) != scored.get(name):
            yield f"{name} is not scored as it was accepted"


_EDGES: tuple[tuple[PhaseName, PhaseName, Callable[[Receipt, Receipt], Iterator[str]]], ...] = (
    (PhaseName.EXPLORE, PhaseName.SUBMIT, _submitted),
    (PhaseName.SUBMIT, PhaseName.GATE, _replayed),
    (PhaseName.SUBMIT, PhaseName.REPLAY, _replayed),
    (PhaseName.REPLAY, PhaseName.VALIDATE, _judged),
    (PhaseName.COLLECT, PhaseName.VALIDATE, _judged),
    (PhaseName.VALIDATE, PhaseName.VALIDATE, _accepted),
    (PhaseName.VALIDATE, PhaseName.SCORE, _scored),
)
"""From which receipt to which an edge leads, and what must hold along it."""


def _files_of(receipt: Receipt) -> dict[str, str]:
    return {name: digest for name, digest in receipt.subjects().items() if "candidate/" in name}


def _files_in(receipt: Receipt) -> dict[str, str]:
    return {
        name: digest.removeprefix("sha256:")
        for name, digest in receipt.materials.items()
        if name.startswith("candidate/")
    }


def _checkpoints_of(receipt: Receipt) -> dict[str, str]:
    return {
        name.removeprefix("checkpoints/"): digest
        for name, digest in receipt.subjects().items()
        if name.startswith("checkpoints/")
    }


def _checkpoints_in(receipt: Receipt) -> dict[str, str]:
    return {
        name: digest.removeprefix("tree:v1:sha256:")
        for name, digest in receipt.materials.items()
        if name.startswith("checkpoint-")
    }
