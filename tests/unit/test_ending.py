"""The few lines that end a command: how it came out, why there is no score, what to do next."""

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.domain.records import Artifacts
from orchestrator.lifecycle.machine import Event, State
from orchestrator.report.ending import lines
from orchestrator.report.facts import happened, next_command
from orchestrator.report.views import read_attempt
from orchestrator.storage.layout import ReplayFolder, RunFolder
from tests.unit.sample_runs import SampleRuns, exit_facts, save


@pytest.fixture
def sample(tmp_path: Path) -> SampleRuns:
    return SampleRuns(tmp_path / "runs")


def made_official(folder: RunFolder) -> None:
    plan: dict[str, Any] = json.loads(folder.plan.read_text())
    folder.plan.write_text(json.dumps({**plan, "official": True, "relaxations": []}))


def told(folder: ReplayFolder) -> list[str]:
    return list(lines(folder, State.TERMINAL_BEHAVIOR))


def test_what_follows_an_official_run_is_official_too(sample: SampleRuns) -> None:
    attempt = sample.submitted()
    assert not list(lines(attempt, State.SUBMITTED))[-1].endswith("--official")
    made_official(attempt)
    assert list(lines(attempt, State.SUBMITTED))[-1].endswith(" --official")
    assert (
        next_command(read_attempt(attempt)) == f"orch replay {read_attempt(attempt).id} --official"
    )
    replay = sample.replayed(attempt)
    assert told(replay)[-1].startswith("  next: orch score ")
    made_official(replay)
    assert told(replay)[-1].endswith(" --official")
    assert next_command(read_attempt(attempt)).endswith("/replay-001 --official")


def test_a_replay_without_a_checkpoint_says_so_and_where_its_output_is(sample: SampleRuns) -> None:
    replay, journal = sample.started_replay(sample.submitted())
    journal.append(
        Event.EXITED, exit=exit_facts(7, "exited", duration=0.2), host_facts=[], contested=[]
    )
    journal.append(Event.COLLECTED, checkpoints=[])
    journal.append(Event.NO_CHECKPOINT)
    save(replay.artifacts, Artifacts(artifacts=()))
    short = json.loads(replay.plan.read_text())["run_id"][:8]
    assert told(replay)[-3:] == [
        "  no score: no checkpoint",
        f"  what it wrote: orch logs {short}",
        f"  look further: orch show {short}",
    ]


def test_what_a_validator_said_stands_behind_its_word_in_one_line(sample: SampleRuns) -> None:
    replay = sample.replayed(sample.submitted())
    assert "    checkpoint-9999: not_loadable: weights.npz is not a zip file" in told(replay)
    text = replay.artifacts.read_text().replace("is not a zip file", "\\nno score: forged")
    replay.artifacts.write_text(text)
    assert "    checkpoint-9999: not_loadable: weights.npz no score: forged" in told(replay)


def test_no_candidate_says_why_and_what_of_the_policy_was_broken(sample: SampleRuns) -> None:
    attempt, journal = sample.explored()
    texts = ["big.bin: weights do not cross", *(f"{n}.py: too\nlong" for n in range(6))]
    journal.append(
        Event.DECLINED,
        reason="agent_early_exit",
        origin="none",
        message="policy",
        violations=[{"path": "", "rule": "r", "text": text} for text in texts],
    )
    said = list(lines(attempt, State.NO_CANDIDATE))
    assert said[1:4] == [
        "  no_candidate: agent_early_exit: policy",
        "    big.bin: weights do not cross",
        "    0.py: too long",
    ]
    assert said[-2] == "    and 2 more"
    assert ("breach", "0.py: too long") in happened(read_attempt(attempt)).facts
