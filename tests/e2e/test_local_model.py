"""A real, if tiny, model in the loop: weights and runner as their registries have them."""

import json
import shutil
from pathlib import Path

import pytest

from tests.e2e.rig import Rig, events, last

pytestmark = pytest.mark.slow

MODEL = "local/gemma3-270m"
LABEL = "the model is a local demonstration model, tree:v1:sha256:"


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Fetch the model, once for this host."""
    if shutil.which("node") is None:
        pytest.skip("Node.js is not installed")
    done = Rig(tmp_path_factory.mktemp("install")).call("models", "install", MODEL)
    if done.code:
        pytest.skip(f"the local model cannot be fetched: {done.err.strip()}")


def test_it_is_talked_to_and_the_exploration_ends_as_what_it_came_to(rig: Rig) -> None:
    pack = rig.pack(explore={"wall": "10m"})
    attempt = rig.explore(pack, "--agent", "loop", "--model", MODEL)
    ended = last(attempt, "declined")
    assert ended["reason"] == "agent_early_exit"
    assert ended["model"]["answered_as"] == ["gemma3-270m"]
    assert ended["model"]["requests"] == 4
    assert ended["model"]["output_tokens"] > 0
    assert [e["data"]["audit"] for e in events(attempt) if e["event"] == "noted"] == [
        "agent_nudged"
    ] * 3
    lines = [json.loads(line) for line in (attempt / "transcript.jsonl").read_text().splitlines()]
    assert any(line["kind"] == "message" and line["text"].strip() for line in lines)
    plan = json.loads((attempt / "plan.json").read_text())
    assert [line for line in plan["relaxations"] if line.startswith(LABEL)]
    assert rig.call("verify", rig.runs).code == 3
    assert not any(b"local_runner" in command(process) for process in Path("/proc").glob("[0-9]*"))

    recording = f"recorded/{attempt / 'exchanges.jsonl'}"
    again = rig.explore(pack, "--agent", "loop", "--model", recording)
    assert last(again, "declined")["model"]["output_tokens"] == ended["model"]["output_tokens"]
    rig.nothing_left()


def test_it_is_never_official(rig: Rig) -> None:
    done = rig.call("explore", rig.pack(), "--agent", "loop", "--model", MODEL, "--official")
    assert done.code == 64
    assert "the model is a local demonstration model, which is never official" in done.err
    assert not list(rig.runs.glob("*/attempt-*"))


def command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""
