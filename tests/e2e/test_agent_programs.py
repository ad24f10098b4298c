"""A program from a registry in the container: what it sees, how it is read along, and resumed.

A stand-in for codex, so that no registry is needed; the real ones are in test_real_agents.py.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.domain.agent_package import AgentPackage, Registry
from orchestrator.evidence.tree import tree_digest
from orchestrator.storage.assets import discard, seal
from orchestrator.storage.durable import write_json
from tests.e2e.rig import Rig, events, last
from tests.e2e.test_models import KEY, holding, mock, transcript
from tests.mock_models.server import MockModels
from tests.mock_models.turns import Turn

PROGRAM = """\
#!/usr/bin/python3
import json, os, subprocess, sys, urllib.request
from pathlib import Path

def tell(**event):
    print(json.dumps(event), flush=True)

words = sys.argv[sys.argv.index("--") + 1]
url = next(a for a in sys.argv if "base_url" in a).partition("=")[2].strip('"')
again = "resume" in sys.argv
tell(type="thread.started", thread_id="thread-7")
body = {"model": sys.argv[sys.argv.index("--model") + 1], "input": words}
key = {"authorization": "Bearer " + os.environ["ORCH_MODEL_KEY"]}
head = {"content-type": "application/json", **key}
asked = urllib.request.Request(url + "/responses", json.dumps(body).encode(), head)
answer = json.load(urllib.request.urlopen(asked))
said = answer["output"][0]["content"][0]["text"]
tell(type="item.completed", item={"type": "agent_message", "text": said})
print("not a line of the stream", file=sys.stderr, flush=True)
try:
    Path("/opt/agent/more").write_text("x")
except OSError as error:
    tell(type="item.completed", item={"type": "reasoning", "text": error.strerror})
if again:
    said = "resumed " + sys.argv[sys.argv.index("resume") + 1]
    tell(type="item.completed", item={"type": "reasoning", "text": said})
    tell(type="item.started", item={"type": "command_execution", "command": "submit"})
    Path("note.txt").write_text("changed")
    subprocess.run(["/opt/harness/submit.sh"])
sys.exit(3)
"""
NAME = "codex@0.171.0"


@pytest.fixture
def package(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the stand-in where orch agents install would."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(rig.root / "cache"))
    folder = rig.root / "cache" / "orch" / "agents" / "codex" / "0.171.0"
    (folder / "tree" / "bin").mkdir(parents=True)
    install(folder, PROGRAM)
    return folder


def install(folder: Path, text: str) -> None:
    """Make the package this one program."""
    program = folder / "tree" / "bin" / "codex"
    program.unlink(missing_ok=True)
    program.write_text(text)
    program.chmod(0o755)
    seal(folder / "tree")
    record = AgentPackage(
        agent="codex",
        registry=Registry.NPM,
        package="@openai/codex",
        version="0.171.0",
        program=("bin/codex",),
        digest=tree_digest(folder / "tree"),
        size=len(text),
        files=1,
        fetched="2026-01-01T00:00:00+00:00",
    )
    write_json(folder / "package.json", record.model_dump(mode="json"), replace=True)


def run(rig: Rig, pack: Path) -> tuple[MockModels, Any]:
    with mock(rig, [Turn(text="one"), Turn(text="two")], dialect="responses") as models:
        model = ("--model", "mock/mock-1")
        return models, rig.call("explore", pack, "--json", "--agent", "codex", *model)


def test_a_program_is_relayed_read_along_and_resumed_in_its_own_session(
    rig: Rig, package: Path
) -> None:
    models, done = run(rig, rig.pack())
    assert done.code == 0, done.err
    attempt = Path(done.json()[-1]["path"])
    captured = last(attempt, "captured")
    assert captured["reason"] == "agent_explicit_submit"
    told = [
        line.get("text", line.get("tool"))
        for line in transcript(attempt)
        if line["kind"] != "tokens"
    ]
    refused = "Read-only file system"
    assert told == ["one", refused, "two", refused, "resumed thread-7", "command"]
    assert models.asked[0].body["input"] == "Do something."
    assert "nothing is submitted yet" in models.asked[1].body["input"]
    noted = [e["data"] for e in events(attempt) if e["event"] == "noted"]
    assert [n["audit"] for n in noted] == ["agent_program", "agent_nudged", "agent_program"]
    assert noted[1]["exit_code"] == 3
    raw = (attempt / "agent-raw.log").read_text()
    assert raw.count("not a line of the stream\n") == 2
    plan = json.loads((attempt / "plan.json").read_text())
    assert plan["agent"] == NAME
    assert plan["agent_package"]["package"]["digest"] == tree_digest(package / "tree")
    assert "npm @openai/codex 0.171.0" in rig.call("show", attempt).out
    assert holding(rig.runs, KEY) == []
    rig.nothing_left()


def test_a_program_that_the_image_cannot_run_is_the_machines_failure(
    rig: Rig, package: Path
) -> None:
    install(package, "#!/no/such/interpreter\n")
    models, done = run(rig, rig.pack())
    assert done.code == 75
    assert "cannot run in this task's image: exit 127" in done.err
    assert "No such file or directory" in done.err
    (attempt,) = rig.runs.glob("*/attempt-*")
    ended = last(attempt, "infrastructure")
    assert (ended["reason"], ended["fact"]) == ("runtime_failure", "agent_unstarted")
    assert models.seen == []
    rig.nothing_left()


def test_a_package_that_was_changed_explores_nothing(rig: Rig, package: Path) -> None:
    program = package / "tree" / "bin" / "codex"
    program.chmod(0o755)
    program.write_text(PROGRAM + "# more\n")
    models, done = run(rig, rig.pack())
    assert done.code == 75
    assert f"agent {NAME} was changed" in done.err
    assert models.seen == []
    assert not list(rig.runs.glob("*/attempt-*"))


def test_a_package_that_has_gone_is_not_installed(rig: Rig, package: Path) -> None:
    discard(package)
    _, done = run(rig, rig.pack())
    assert done.code == 64
    assert "orch agents install codex" in done.err
