"""``orch logs -f``: what is added is printed as it comes, until nobody works on the run."""

import json
import threading
from pathlib import Path

import pytest

from orchestrator.cli import app
from orchestrator.errors import Exit, UsageError
from orchestrator.report.output import Follower
from orchestrator.storage.supervisor import supervising
from tests.unit.sample_runs import SampleRuns

LINES = (
    {"ts": "T1", "kind": "thought", "text": "hm"},
    {"ts": "T2", "kind": "call", "tool": "Bash", "arguments": "ls"},
    {"ts": "T3", "kind": "output", "output": "a\nb", "exit_code": 1},
    {
        "ts": "T4",
        "kind": "tokens",
        "exchange": 3,
        "model": "m",
        "input": 9,
        "cached": 4,
        "output": 2,
        "seconds": 0.5,
        "cost": 0.25,
    },
    {"ts": "T5", "kind": "tokens", "exchange": 4, "refused": "budget", "why": "spent"},
)
TOLD = [
    "[T1] thought",
    "    hm",
    "[T2] Bash ls",
    "[T3] output, exit code 1",
    "    a",
    "    b",
    "[T4] exchange 3, m: 9 tokens in (4 cached), 2 out, 0.5 s, cost 0.25",
    "[T5] exchange 4 refused (budget): spent",
]


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SampleRuns:
    monkeypatch.setenv("ORCH_RUNS", str(tmp_path / "runs"))
    return SampleRuns(tmp_path / "runs")


def test_a_line_is_told_once_and_when_it_is_whole(sample: SampleRuns) -> None:
    folder, _ = sample.attempt()
    follower = Follower(folder)
    assert list(follower.news()) == []
    whole = "".join(json.dumps(line) + "\n" for line in LINES)
    folder.transcript.write_text(whole + '{"ts": "T6", ')
    assert list(follower.news()) == TOLD
    with folder.transcript.open("a") as file:
        file.write('"kind": "message", "text": "done"}\n')
    assert list(follower.news()) == ["[T6] message", "    done"]
    assert list(follower.news()) == []


def test_it_ends_with_the_supervisor(
    sample: SampleRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = sample.attempt()
    begun, over = threading.Event(), threading.Event()

    def supervise() -> None:
        with supervising(folder.root):
            folder.transcript.write_text('{"ts": "T1", "kind": "message", "text": "one"}\n')
            begun.set()
            over.wait(30)
            with folder.transcript.open("a") as file:
                file.write('{"ts": "T2", "kind": "message", "text": "two"}\n')

    worker = threading.Thread(target=supervise)
    worker.start()
    assert begun.wait(30)
    following = threading.Thread(target=app.run, args=(["logs", "-f", "attempt-001"],))
    following.start()
    over.set()
    following.join(30)
    worker.join(30)
    assert not following.is_alive()
    told = ["[T1] message", "    one", "[T2] message", "    two"]
    assert capsys.readouterr().out.splitlines() == told


def test_what_is_no_text_is_not_followed(sample: SampleRuns) -> None:
    sample.attempt()
    for other in ("--raw", "--json"):
        assert app.run(["logs", "-f", "attempt-001", other]) == Exit.USAGE
    assert app.run(["logs", "attempt-001", "--raw", "--json"]) == Exit.USAGE


def test_the_output_of_a_scoring_is_not_followed(sample: SampleRuns) -> None:
    with pytest.raises(UsageError, match="sealed"):
        Follower(sample.finished())
