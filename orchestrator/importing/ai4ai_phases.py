"""What of an AI4AI-Bench task's phases orch keeps, what it does itself, and what it refuses."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from orchestrator.domain.roles import Phase
from orchestrator.domain.task import wall_settings
from orchestrator.importing.declaration import FILE, DeclaredPhase
from orchestrator.importing.model import Findings

VERIFIER_LOGS = "/logs/verifier"
CHECKPOINT = "/ckpt"
_OUT = ("run:out", "/out", False)
_JUDGING = frozenset(
    {("run:checkpoint", CHECKPOINT, True), ("run:logs/verifier", VERIFIER_LOGS, False), _OUT}
)
_RUN_MOUNTS: Mapping[str, frozenset[tuple[str, str, bool]]] = MappingProxyType(
    {
        "explore": frozenset(
            {("run:logs", "/logs", True), ("run:logs/agent", "/logs/agent", False), _OUT}
        ),
        "retrain": frozenset({("run:patch", "/patch/candidate.patch", True), _OUT}),
        "score": _JUDGING,
        "checkpoint-validate": _JUDGING,
    }
)
"""Mounts of a run's own folders that orch has as well; the patch is applied by the host."""

_HOOKS: Mapping[str, str] = MappingProxyType(
    {
        "write_deadline": "",
        "report_submission": "",
        "inspect_patch": "",
        "collect_checkpoints": "",
        "report_reward": "",
        "verify_fixed_inputs": "what the trainer's own configuration in /out says of its inputs is "
        "not read after the replay; the replay has no other inputs and no network",
    }
)
"""What the runner of AI4AI-Bench does around a phase: orch does it, or what is different."""

_COMMANDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"explore": ("bash",), "retrain": ("bash", "/workspace/run.sh")}
)
_OURS = frozenset(
    {
        "DEADLINE_RESERVE_SECONDS",
        "MAX_WALL_TIME_SECONDS",
        "NVIDIA_VISIBLE_DEVICES",
        "ORCH_PROXY_COMMAND",
        "OUTPUT_DIR",
    }
)
_KINDS = frozenset({"file", "weights", "model"})
_GLOB = "checkpoints/checkpoint-*"
_UNKEPT: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "explore": {"apply_patch": False, "reserve_sec": 0, "free_gib": 0},
        "retrain": {"apply_patch": True, "output_glob": "", "checkpoint_glob": _GLOB},
        "score": {"apply_patch": False, "reserve_sec": 0, "free_gib": 0},
        "checkpoint-validate": {"apply_patch": False, "reserve_sec": 0, "free_gib": 0},
    }
)
"""Fields that have one value in what orch does; another is refused."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The four phases that orch has."""

    explore: DeclaredPhase
    retrain: DeclaredPhase
    score: DeclaredPhase
    validate: DeclaredPhase

    def of(self) -> Iterator[tuple[Phase, DeclaredPhase]]:
        """Go through them by orch's names."""
        yield Phase.EXPLORE, self.explore
        yield Phase.REPLAY, self.retrain
        yield Phase.VALIDATE, self.validate
        yield Phase.SCORE, self.score


def check(
    declared: Mapping[str, DeclaredPhase], findings: Findings, *, whole: bool
) -> Wanted | None:
    """Hold what is declared against what orch does; None where a phase is missing.

    Args:
        whole: all that the declaration holds could be read.
    """
    for name in declared:
        if name not in _RUN_MOUNTS and not name.startswith("score-mock"):
            findings.refuse(f"{FILE}: PHASES[{name!r}]", "a phase that orch has not")
    missing = [name for name in _RUN_MOUNTS if name not in declared]
    for name in missing if whole else ():
        findings.refuse(f"{FILE}: PHASES[{name!r}]", "is missing")
    for name in _RUN_MOUNTS.keys() & declared.keys():
        _check(name, declared[name], findings)
    if missing:
        return None
    return Wanted(
        declared["explore"],
        declared["retrain"],
        declared["score"],
        declared["checkpoint-validate"],
    )


def asset_mounts(phase: DeclaredPhase) -> dict[str, str]:
    """Return where the assets lie that a phase mounts, by their names in the source."""
    return {
        source.removeprefix("asset:"): target
        for source, target, _ in phase.mounts
        if source.startswith("asset:")
    }


def wall_exports(retrain: DeclaredPhase) -> dict[str, str | None]:
    """Leave the wall settings out where the source sets none."""
    names = ("MAX_WALL_TIME_SECONDS", "DEADLINE_RESERVE_SECONDS")
    return {} if retrain.reserve_sec else dict.fromkeys(names)


def differences(wanted: Wanted, assets: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Say what is kept in another way than the source does it."""
    found = list(_validator(wanted, assets))
    for phase, declared in wanted.of():
        found += (f"{phase}: {_HOOKS[hook]}" for hook in declared.hooks if _HOOKS.get(hook))
    retrain = wanted.retrain
    theirs = (max(retrain.timeout_sec - 600, 600), retrain.reserve_sec)
    ours = wall_settings(retrain.timeout_sec, retrain.reserve_sec)
    if retrain.reserve_sec and ours != theirs:
        found.append(
            f"replay: MAX_WALL_TIME_SECONDS and DEADLINE_RESERVE_SECONDS are {ours[0]} and "
            f"{ours[1]}, the source's {theirs[0]} and {theirs[1]}: each at most 5 % of the wall"
        )
    return found


def _validator(wanted: Wanted, assets: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Say what the validator sees otherwise: never what only the evaluator may see."""
    theirs = asset_mounts(wanted.validate)
    hidden = [name for name in theirs if assets[name]["role"] in {"final", "reference"}]
    if hidden:
        yield (
            f"validate: the source's validator also mounts {', '.join(hidden)}; of roles final and "
            "reference orch shows it nothing"
        )
    for name, asset in assets.items():
        place = asset.get("at", name)
        instead = [one for one in hidden if f"/assets/{place}" == theirs[one]]
        if "validate" in asset.get("also", ()) and instead:
            yield f"validate: it finds {name} where the source's finds {instead[0]}"
    anchors = [n for n, asset in assets.items() if asset["role"] == "anchor" and n not in theirs]
    if anchors:
        yield f"validate: it sees {', '.join(anchors)} as well, as every validator sees the anchor"


def _check(name: str, phase: DeclaredPhase, findings: Findings) -> None:
    where = f"{FILE}: {name}"
    _check_mounts(where, phase, _RUN_MOUNTS[name], findings)
    for export in phase.exports:
        if export in _OURS or not export.isidentifier() or not export.isascii():
            findings.refuse(f"{where}: export {export!r}", "orch sets it, or it is no variable")
    for hook in phase.hooks:
        if hook not in _HOOKS:
            findings.refuse(f"{where}: hook {hook!r}", "is not known, so it cannot be kept")
    if phase.command != _COMMANDS.get(name, phase.command) or not phase.command:
        findings.refuse(f"{where}: command {phase.command}", f"orch runs {_COMMANDS.get(name)}")
    if phase.timeout_sec <= 0:
        findings.refuse(f"{where}: timeout_sec = {phase.timeout_sec}", "is no time")
    for field, only in {**_UNKEPT[name], "interactive": False}.items():
        value = getattr(phase, field)
        if value != only:
            findings.refuse(f"{where}: {field} = {value!r}", f"only {only!r} is kept")
    if name == "retrain":
        _check_checkpoints(where, phase, findings)


def _check_mounts(
    where: str, phase: DeclaredPhase, ours: frozenset[tuple[str, str, bool]], findings: Findings
) -> None:
    for source, target, read_only in phase.mounts:
        shown = f"{where}: mount ({source!r}, {target!r}, {read_only})"
        if source.startswith("asset:"):
            if not read_only:
                findings.refuse(shown, "an asset that can be written to")
        elif (source, target, read_only) not in ours:
            findings.refuse(shown, "a mount that orch has not")
    for mounted in (0, 1):
        times = Counter(mount[mounted] for mount in phase.mounts)
        for name in sorted(name for name, count in times.items() if count > 1):
            findings.refuse(f"{where}: mounts", f"{name!r} is mounted, or mounted upon, twice")
    for needed in sorted(ours):
        if needed[1] in {"/out", CHECKPOINT} and needed not in phase.mounts:
            findings.refuse(f"{where}: mounts", f"{needed} is missing, and orch always has it")


def _check_checkpoints(where: str, phase: DeclaredPhase, findings: Findings) -> None:
    if phase.checkpoint_kind not in _KINDS:
        kinds = ", ".join(sorted(_KINDS))
        findings.refuse(
            f"{where}: checkpoint_kind = {phase.checkpoint_kind!r}", f"only {kinds} are kept"
        )
    parts = phase.checkpoint_payload.split("/")
    if phase.checkpoint_payload != "." and (".." in parts or "" in parts or "." in parts):
        findings.refuse(
            f"{where}: checkpoint_payload = {phase.checkpoint_payload!r}",
            "is no plain path inside a checkpoint",
        )
