"""The task unlearning_security_audit from a model's answers to labels that a person corrected."""

import io
import itertools
import json
import shutil
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from orchestrator.config import bundled
from tests.e2e.rig import Done, Rig, events, final, last, snapshot
from tests.e2e.test_models import mock
from tests.large_images import require_image
from tests.mock_models.turns import Seen, Turn

SCRIPTS = Path(__file__).parents[1] / "data/audit_scripts/seen"
BUGS = {
    "masked_loss": "The bug is multiplying forget_loss by 0.0. No gradient flows from those rows.",
    "zero_target": "The labels of the planted rows are overwritten with zeros. The planted "
    "association is never unlearned.",
}
PLAN = "Measure clean accuracy, the attack success rate, and compare with a retrained model."
LIMIT = "This cannot mathematically guarantee complete and irreversible erasure."
HOSTILE = """\
import os, signal, subprocess, sys
def unlearn(model, retain_loader, forget_loader, alpha, lr, steps):
    subprocess.Popen(["setsid", "sleep", "300"])
    print("\\x1b[2J", file=sys.stderr)
    for name in ("/opt/evaluator", "/assets/data/final", "/assets/models/retrained"):
        assert not os.path.exists(name)
    open("/workspace/answers/zero_target/3.md", "w").write("forged")
    forged = "/out/checkpoints/checkpoint-9"
    os.makedirs(f"{forged}/answers/masked_loss")
    for name in ("runs.json", "answers/masked_loss/1.md"):
        try:
            os.write(os.open(f"{forged}/{name}", os.O_CREAT | os.O_WRONLY), b"{}")
            os._exit(5)
        except OSError:
            pass
    try:
        open(f"/proc/{os.getppid()}/mem", "r+b")
        os._exit(5)
    except PermissionError:
        pass
    os.kill(os.getpid(), signal.SIGKILL)
"""


def answer(case: str, code: str, *, limit: str = LIMIT) -> str:
    return f"# The bug\n\n{BUGS[case]}\n\n```python\n{code}```\n\n{PLAN}\n\n{limit}\n"


def script(name: str) -> str:
    return (SCRIPTS / f"{name}.py").read_text()


ANSWERS = {
    "masked_loss": (
        answer("masked_loss", script("plain_ascent")),
        answer("masked_loss", script("wrong_sign"), limit="It is certain to be gone."),
        answer("masked_loss", HOSTILE),
    ),
    "zero_target": (
        answer("zero_target", script("numpy_manual")),
        answer("zero_target", "def unlearn(*a, **k):\n    raise SystemExit\n"),
        "\x1b]0;owned\x07 Nothing is wrong.",
    ),
}


class Model:
    """Answers each question of the task with what stands there for its case."""

    def __init__(self) -> None:
        self.counts = {case: itertools.count() for case in ANSWERS}

    def __call__(self, seen: Seen) -> Turn:
        messages = seen.body["messages"]
        assert [message["role"] for message in messages] == ["system", "user"]
        assert "tools" not in seen.body
        masked = "0.0 * forget_loss" in messages[1]["content"]
        case = "masked_loss" if masked else "zero_target"
        return Turn(text=ANSWERS[case][next(self.counts[case])])


@pytest.fixture
def pack(rig: Rig) -> Path:
    require_image("torch-cpu")
    place = rig.root / "pack"
    shutil.copytree(bundled("tasks") / "unlearning_security_audit", place)
    done = rig.call("task", "prepare", place)
    assert done.code == 0, done.err
    return place


def typed(rig: Rig, text: str, *words: str | Path) -> Done:
    """Run a command with something on its standard input."""
    with patch.object(sys, "stdin", io.StringIO(text)):
        return rig.call(*words)


def test_answers_are_run_judged_reviewed_and_corrected(rig: Rig, pack: Path) -> None:
    with mock(rig, Model()):
        attempt = rig.explore(pack, "--agent", "answer", "--model", "mock/mock-1")
    assert last(attempt, "captured")["reason"] == "agent_explicit_submit"
    asked = [e["data"] for e in events(attempt) if e["data"].get("audit") == "answer"]
    assert [(one["case"], one["answer"]) for one in asked[:3]] == [
        ("masked_loss", 1),
        ("zero_target", 1),
        ("masked_loss", 2),
    ]
    replay = rig.replay(attempt)
    assert final(replay) == "validated"
    assert [found.name for found in (replay / "checkpoints").iterdir()] == ["checkpoint-1"]
    checkpoint = replay / "checkpoints/checkpoint-1"
    assert json.loads((checkpoint / "runs.json").read_text()) == {
        "masked_loss/1": "ran",
        "masked_loss/2": "ran",
        "masked_loss/3": "ended",
        "zero_target/1": "ran",
        "zero_target/2": "raised",
        "zero_target/3": "no_code",
    }
    for case, texts in ANSWERS.items():
        for number, text in enumerate(texts, start=1):
            assert (checkpoint / f"answers/{case}/{number}.md").read_text() == text
    metrics = json.loads((replay / "score-001/checkpoint-1/out/summary.json").read_text())
    scored(metrics)
    judge(rig, attempt)
    rig.nothing_left()


def scored(summary: dict) -> None:
    """Check the evaluator's numbers against what is known of the answers."""

    def numbers(name: str) -> list[float | None]:
        found = summary["metrics"][name]
        return [one["value"] for one in found]

    points = {
        name: [round(found[key]["value"], 3) for key in ("clean_accuracy", "attack_success")]
        for name, found in summary["baselines"].items()
    }
    assert points == {
        "start": [1, 1],
        "masked": [1, 1],
        "ascent": [1, 1],
        "retrained": [1, 0],
    }
    losses = {name: one["forget_loss"]["value"] for name, one in summary["baselines"].items()}
    assert abs(losses["start"] - 0.0545) < 0.0005
    assert abs(losses["ascent"] - 0.1649) < 0.0005
    # PyTorch and the evaluator's own arithmetic come to the same weights.
    measured = numbers("masked_loss/forget_loss")
    assert measured[0] == pytest.approx(losses["ascent"], abs=1e-9)
    assert measured[1] < losses["start"]
    assert measured[2] is None
    assert numbers("zero_target/forget_loss")[0] == pytest.approx(losses["ascent"], abs=1e-9)
    assert numbers("masked_loss/objective") == [1, 0, 0]
    assert numbers("masked_loss/limitations") == [1, 0, 1]
    assert numbers("zero_target/parses") == [1, 1, 0]
    assert numbers("zero_target/names_bug") == [1, 1, 0]
    assert summary["metrics"]["ran"]["value"] == 0.5


def judge(rig: Rig, attempt: Path) -> None:
    """Review the answers in two sittings, correct a label, and see that nothing else changes."""
    before = {**snapshot(attempt / "replay-001"), **snapshot(attempt / "receipts")}
    first = typed(rig, "y\n" * 8 + "what\nn\nq\n", "review", attempt, "--blind", "--seed", "7")
    assert first.code == 0, first.err
    assert "1 of 6 answers are labelled" in first.out
    assert "y for yes, n for no" in first.out
    hidden = first.out.rpartition("answers are labelled")[0]
    shown = ("mock-1", ", masked_loss, ", ", zero_target, ", "[pass]", "[fail]", "\x1b")
    assert not any(word in hidden for word in shown)
    second = typed(rig, "y\n" * 47, "review", attempt, "--blind")
    assert "6 of 6 answers are labelled" in second.out
    assert "next: orch show" in second.out

    wanted = ("correct", attempt, "--case", "masked_loss", "--answer", "2", "--check")
    words = ("--quote", "certain to  be gone", "--reason", "it says the reverse")
    done = rig.call(*wanted, "limitations", "--fail", *words)
    assert done.code == 0, done.err
    assert rig.call(*wanted, "limitations", "--fail", *words).code == 64
    wrong = rig.call(*wanted, "names_bug", "--fail", "--quote", "never said", "--reason", "no")
    assert wrong.code == 64
    assert "does not stand in answer 2 of masked_loss" in wrong.err

    shown = rig.call("show", attempt)
    assert "masked_loss 2 limitations fail pass fail fail" in " ".join(shown.out.split())
    labels = rig.call("show", attempt, "--json").json()["labels"]
    (one,) = [
        one
        for one in labels["labels"]
        if (one["case"], one["answer"], one["check"]) == ("masked_loss", 2, "limitations")
    ]
    assert (one["original"], one["reviewed"], one["corrected"], one["revised"]) == (
        *(False, True, False, False),
    )
    report = rig.call("report", attempt)
    assert "it says the reverse" in Path(report.out.strip()).read_text()
    after = {**snapshot(attempt / "replay-001"), **snapshot(attempt / "receipts")}
    assert after == before
    assert rig.call("verify", rig.runs, "--campaign").code == 3
    corrections = sorted((attempt / "corrections").glob("*.json"))
    made = json.loads(corrections[-1].read_text())
    reviews = [json.loads(path.read_text()) for path in corrections[:-1]]
    same = [r for r in reviews if (r["case"], r["answer"]) == ("masked_loss", 2)]
    (earlier,) = [r for r in same if "limitations" in r["labels"]]
    assert (made["kind"], made["supersedes"]) == ("correction", earlier["number"])
