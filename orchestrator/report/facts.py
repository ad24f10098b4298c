"""The facts of a run in the order they are read, for ``orch show`` and for the report alike."""

from orchestrator.domain.quantity import human
from orchestrator.domain.records import Number, PhasePlan, Summary
from orchestrator.domain.roles import Phase
from orchestrator.lifecycle.machine import Event, State
from orchestrator.report import model_use, telemetry, words
from orchestrator.report.answers import answers_section
from orchestrator.report.lookup import same_candidate
from orchestrator.report.references import references_section
from orchestrator.report.section import Fact, Section, Table
from orchestrator.report.story import exit_text, taken_over
from orchestrator.report.text import one_line
from orchestrator.report.views import (
    AttemptView,
    ReplayView,
    RunView,
    Score,
    ScoringView,
    contested_of,
    ending_reason,
    exit_facts_of,
    reason_and_origin,
    relaxations_of,
    score_of,
    state_word,
)
from orchestrator.storage.journal import JournalView
from receipts.complete import Completeness


def sections(view: RunView) -> tuple[Section, ...]:
    """Everything known of a run, and of what lies below it."""
    if isinstance(view, AttemptView):
        below = tuple(part for replay in view.replays for part in sections(replay))
        own = (identity(view), happened(view), made_of(view), candidate(view))
        return _filled(*own, answers_section(view), *below, references_section(view))
    if isinstance(view, ReplayView):
        below = tuple(part for scoring in view.scorings for part in sections(scoring))
        return _filled(replay_section(view), *below)
    return _filled(scoring_section(view))


def identity(view: AttemptView) -> Section:
    """Who is measured, on what, and under which rules."""
    plan, config = view.plan, view.config
    facts: list[Fact] = [("id", view.id)]
    if plan:
        facts += [
            ("run id", plan.run_id),
            (
                "task",
                f"{plan.task.name} ({plan.task.title})" if plan.task.title else plan.task.name,
            ),
            ("task digest", plan.task_digest),
            ("agent", f"{plan.agent} {words.short_digest(plan.agent_digest)}"),
            *model_use.package(plan),
            ("model", plan.model),
            ("effort", plan.effort),
            ("entry", f"{plan.entry} ({plan.patch_name})" if plan.patch_name else plan.entry),
            ("standing", plan.standing),
            *_known(("about the score", plan.task.score.note)),
            ("created", words.utc(plan.created)),
            ("wall", words.duration(plan.wall)),
            ("made by", f"orch {plan.version}"),
        ]
    elif config:
        facts += [
            ("task", config.task),
            ("agent", config.agent),
            ("model", config.model),
            ("effort", config.effort),
        ]
    return Section("Identity", tuple(facts))


def happened(view: AttemptView) -> Section:
    """How the exploration went and ended."""
    reason, origin = reason_and_origin(view)
    facts: list[Fact] = [("state", state_word(view))]
    facts += _known(
        ("reason", reason),
        ("origin", origin),
        ("exit", exit_text(exit_facts_of(view))),
        ("ending", ending_reason(view) if state_word(view).startswith("terminal") else ""),
        ("message", _declined(view)),
        *(("breach", text) for text in breaches(view.journal)),
        ("contested", ", ".join(contested_of(view))),
        *taken_over(view),
        *model_use.lines(view.plan, view.journal),
        *telemetry.lines(view.folder.telemetry, Phase.EXPLORE, view.journal),
        ("refused submissions", str(len(view.journal.all(Event.SUBMIT_REFUSED)) or "")),
        ("completion", _completion(view)),
        *(("fault", fault) for fault in view.faults),
    )
    return Section("What happened", tuple(facts))


def made_of(view: AttemptView) -> Section:
    """The image, the engine and the data a run was made of."""
    plan = view.plan
    if plan is None:
        return Section("Made of")
    rows = tuple(
        (path, material.role, words.short_digest(material.digest), _also(material.also))
        for path, material in plan.materials.items()
    )
    return Section(
        "Made of",
        (*_image(plan), *_limits(plan), *(("relaxed", line) for line in relaxations_of(view))),
        (Table("Materials", ("asset", "role", "digest", "also in"), rows),),
    )


def candidate(view: AttemptView) -> Section:
    """What was captured, and what of the workspace did not cross."""
    found = view.submission
    if found is None:
        return Section("Candidate")
    facts: list[Fact] = [
        ("patch", f"{found.patch_sha256} ({human(found.patch_size)})"),
        ("resulting tree", found.manifest_digest),
        ("pristine tree", found.base_digest),
        ("accepted", words.utc(found.accepted_at)),
        ("changes", "none" if found.empty else _changes(found.changed)),
    ]
    if found.pause_ms is not None:
        facts.append(("pause", f"{found.pause_ms:.0f} ms"))
    facts += [("outside /workspace", line) for line in found.outside_workspace]
    left = tuple((line.path, line.reason) for line in found.left_out)
    return Section("Candidate", tuple(facts), (Table("Left out", ("path", "reason"), left),))


def replay_section(view: ReplayView) -> Section:
    """A formal run: what was checked before it, how it ended, what it published."""
    plan = view.plan
    collected = view.journal.last(Event.COLLECTED)
    facts = [("id", view.id), ("state", state_word(view))]
    facts += _known(
        ("run id", plan.run_id if plan else ""),
        ("series", plan.series if plan else ""),
        ("same candidate", ", ".join(_other_draws(view))),
        ("again", (plan.again or "") if plan else ""),
        ("command", " ".join(plan.argv) if plan else ""),
        ("standing", plan.standing if plan else ""),
        ("exit", exit_text(exit_facts_of(view))),
        ("memory peak", _memory_peak(view)),
        *telemetry.lines(view.folder.telemetry, Phase.REPLAY, view.journal),
        ("host facts", ", ".join(_host_facts(view))),
        ("contested", ", ".join(contested_of(view))),
        *taken_over(view),
        ("ending", ending_reason(view)),
        ("ignored entries", str(collected.data.get("ignored") or "") if collected else ""),
        *(("relaxed", line) for line in relaxations_of(view)),
        ("completion", _completion(view)),
        *(("fault", fault) for fault in view.faults),
    )
    return Section(
        f"Replay {view.id.rpartition('-')[2]}", tuple(facts), (_gate(view), _judged(view))
    )


def scoring_section(view: ScoringView) -> Section:
    """One run of the evaluator: per checkpoint and in sum."""
    plan = view.plan
    facts = [("id", view.id), ("state", state_word(view))]
    facts += _known(
        ("run id", plan.run_id if plan else ""),
        ("metric", f"{plan.metric} ({plan.direction})" if plan else ""),
        ("evaluator", plan.evaluator_digest if plan else ""),
        ("supersedes", f"score-{plan.supersedes:03d}" if plan and plan.supersedes else ""),
        ("standing", plan.standing if plan else ""),
        *telemetry.lines(view.folder.telemetry, Phase.SCORE, view.journal),
        ("contested", ", ".join(contested_of(view))),
        *taken_over(view),
        ("ending", ending_reason(view)),
        *(("relaxed", line) for line in relaxations_of(view)),
        ("completion", _completion(view)),
        *(("fault", fault) for fault in view.faults),
    )
    number = view.id.rpartition("-")[2]
    return Section(f"Scoring {number}", tuple(facts), (scores(view), components(view)))


def scores(view: ScoringView) -> Table:
    """The aggregate's lines, best marked; empty unless the scoring is committed."""
    if view.aggregate is None:
        return Table("Scores", (), ())
    best = view.aggregate.best.checkpoint if view.aggregate.best else None
    rows = tuple(
        (
            line.checkpoint + (" (best)" if line.checkpoint == best else ""),
            line.status,
            line.reason,
            str(line.progress),
            words.figure(line.value),
        )
        for line in view.aggregate.checkpoints
    )
    metric = view.aggregate.metric
    return Table("Scores", ("checkpoint", "status", "reason", "progress", metric), rows, numeric=2)


def components(view: ScoringView) -> Table:
    """Every measured number by checkpoint, and the baselines measured in the same run."""
    summaries = [c.summary for c in view.checkpoints if c.summary]
    first = [summary.metric for summary in summaries]
    names = list(dict.fromkeys([*first, *(name for s in summaries for name in s.metrics)]))
    columns = {s.checkpoint: _measured(s) for s in summaries}
    for name, numbers in (summaries[0].baselines if summaries else {}).items():
        columns[f"{name} (baseline)"] = {key: _number(value) for key, value in numbers.items()}
    rows = tuple((name, *(column.get(name, "-") for column in columns.values())) for name in names)
    return Table("Components", ("component", *columns), rows, numeric=len(columns))


def hashes(view: AttemptView) -> tuple[Fact, ...]:
    """Every digest by which the result can be walked back, and the heads of the journals."""
    facts: list[Fact] = []
    if view.plan:
        facts += [
            ("task", view.plan.task_digest),
            ("agent", view.plan.agent_digest),
            ("image", view.plan.image.digest),
            *((path, material.digest) for path, material in view.plan.materials.items()),
        ]
    if view.submission:
        facts += [
            ("candidate.patch", view.submission.patch_sha256),
            ("candidate tree", view.submission.manifest_digest),
        ]
    facts.append(("journal of the attempt", view.journal.head))
    for replay in view.replays:
        name = replay.id.rpartition("/")[2]
        facts.append((f"journal of {name}", replay.journal.head))
        facts += [
            (f"{name} {found.name}", found.digest)
            for found in (replay.artifacts.artifacts if replay.artifacts else ())
            if found.digest
        ]
        for scoring in replay.scorings:
            facts.append((f"journal of {name}/{scoring.folder.root.name}", scoring.journal.head))
            if scoring.plan:
                facts.append(("evaluator", scoring.plan.evaluator_digest))
    return tuple(fact for fact in facts if fact[1])


def score_text(score: Score | None) -> str:
    """Write a result in one line: the figure and its marks, or why there is none."""
    if score is None:
        return "-"
    if score.best is None:
        return score.word.replace("_", " ")
    marks = ["official" if score.official else "local"]
    if score.contested:
        marks.append("contested")
    return f"{words.figure(score.best.value)} {' '.join(marks)}"


def breaches(journal: JournalView) -> tuple[str, ...]:
    """What of the patch policy was broken, where that is why there is no candidate; a few lines."""
    record = journal.last(Event.DECLINED)
    listed = record.data.get("violations") if record else None
    known = [b for b in listed if isinstance(b, dict)] if isinstance(listed, list) else []
    found = [one_line(str(breach.get("text"))) for breach in known]
    rest = len(found) - _MOST_BREACHES
    return (*found[:_MOST_BREACHES], f"and {rest} more") if rest > 0 else tuple(found)


_MOST_BREACHES = 5


def member(view: ReplayView) -> str:
    """Which member of its series a replay is, where it is not the official one; else ""."""
    series = view.plan.series if view.plan else ""
    return "" if series == "official" else series


def next_command(view: AttemptView) -> str:
    """The command an operator will most likely want next."""
    option = view.plan.option if view.plan else ""
    if not view.replays:
        submitted = view.journal.state is State.SUBMITTED
        return f"orch replay {view.id}{option}" if submitted else f"orch lifecycle {view.id}"
    replay = view.replays[-1]
    score = score_of(replay)
    unscored = score is None or score.word in _SCORE_AGAIN
    if replay.artifacts and replay.artifacts.accepted() and unscored:
        return f"orch score {replay.id}{replay.plan.option if replay.plan else ''}"
    return {
        State.TERMINAL_BEHAVIOR: f"orch report {view.id}",
        State.TERMINAL_INFRASTRUCTURE: f"orch replay {view.id}{option}",
        State.TERMINAL_OPERATOR: f"orch replay {view.id} --again REASON{option}",
    }.get(replay.journal.state or State.QUEUED, f"orch logs {replay.id}")


_SCORE_AGAIN = frozenset({State.SCORE_FAILED, State.TERMINAL_OPERATOR})


def _filled(*all_sections: Section) -> tuple[Section, ...]:
    return tuple(
        Section(part.title, part.facts, tuple(table for table in part.tables if table.rows))
        for part in all_sections
        if part.facts or any(table.rows for table in part.tables)
    )


def _known(*facts: Fact) -> list[Fact]:
    return [(label, text) for label, text in facts if text]


def _completion(view: RunView) -> str:
    found = view.completion
    if found.completeness is Completeness.ABSENT:
        return ""
    return found.completeness


def _declined(view: AttemptView) -> str:
    record = view.journal.last(Event.DECLINED)
    return str(record.data.get("message") or "") if record else ""


def _image(plan: PhasePlan) -> list[Fact]:
    return [
        ("image", f"{plan.image.reference} {plan.image.digest}"),
        ("engine", f"{plan.engine.kind} {plan.engine.version}"),
    ]


def _limits(plan: PhasePlan) -> list[Fact]:
    limits = plan.resources
    sizes = f"memory {human(limits.memory)}, disk {human(limits.disk)}"
    devices = f", {words.count(limits.gpus, 'GPU')}" if limits.gpus else ""
    return [("limits", f"{limits.cpus:g} CPU, {sizes}{devices}")]


def _also(phases: tuple[str, ...]) -> str:
    return ", ".join(phases)


def _changes(changed: dict[str, int]) -> str:
    return ", ".join(f"{number} {kind}" for kind, number in changed.items() if number) or "none"


def _other_draws(view: ReplayView) -> tuple[str, ...]:
    """Other replays of the same candidate; to find them reads the plan of every replay there is."""
    return same_candidate(view.folder, view.plan.candidate) if view.plan else ()


def _memory_peak(view: RunView) -> str:
    peak = exit_facts_of(view).get("memory_peak")
    return f"at least {human(peak)}" if isinstance(peak, int) else ""


def _host_facts(view: ReplayView) -> list[str]:
    record = view.journal.last(Event.EXITED)
    listed = record.data.get("host_facts") if record else None
    return [str(fact) for fact in listed] if isinstance(listed, list) else []


def _gate(view: ReplayView) -> Table:
    checks = view.gate.checks if view.gate else ()
    rows = tuple((c.name, "passed" if c.passed else "refused", c.detail) for c in checks)
    return Table("Gate", ("check", "result", "detail"), rows)


def _judged(view: ReplayView) -> Table:
    rows = tuple(
        (
            found.name,
            found.status,
            ": ".join(part for part in (found.reason, found.detail) if part),
            words.short_digest(found.digest or ""),
            str(found.attempts),
            words.duration(found.seconds) if found.attempts else "-",
            human(found.size) if found.size is not None else "-",
        )
        for found in (view.artifacts.artifacts if view.artifacts else ())
    )
    headings = ("checkpoint", "judged", "reason", "digest", "tries", "time", "size")
    return Table("Artifacts", headings, rows, numeric=3)


def _measured(summary: Summary) -> dict[str, str]:
    return {
        name: _number(value) if isinstance(value, Number) else " ".join(map(_number, value))
        for name, value in summary.metrics.items()
    }


def _number(number: Number) -> str:
    return number.nonfinite or words.figure(number.value)
