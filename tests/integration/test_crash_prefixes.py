"""Every prefix of the durable operations of one whole run: what is read, and how it goes on."""

import json
import os
import re
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.evidence.context import Context
from orchestrator.lifecycle.machine import Event, State, is_terminal
from orchestrator.pipeline import drive
from orchestrator.pipeline.reconcile import every_run, reconcile
from orchestrator.report import views
from orchestrator.storage.campaign import CampaignEvent, read_campaign
from orchestrator.storage.journal import read_journal
from orchestrator.storage.layout import AttemptFolder, RunFolder, RunsFolder
from receipts.complete import Completeness, check
from receipts.verify import verify
from receipts.verify_model import Wanted
from tests.integration.memory_bench import Bench, Clock, state_of
from tests.integration.recorded_disk import (
    Crash,
    Operation,
    Snapshot,
    crashes,
    recording,
    write_out,
)

_VOLUME = re.compile(
    r"/(?:attempt|replay|score)-\d+/(?:workspace|out|control|scratch|validate-out)/"
)
_OURS = re.compile(r"\.(?!complete$|supervisor\.lock$).*")
_GOING_ON = re.compile(
    r"no run here$|missing$|no journal, so|the journal calls for .*; here is"
    r"|missing: the run has ended, and the next|.*: there is no \.complete for it"
    r"|there is no receipted"
)
"""What verification may find before the next command: that something is not there yet."""

PARTS = 6
"""How many tests share the prefixes, so that they can run side by side."""

_DURABLE = "orchestrator.storage.durable"
_ELSEWHERE = {
    "orchestrator.storage.supervisor": "names for people, which nothing depends on",
    "orchestrator.storage.lock": "an empty file to hold a lock on",
    "orchestrator.evidence.telemetry_log": "plain appends, synced before they are receipted",
    "orchestrator.storage.ledger": "reservations end with their holder",
    "orchestrator.adapters.loop_volumes": "volumes end with their phase",
    "orchestrator.evidence.collect": "copies checkpoints, with fsyncs of its own",
    "orchestrator.evidence.capped_log": "plain appends",
    "orchestrator.evidence.walk": "removes volumes and what an unfinished copy left",
    "receipts.keys": "stands alone",
}


@dataclass(frozen=True)
class Recorded:
    """One whole run as it was recorded, and the tree it left."""

    bench: Bench
    operations: list[Operation]
    after: dict[str, bytes]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Record an exploration, a replay and a scoring."""
    root = tmp_path_factory.mktemp("recorded")
    bench = Bench(root)
    base = root / "base"
    base.mkdir()
    with recording(base, lambda path: bool(_VOLUME.search(f"/{path}/"))) as operations:
        bench.go_on(bench.context(base, Clock()))
    return Recorded(bench, operations, _files(base))


def _files(base: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(base)): path.read_bytes()
        for path in sorted(base.rglob("*"))
        if path.is_file() and not _VOLUME.search(f"/{path.relative_to(base)}")
    }


def test_what_matters_is_written_by_one_module(recorded: Recorded) -> None:
    stray = Counter(
        (op.by, op.kind, re.sub(r"[0-9a-f]{12,}", "*", op.path))
        for op in recorded.operations
        if op.by and op.by != _DURABLE and op.by not in _ELSEWHERE
    )
    assert not stray, dict(stray)
    made = Counter(op.kind for op in recorded.operations if op.by == _DURABLE)
    assert made["link"] > 10
    assert made["write"] > made["link"]
    assert made["fsync"] > made["write"]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_every_prefix_is_read_and_gone_on_from(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _: None)
    monkeypatch.setattr("orchestrator.evidence.supervise.TICK", 0.01)
    seen: set[int] = set()
    prefixes = 0
    for crash in crashes(recorded.operations):
        prefixes += 1
        key = hash((crash.power, frozenset(_visible(crash.tree).items())))
        if key in seen:
            continue
        seen.add(key)
        if len(seen) % PARTS != part:
            continue
        base = tmp_path / "base"
        base.mkdir()
        write_out(crash.tree, base)
        try:
            _reads(base)
            _continues(recorded, crash, base)
        except BaseException as failure:
            failure.add_note(
                f"after operation {crash.at} ({crash.what}), power lost: {crash.power}"
            )
            raise
        shutil.rmtree(base)
    print(
        f"{len(recorded.operations)} operations, {prefixes} prefixes with their variants, "
        f"{len(seen)} different trees"
    )
    assert len(seen) > 250


def _visible(tree: Snapshot) -> dict[str, bytes | str | None]:
    """Leave out what no reader looks at: unfinished files of the writer."""
    return {
        path: content
        for path, content in tree.items()
        if not any(_OURS.fullmatch(part) for part in path.split("/"))
    }


def _reads(base: Path) -> None:
    """Read everything there is; no half result, no exception, and nothing is changed."""
    before = _files(base)
    runs = RunsFolder(base / "runs")
    read_campaign(runs.campaign)
    for attempt in views.attempts(runs):
        for replay in attempt.replays:
            score = views.score_of(replay)
            if score is not None and score.best is not None:
                assert (score.best.checkpoint, score.best.value) == ("checkpoint-20", 0.3)
        assert not [f for f in attempt.faults if "corrupt" in f]
    for marker in runs.root.rglob(".complete"):
        found = check(marker)
        assert found.completeness is Completeness.COMPLETE, found.reason
    if runs.root.is_dir():
        faults = verify(runs.root, Wanted()).faults
        assert not [f for f in faults if not _GOING_ON.match(f.what)], faults
    assert _files(base) == before


def _continues(recorded: Recorded, crash: Crash, base: Path) -> None:
    """Let the next command clean up, and go on to a score."""
    clock = Clock()
    clock.advance(10)
    if crash.power:
        clock.reboot()
    ctx = recorded.bench.context(base, clock)
    before = {run: read_journal(run.journal, drive.KINDS[type(run)]) for run in every_run(ctx)}
    reconcile(ctx)
    once = _files(base)
    for run in every_run(ctx):
        _has_ended(recorded, base, run)
        view = before[run]
        if view.last(Event.CAPTURED) is not None and isinstance(run, AttemptFolder):
            assert state_of(run) is State.SUBMITTED, "a submission was lost"
    reconcile(ctx)
    assert _files(base) == once, "cleaning up twice is not the same as once"
    recorded.bench.go_on(ctx)
    _is_one_result(ctx)


def _has_ended(recorded: Recorded, base: Path, run: RunFolder) -> None:
    kind = drive.KINDS[type(run)]
    view = read_journal(run.journal, kind)
    assert view.state is not None
    assert is_terminal(kind, view.state), f"{run.root} is {view.state}"
    began = any(record.event is not Event.REGISTERED for record in view.records[:-1])
    assert run.complete.exists() or not began
    name = str(run.root.relative_to(base))
    if recorded.after.get(f"{name}/lifecycle.jsonl") == run.journal.read_bytes():
        for path, content in recorded.after.items():
            if path.startswith((f"{name}/receipts/", f"{name}/.complete")):
                assert (base / path).read_bytes() == content, "a receipt was minted otherwise"


def _is_one_result(ctx: Context) -> None:
    (attempt,) = (a for c in ctx.runs.configs() for a in c.attempts() if _is(a, State.SUBMITTED))
    (replay,) = (r for r in attempt.replays() if _is(r, State.TERMINAL_BEHAVIOR))
    (scoring,) = (s for s in replay.scorings() if _is(s, State.SCORED))
    for run in (attempt, replay, scoring):
        assert check(run.complete).completeness is Completeness.COMPLETE
    best = json.loads(scoring.summary.read_text())["best"]
    assert (best["checkpoint"], best["value"]) == ("checkpoint-20", 0.3)
    ended = [
        record.data["run_id"]
        for record in read_campaign(ctx.runs.campaign).records
        if record.event is CampaignEvent.ENDED
    ]
    assert len(ended) == len(set(ended)), "an end was logged twice"
    report = verify(ctx.runs.root, Wanted(whole_campaign=True))
    assert not report.faults
    assert ctx.ledger.held() == ()


def _is(folder: RunFolder, state: State) -> bool:
    return state_of(folder) is state
