"""What is seen of a real container's processes, from real rows: a run, a fork, a leftover."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from orchestrator.domain.roles import Phase
from orchestrator.domain.telemetry import AnyRow, Begin, End, Processes, Sample, Started
from orchestrator.evidence.telemetry_log import read_telemetry
from orchestrator.report.telemetry import figures
from tests.e2e.rig import PUBLISH, Rig, events, last

pytestmark = pytest.mark.docker

FORKER = (
    PUBLISH
    + """\
python3 -c '
import os, signal, time
held = bytearray(64 << 20)
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        signal.pause()
while time.process_time() < 1.5:
    sum(range(10_000))
time.sleep(2.5)
'
publish 10 0.1
"""
)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def started(rows: Iterable[AnyRow]) -> list[Started]:
    return [entry for row in rows if isinstance(row, Processes) for entry in row.started]


def test_rows_of_a_forker_tell_its_tree_its_memory_and_its_cpu(rig: Rig) -> None:
    replay = rig.run(FORKER, telemetry={"every": "1s"})
    rows = read_telemetry(replay / "telemetry.jsonl").rows
    begins = [row for row in rows if isinstance(row, Begin)]
    assert [row.phase for row in begins] == [Phase.REPLAY, Phase.VALIDATE]
    assert begins[0].container == last(replay, "run_started")["container"]
    of = begins[0].of
    ours = [row for row in rows if row.of == of]
    assert isinstance(ours[-1], End)
    found = started(ours)
    # A look between fork and exec sees a child under its parent's name; the next one corrects it.
    changes = [it for row in ours if isinstance(row, Processes) for it in row.changed]
    said = {(it.pid, it.started): it.command for it in found}
    said |= {(it.pid, it.started): it.command for it in changes if it.command}
    first = {(it.pid, it.started): it.ppid for it in found}
    init = next(entry for entry in found if entry.inner == 1)
    assert init.root
    shell = next(e for e in found if said[e.pid, e.started] == "bash /workspace/run.sh")
    assert (shell.ppid, shell.root) == (init.pid, False)
    parent, *children = sorted(
        (e for e in found if (said[e.pid, e.started] or "").startswith("python3 -c")),
        key=lambda entry: entry.pid,
    )
    assert parent.ppid == shell.pid
    assert len(children) == 3
    assert {child.ppid for child in children} == {parent.pid}
    assert all(init.started <= shell.started <= child.started for child in children)
    # Without their parent, the first process of the container has them.
    moved = {(it.pid, it.ppid) for it in changes if it.ppid != first.get((it.pid, it.started))}
    assert moved <= {(child.pid, init.pid) for child in children}
    seen = figures(rows, Phase.REPLAY)
    assert seen.memory is not None
    assert seen.memory >= 64 << 20
    assert seen.cpu_s >= 1.5
    pids = [row.use.pids for row in ours if isinstance(row, Sample) and row.use.pids]
    assert max(pids) >= 6
    ended = last(replay, "exited")
    assert ended["contested"] == []
    assert ended["host_facts"] == []


def test_what_an_experiment_left_running_is_named_in_the_journal_and_shown(rig: Rig) -> None:
    steps = (
        {"run": "python3 -c 'import time; time.sleep(60)' leftover & sleep 1"},
        {"run": "bash -c 'sleep 3; echo second'"},
        {"run": "echo '# changed' >> run.sh; /opt/harness/submit.sh"},
    )
    attempt = rig.explore(rig.pack(steps=steps))
    notes = [line["data"] for line in events(attempt) if line["event"] == "noted"]
    (orphan,) = (note for note in notes if note.get("audit") == "orphan_overlap")
    assert orphan["command"] == "python3 -c import time; time.sleep(60) leftover"
    assert "sleep 3; echo second" in orphan["beside"]
    assert orphan["overlap"] > 0.2
    assert orphan["started"] < orphan["orphaned"]
    shown = rig.orch("show", attempt)
    assert "left running" in shown.out
    assert "leftover" in shown.out
    rig.nothing_left()


def test_a_command_that_ends_all_it_started_leaves_nothing_to_name(rig: Rig) -> None:
    steps = (
        {"run": "sleep 60 & sleep 0.5; kill %1; wait"},
        {"run": "sleep 0.5"},
        {"run": "echo '# changed' >> run.sh; /opt/harness/submit.sh"},
    )
    attempt = rig.explore(rig.pack(steps=steps))
    assert "orphan_overlap" not in (attempt / "lifecycle.jsonl").read_text()


def test_nothing_that_an_evaluator_says_of_itself_is_kept(rig: Rig) -> None:
    row = "final-row-8d1f"
    scorer = (
        f"bash -c 'exec -a {row} sleep 2'\n"
        """echo '{"status": "scored", "metrics": {"score": 0.5}}' > /out/summary.json\n"""
    )
    attempt = rig.enter(rig.pack(PUBLISH + "publish 10 0.1\n", scorer=scorer))
    replay = rig.replay(attempt)
    score = replay / "score-001"
    assert json.loads((score / "summary.json").read_text())["status"] == "scored"
    path = score / "telemetry.jsonl"
    assert path.stat().st_mode & 0o777 == 0o600
    rows = read_telemetry(path).rows
    assert any(entry.inner != 1 for entry in started(rows))
    assert {entry.command for entry in started(rows)} == {None}
    assert row not in path.read_text()
    assert row not in rig.orch("show", score).out
