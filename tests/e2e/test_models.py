"""Explorations with a model: what gets through, what does not, and how they end."""

import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.storage.ledger import Claim, Ledger, Reservation
from tests.e2e.rig import Done, Rig, events, final, last
from tests.mock_models.researcher import Researcher
from tests.mock_models.server import MockModels, Script
from tests.mock_models.turns import Status, Turn

KEY = "planted-key-8c21f0aa35"
CHANGE, SUBMIT = "echo '# changed' >> run.sh", "/opt/harness/submit.sh"


@contextmanager
def mock(rig: Rig, script: Script, extra: str = "", dialect: str = "chat") -> Iterator[MockModels]:
    """A provider of this name, with its key in the environment."""
    home = Path(rig.variables["ORCH_HOME"])
    home.mkdir(mode=0o700, exist_ok=True)
    rig.variables["MOCK_KEY"] = KEY
    with MockModels(script) as models:
        (home / "orch.toml").write_text(
            f'[providers.mock]\nbase_url = "{models.base_url}"\ndialects = ["{dialect}"]\n'
            f'key_variable = "MOCK_KEY"\n{extra}'
        )
        yield models


def explored(rig: Rig, pack: Path, *words: str) -> Path:
    return rig.explore(pack, "--agent", "loop", "--model", "mock/mock-1", *words)


def transcript(attempt: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (attempt / "transcript.jsonl").read_text().splitlines()]


def audits(attempt: Path) -> list[str]:
    return [e["data"]["audit"] for e in events(attempt) if e["event"] == "noted"]


def holding(root: Path, text: str) -> list[Path]:
    files = (path for path in root.rglob("*") if path.is_file())
    return [path for path in files if text.encode() in path.read_bytes()]


def test_the_loop_explores_to_its_submission_and_no_key_is_to_be_found(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims: list[Claim] = []
    reserve = Ledger.reserve

    def noted(ledger: Ledger, claim: Claim) -> Reservation:
        claims.append(claim)
        return reserve(ledger, claim)

    monkeypatch.setattr(Ledger, "reserve", noted)
    nosy = f"env; cat /proc/*/environ; find /run /logs /opt; {CHANGE}"
    with mock(rig, Researcher([nosy, None, SUBMIT])) as models:
        attempt = explored(rig, rig.pack())
    captured = last(attempt, "captured")
    assert captured["reason"] == "agent_explicit_submit"
    assert captured["model"]["requests"] == len(models.asked) == 3
    assert captured["model"]["output_tokens"] == 60
    disk = json.loads((attempt / "plan.json").read_text())["resources"]["disk"]
    assert [claim.disk for claim in claims] == [3 * disk + 640 * 1024**2]
    assert captured["provider_outage_s"] == 0
    assert audits(attempt) == ["agent_nudged"]
    lines = transcript(attempt)
    assert [line["kind"] for line in lines if line["kind"] != "tokens"][:3] == [
        "message",
        "call",
        "output",
    ]
    tokens = next(line for line in lines if line["kind"] == "tokens")
    assert (tokens["model"], tokens["input"], tokens["cached"]) == ("mock-1", 100, 40)
    assert 0 < tokens["time_left"] <= 600
    assert {seen.headers["authorization"] for seen in models.asked} == {f"Bearer {KEY}"}
    assert holding(rig.runs, KEY) == []
    # Below a long path there is no room for a socket's, and it was in a short folder instead.
    assert not list(Path(rig.variables["ORCH_HOST"]).glob("sockets/*"))
    shown = rig.call("show", attempt).out
    assert "3 requests, 300 tokens in (120 cached), 60 out (15 reasoning), cost 0.0" in shown
    assert "nudged" in shown
    rig.nothing_left()


@pytest.mark.parametrize("name", ["transcript.jsonl", "exchanges.jsonl", "agent-raw.log"])
def test_what_is_kept_of_a_model_cannot_be_changed_unseen(rig: Rig, name: str) -> None:
    with mock(rig, Researcher([CHANGE, SUBMIT])):
        attempt = explored(rig, rig.pack())
    assert rig.call("verify", rig.runs).code == 3
    file = attempt / name
    was = file.read_bytes()
    file.write_bytes(was + b" ")
    found = rig.call("verify", rig.runs)
    assert found.code == 1
    assert f"{name}: not the bytes that the exploration's ending names" in found.out
    file.unlink()
    assert f"{name}: missing" in rig.call("verify", rig.runs).out
    file.symlink_to("/etc/passwd")
    assert rig.call("verify", rig.runs).code == 1


def test_a_model_that_gives_up_is_an_early_exit_with_what_it_left(rig: Rig) -> None:
    with mock(rig, Researcher([CHANGE])):
        attempt = explored(rig, rig.pack())
    captured = last(attempt, "captured")
    assert (captured["reason"], captured["origin"]) == (
        "agent_early_exit",
        "host_early_exit_capture",
    )
    assert audits(attempt) == ["agent_nudged"] * 3


def test_a_spent_budget_is_an_ordinary_refusal_that_the_agent_is_told(rig: Rig) -> None:
    pack = rig.pack(explore={"budget": {"requests": 2}})
    with mock(rig, Researcher([CHANGE, "ls", SUBMIT])) as models:
        attempt = explored(rig, pack)
    assert len(models.asked) == 2
    captured = last(attempt, "captured")
    assert captured["reason"] == "agent_early_exit"
    assert captured["model"]["refused"] == {"budget": 1}
    refused = [line for line in transcript(attempt) if line.get("refused")]
    assert [line["refused"] for line in refused] == ["budget"]
    said = [line["text"] for line in transcript(attempt) if line["kind"] == "message"]
    assert "requests" in said[-1]


def test_a_provider_that_stays_away_is_the_machines_failure_whatever_the_candidate(
    rig: Rig,
) -> None:
    def script(seen: Any) -> Any:
        if len(models.asked) > 1:
            models.present = False
            return Status(503)
        return researcher(seen)

    researcher = Researcher([CHANGE])
    with mock(rig, script) as models:
        done = rig.call(
            *("explore", rig.pack(explore={"max_outage": "1s"})),
            *("--agent", "loop", "--model", "mock/mock-1"),
        )
    assert done.code == 75, done.err
    (attempt,) = rig.runs.glob("*/attempt-001")
    assert final(attempt) == "infrastructure"
    ended = last(attempt, "infrastructure")
    assert ended["fact"] == "provider_outage"
    assert ended["provider_outage_s"] >= 1
    assert (attempt / "kept").is_dir()
    rig.nothing_left()


def test_nothing_that_a_model_says_ends_an_exploration(rig: Rig) -> None:
    odd = [
        Turn(text="\ud800", tool="shell", arguments={"command": "echo \ud800"}),
        Turn(text="\x1b[2J", tool="shell", arguments={"command": "echo a\0b"}),
        Turn(tool="shell", arguments={"command": "true " + "x" * 200_000}),
        Turn(tool="shell", arguments={"command": "sleep 60", "timeout": -3}),
        Turn(tool="shell", arguments={"command": ["ls"]}),
        Turn(tool="rm", arguments={}),
        Turn(text="t\ud800"),
    ]
    researcher = Researcher([CHANGE, SUBMIT])
    turns = iter(odd)
    with mock(rig, lambda seen: next(turns, None) or researcher(seen)):
        attempt = explored(rig, rig.pack())
    assert last(attempt, "captured")["reason"] == "agent_explicit_submit"
    assert rig.call("logs", attempt).code == 0


def test_an_exploration_that_ends_does_not_wait_for_the_model(rig: Rig) -> None:
    held = threading.Event()

    def script(_seen: Any) -> Any:
        held.wait(60)
        return Turn(text="too late")

    with mock(rig, script):
        attempt = explored(rig, rig.pack(explore={"wall": "3s"}))
        held.set()
    ended = last(attempt, "declined")
    assert ended["reason"] == "phase_deadline"
    assert ended["exit"]["duration_s"] < 30


def test_a_recording_repeats_an_exploration_without_a_provider(rig: Rig) -> None:
    pack = rig.pack()
    with mock(rig, Researcher([CHANGE, "date", SUBMIT])):
        attempt = explored(rig, pack)
    del rig.variables["MOCK_KEY"]
    model = f"recorded/{attempt / 'exchanges.jsonl'}"
    again = rig.explore(pack, "--agent", "loop", "--model", model)
    assert last(again, "captured")["patch_sha256"] == last(attempt, "captured")["patch_sha256"]
    assert last(again, "captured")["model"]["upstream"] == ""
    plan = json.loads((again / "plan.json").read_text())
    digest = last(attempt, "captured")["records"]["exchanges.jsonl"]
    assert f"the model is a recording, {digest}" in plan["relaxations"]
    official = rig.call("explore", pack, "--agent", "loop", "--model", model, "--official")
    assert official.code == 64
    assert "never official" in official.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--agent", "loop"], ["agent 'loop' needs a model", "--model PROVIDER/NAME"]),
        (["--agent", "loop", "--model", "mok/m"], ["no provider 'mok'", "mock"]),
        (["--agent", "loop", "--model", "mock/m"], ["MOCK_KEY"]),
        (["--agent", "loop@1", "--model", "fake/m"], ["agent loop comes with orch"]),
        (["--agent", "codex", "--model", "fake/m"], ["speaks responses", "served as chat"]),
        (["--agent", "scripted", "--model", "fake/m"], ["works without a model"]),
        (["--agent", "mini-swe-agent", "--model", "fake/m"], ["orch agents install mini-swe"]),
        (
            ["--agent", "mini-swe-agent@0.0.1", "--model", "fake/m"],
            ["install mini-swe-agent@0.0.1"],
        ),
        (["--agent", "lop", "--model", "fake/m"], ["no agent 'lop'", "loop"]),
        (
            ["--agent", "loop", "--model", "fake/m", "--effort", "4096"],
            ["a budget of thinking, and chat has none", "--effort low"],
        ),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(
    rig: Rig, words: Sequence[str], said: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(rig.root / "cache"))
    with mock(rig, ()):
        file = Path(rig.variables["ORCH_HOME"]) / "orch.toml"
        fake = 'base_url = "http://127.0.0.1:9"\ndialects = ["chat"]\nauth = "none"\n'
        file.write_text(f"{file.read_text()}[providers.fake]\n{fake}")
        del rig.variables["MOCK_KEY"]
        done: Done = rig.call("explore", rig.pack(), *words)
    assert done.code == 64, done.err
    for part in said:
        assert part in done.err
    assert not list(rig.runs.glob("*/attempt-*"))


def test_a_dry_run_shows_the_plan_and_opens_nothing(rig: Rig) -> None:
    with mock(rig, ()) as models:
        done = rig.call(
            *("explore", rig.pack(), "--agent", "loop", "--model", "mock/mock-1"),
            *("--effort", "high", "--dry-run", "--json"),
        )
    assert done.code == 0, done.err
    plan = done.json()
    assert (plan["plan"]["model"], plan["plan"]["effort"]) == ("mock/mock-1", "high")
    targets = [mount["target"] for mount in plan["container"]["mounts"]]
    assert "/opt/harness/relay.py" in targets
    assert models.seen == []
    assert KEY not in done.out
    assert os.environ.get("MOCK_KEY") is None
