"""A runs folder as the phases would leave it, made without an engine."""

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.domain.attempt import (
    ConfigName,
    Entry,
    RunKind,
    SubmissionOrigin,
    TerminationReason,
)
from orchestrator.domain.checkpoint import ArtifactStatus
from orchestrator.domain.records import (
    Aggregate,
    AggregateStatus,
    Artifact,
    Artifacts,
    AttemptPlan,
    ConfigRecord,
    EngineRecord,
    GateCheck,
    GateRecord,
    ImageRecord,
    LeftOutRecord,
    Material,
    Number,
    PlannedCheckpoint,
    ReplayPlan,
    ScoredCheckpoint,
    ScoreStatus,
    ScoringPlan,
    Submission,
    Summary,
    best_of,
)
from orchestrator.domain.roles import DataRole
from orchestrator.domain.schema import Strict
from orchestrator.domain.task import Direction, Resources, TaskSpec
from orchestrator.lifecycle.machine import Event
from orchestrator.storage import durable
from orchestrator.storage.journal import Journal
from orchestrator.storage.layout import (
    AttemptFolder,
    CheckpointScore,
    ReplayFolder,
    RunsFolder,
    ScoringFolder,
)
from receipts.complete import commit_record
from tests.unit.records_help import START, TickingClock

HOSTILE = (
    "\x1b[2J\x1b]0;pwn\x07\x1b]8;;http://x.invalid\x1b\\link\x1b]8;;\x1b\\ \x9b31m\u202egpj.exe "
    '<script>alert(1)</script><img src=x onerror=alert(1)>" onmouseover="alert(1)\r\nforged: line'
)
"""What a candidate would write if it wanted to act on whoever reads about it."""

SECOND = 10**9
RELAXED = ("the volume of /out is watched, not allocated", "signing key made on first use")
_ids = itertools.count(1)


def digest(text: str, recipe: str = "tree:v1:sha256") -> str:
    return f"{recipe}:{hashlib.sha256(text.encode()).hexdigest()}"


IMAGE = ImageRecord(
    reference="orch/cpu-numpy:1",
    digest=digest("image", "image:v1:sha256"),
    engine_id="sha256:1",
)


def save(path: Path, record: Strict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    durable.write_json(path, record.model_dump(mode="json", by_alias=True), replace=True)


def task(
    name: str = "digits_class0",
    title: str = "Forget one digit",
    reference: tuple[dict[str, Any], ...] = (),
) -> TaskSpec:
    return TaskSpec.model_validate(
        {
            "schema": "orch.task/1",
            "name": name,
            "title": title,
            "workspace": {"from": "solution"},
            "assets": {
                path: {"role": role, "source": {"prepare": "prepare.py"}, "digest": digest(path)}
                for path, role in ASSETS.items()
            },
            "score": {"command": "final_eval.py", "metric": "unlearn_score"},
            "explore": {"wall": "4h"},
            "replay": {"wall": "12h"},
            "reference": reference,
        }
    )


ASSETS = {
    "models/training_start": DataRole.ANCHOR,
    "data/train": DataRole.TRAIN,
    "data/final": DataRole.FINAL,
}


@dataclass
class SampleRuns:
    """Makes attempts in a runs folder, one of each kind of ending. Time passes as it is told."""

    root: Path
    clock: TickingClock = field(default_factory=TickingClock)
    name: str = "digits_class0"
    title: str = "Forget one digit"
    agent: str = "scripted"
    reference: tuple[dict[str, Any], ...] = ()
    """Reference points of the task."""
    figures: dict[str, float] = field(default_factory=dict)
    """Further figures that the evaluator measures, on every checkpoint the same."""

    @property
    def runs(self) -> RunsFolder:
        return RunsFolder(self.root)

    def later(self, seconds: float) -> None:
        self.clock.now_ns += int(seconds * SECOND)

    def run_id(self) -> str:
        return hashlib.sha256(f"run {next(_ids)}".encode()).hexdigest()[:32]

    def journal(self, folder: Any, kind: RunKind, run_id: str) -> Journal:
        return Journal(folder.journal, kind, run_id, self.clock)

    def common(self, number: int) -> dict[str, Any]:
        return {
            "run_id": self.run_id(),
            "number": number,
            "created": START.isoformat(),
            "version": "0.1.0",
            "official": False,
            "relaxations": RELAXED,
            "engine": EngineRecord(
                kind="docker", engine_id="ENG", version="20.10.24", incarnation="1", boot_id="b"
            ),
            "image": IMAGE,
            "resources": Resources(cpus=2, memory=2 * 1024**3, disk=4 * 1024**3),
            "materials": {
                path: Material(role=role, digest=digest(path), source=f"/assets/{path}")
                for path, role in ASSETS.items()
                if role is not DataRole.FINAL
            },
            "harness_digest": digest("harness"),
            "wall": 14400.0,
        }

    def attempt(self, number: int = 1) -> tuple[AttemptFolder, Journal]:
        """Register an attempt; its journal is left for the caller to go on with."""
        name = ConfigName(self.agent, self.name, "none", "default")
        config = self.runs.config(name.folder)
        folder = config.attempt(number)
        folder.root.mkdir(parents=True)
        save(
            config.config,
            ConfigRecord(
                agent=self.agent,
                agent_digest=digest("agent", "sha256"),
                task=self.name,
                task_digest=digest("task"),
                model="none",
                effort="default",
                image="cpu-numpy",
            ),
        )
        plan = AttemptPlan(
            **self.common(number),
            entry=Entry.EXPLORE,
            config=name.folder,
            pack="/tasks/digits_class0",
            task_digest=digest("task"),
            task=task(self.name, self.title, self.reference),
            agent=self.agent,
            agent_digest=digest("agent", "sha256"),
            model="none",
            effort="default",
        )
        save(folder.plan, plan)
        journal = self.journal(folder, RunKind.ATTEMPT, plan.run_id)
        journal.append(Event.REGISTERED)
        return folder, journal

    def explored(self, number: int = 1) -> tuple[AttemptFolder, Journal]:
        folder, journal = self.attempt(number)
        self.later(2)
        journal.append(
            Event.EXPLORE_STARTED, container="c0ffee" * 8, deadline_boottime_ns=1, wall_s=14400.0
        )
        return folder, journal

    def submitted(
        self,
        number: int = 1,
        reason: TerminationReason = TerminationReason.AGENT_EXPLICIT_SUBMIT,
        origin: SubmissionOrigin = SubmissionOrigin.AGENT,
        outside: tuple[str, ...] = (),
    ) -> AttemptFolder:
        """An attempt that ended with a candidate."""
        folder, journal = self.explored(number)
        self.later(5124)
        journal.append(Event.SUBMIT_REFUSED, message="the patch adds 300 KiB; 256 KiB are allowed")
        self.later(801)
        journal.append(
            Event.CAPTURED,
            reason=reason,
            origin=origin,
            patch_sha256=digest("patch", "sha256"),
            manifest_digest=digest("candidate"),
            empty=False,
            exit=exit_facts(137, "submitted", killed_by="orchestrator", duration=5925.2),
        )
        journal.append(
            Event.SUBMITTED,
            patch_sha256=digest("patch", "sha256"),
            manifest_digest=digest("candidate"),
        )
        save(
            folder.submission,
            Submission(
                reason=reason,
                origin=origin,
                patch_sha256=digest("patch", "sha256"),
                patch_size=4321,
                manifest_digest=digest("candidate"),
                base_digest=digest("pristine"),
                empty=False,
                changed={"added": 2, "modified": 3, "deleted": 0},
                left_out=(LeftOutRecord(path="fifo", reason="fifo"),),
                outside_workspace=outside,
                accepted_at=START.isoformat(),
                pause_ms=34.0,
            ),
        )
        return folder

    def replayed(
        self,
        attempt: AttemptFolder,
        *,
        exit_code: int = 0,
        contested: tuple[str, ...] = (),
        number: int = 1,
    ) -> ReplayFolder:
        """A formal run that published three valid checkpoints, one invalid and one link."""
        folder, journal = self.started_replay(attempt, number)
        self.later(569)
        facts = exit_facts(exit_code, "exited", duration=569.18)
        journal.append(Event.EXITED, exit=facts, host_facts=[], contested=list(contested))
        self.later(3)
        names = [name for name, _ in CHECKPOINTS]
        journal.append(Event.COLLECTED, checkpoints=[*names, "checkpoint-9999"], ignored=1)
        self.later(12)
        judged = [
            Artifact(
                name="checkpoint-9999",
                progress=9999,
                status=ArtifactStatus.REJECTED,
                reason="not_loadable",
                detail="weights.npz is not a zip file",
                attempts=1,
            ),
            *(
                Artifact(
                    name=name,
                    progress=int(name.partition("-")[2]),
                    status=ArtifactStatus.ACCEPTED,
                    digest=digest(name),
                    size=1_234_567,
                    files=2,
                    attempts=1,
                    seconds=1.5,
                )
                for name in names
            ),
            Artifact(name="latest", progress=None, status=ArtifactStatus.IGNORED, reason="symlink"),
        ]
        save(folder.artifacts, Artifacts(artifacts=tuple(judged)))
        journal.append(Event.VALIDATED, accepted=names, rejected=1)
        return folder

    def started_replay(
        self, attempt: AttemptFolder, number: int = 1
    ) -> tuple[ReplayFolder, Journal]:
        folder = attempt.replay(number)
        folder.root.mkdir()
        plan = ReplayPlan(
            **self.common(number),
            attempt_id="a" * 32,
            validator_image=IMAGE,
            candidate=digest("candidate", "candidate:v1:sha256"),
            series="official" if number == 1 else f"seed-{number}",
            argv=("bash", "/workspace/run.sh"),
            env={"MAX_WALL_TIME_SECONDS": "42600"},
            patch_sha256=digest("patch", "sha256"),
            manifest_digest=digest("candidate"),
            base_digest=digest("pristine"),
            proven=True,
        )
        save(folder.plan, plan)
        save(
            folder.gate,
            GateRecord(
                passed=True,
                started=START.isoformat(),
                ended=START.isoformat(),
                checks=(
                    GateCheck(name="image", passed=True, detail="bash runs in it"),
                    GateCheck(name="reservation", passed=True, detail="2 CPU, 2.0 GiB, 4.0 GiB"),
                ),
                cpuset="0,1",
            ),
        )
        journal = self.journal(folder, RunKind.REPLAY, plan.run_id)
        self.later(4)
        journal.append(Event.REGISTERED, series=plan.series)
        journal.append(Event.GATE_STARTED)
        self.later(1)
        journal.append(Event.GATE_PASSED, cpuset="0,1")
        journal.append(
            Event.RUN_STARTED, container="decaf0" * 8, deadline_boottime_ns=1, wall_s=43200.0
        )
        return folder, journal

    def scoring(self, replay: ReplayFolder, number: int = 1) -> tuple[ScoringFolder, Journal]:
        folder = replay.scoring(number)
        folder.root.mkdir()
        plan = ScoringPlan(
            **self.common(number),
            replay_id="b" * 32,
            task_digest=digest("task"),
            evaluator_digest=digest("evaluator", "sha256"),
            metric="unlearn_score",
            direction=Direction.MAX,
            checkpoints=tuple(
                PlannedCheckpoint(
                    name=name, progress=int(name.partition("-")[2]), digest=digest(name)
                )
                for name, _ in CHECKPOINTS
            ),
        )
        save(folder.plan, plan)
        journal = self.journal(folder, RunKind.SCORING, plan.run_id)
        journal.append(Event.REGISTERED)
        journal.append(Event.GATE_STARTED)
        journal.append(Event.GATE_PASSED)
        self.later(2)
        journal.append(Event.SCORE_STARTED, checkpoints=[name for name, _ in CHECKPOINTS])
        return folder, journal

    def scored(self, replay: ReplayFolder, number: int = 1) -> ScoringFolder:
        """A committed scoring of three checkpoints; the middle one is best."""
        folder, journal = self.scoring(replay, number)
        lines = []
        for name, value in CHECKPOINTS:
            self.later(120)
            summary = summary_of(name, value, self.figures)
            score = folder.checkpoint(name)
            save(score.summary, summary)
            commit(folder, score)
            lines.append(
                ScoredCheckpoint(
                    checkpoint=name,
                    progress=summary.progress,
                    status=ScoreStatus.SCORED,
                    value=value,
                )
            )
            journal.append(Event.CHECKPOINT_SCORED, checkpoint=name, status="scored", value=value)
        best = best_of(tuple(lines), Direction.MAX)
        save(
            folder.summary,
            Aggregate(
                status=AggregateStatus.SCORED,
                metric="unlearn_score",
                direction=Direction.MAX,
                best=best,
                checkpoints=tuple(lines),
                official=False,
                relaxations=RELAXED,
            ),
        )
        journal.append(Event.SCORED, best=best.checkpoint if best else None, value=0.7658)
        commit(folder, folder)
        return folder

    def finished(self, number: int = 1, contested: tuple[str, ...] = ()) -> ScoringFolder:
        """A whole attempt with its replay and its scoring."""
        return self.scored(self.replayed(self.submitted(number), contested=contested))

    def no_candidate(self, number: int = 1, message: str = "nothing beat the baseline") -> None:
        _, journal = self.explored(number)
        self.later(3600)
        journal.append(
            Event.DECLINED,
            reason=TerminationReason.AGENT_EXPLICIT_NO_CANDIDATE,
            origin="none",
            message=message,
        )

    def broken(self, number: int = 1) -> None:
        """An attempt whose replay the machine spoiled."""
        _, journal = self.started_replay(self.submitted(number))
        self.later(77)
        journal.append(Event.INFRASTRUCTURE, fact="container_lost", message="the engine forgot it")


CHECKPOINTS = (
    ("checkpoint-7800", 0.7412),
    ("checkpoint-9100", 0.7658),
    ("checkpoint-9960", 0.7645),
)


def exit_facts(
    code: int | None, stop: str, *, killed_by: str = "nobody", duration: float = 1.0
) -> dict[str, Any]:
    return {
        "exit_code": code,
        "oom_killed": False,
        "killed_by": killed_by,
        "stop_reason": stop,
        "started_at": START.isoformat(),
        "finished_at": START.isoformat(),
        "duration_s": duration,
        "memory_peak": 734_003_200,
        "memory_limit_reached": False,
    }


def summary_of(name: str, value: float, figures: Mapping[str, float]) -> Summary:
    return Summary(
        checkpoint=name,
        progress=int(name.partition("-")[2]),
        checkpoint_digest=digest(name),
        status=ScoreStatus.SCORED,
        metric="unlearn_score",
        direction=Direction.MAX,
        value=value,
        metrics={
            "unlearn_score": Number(value=value),
            "retain_acc": Number(value=0.7047),
            "forget_acc": Number(value=0.0),
            "forget_mia_auc": Number(value=0.4072),
            **{figure: Number(value=measured) for figure, measured in figures.items()},
        },
        baselines={
            "start": {"unlearn_score": Number(value=0.4213), "retain_acc": Number(value=0.95)},
            "reference": {"unlearn_score": Number(value=0.8012), "retain_acc": Number(value=0.94)},
        },
    )


def commit(scoring: ScoringFolder, committed: ScoringFolder | CheckpointScore) -> None:
    """Write ``.complete`` over a receipt that stands in for a signed one, and a summary if any."""
    receipt = committed.root / "receipts" / "001-score.json"
    receipt.parent.mkdir(exist_ok=True)
    receipt.write_text("{}")
    summary = committed.summary if committed.summary.exists() else None
    record = commit_record(committed.root, receipt, summary)
    committed.complete.write_bytes(record.encode())
