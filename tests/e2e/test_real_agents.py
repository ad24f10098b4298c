"""Agents as their registries have them, each on a whole task, offline, with a mock for a model.

``make agents`` runs it for all of them; the two that are slow to start are not in ``make test``.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
import yaml

from orchestrator.adapters.docker_container import DockerContainer
from orchestrator.config import bundled
from orchestrator.ports import LogSink
from tests.e2e.rig import Rig, events, final, last
from tests.mock_models.researcher import Researcher
from tests.mock_models.server import MockModels

pytestmark = pytest.mark.slow

KEY = "planted-key-4f1d9b27c0"
QUICK = {"codex": "responses", "claude-code": "messages", "mini-swe-agent": "chat"}
SLOW = {"gemini-cli": "gemini", "opencode": "chat"}
AGENTS = QUICK | SLOW if os.environ.get("ORCH_TEST_AGENTS") == "all" else QUICK
TASK = "digits_class0"
NOSY = (
    "env; cat /proc/*/environ 2>&1 | tr '\\0' '\\n'; ls -la /run/orch /opt/agent; "
    "python3 -c 'import socket; socket.create_connection((\"192.0.2.7\", 81), 2)'; "
    "python3 -c 'import socket; socket.getaddrinfo(\"canary.invalid.\", 443)'; true"
)
FINISH = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""What ends mini-swe-agent; to the others it is an echo, and ending their turn ends them."""
LOOKED_FOR = {"address 192.0.2.7:81", "name canary.invalid"}
"""By the step above, so that an empty log is not a deaf one's."""


@pytest.fixture(scope="module", autouse=True)
def packages(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Fetch the agents, once for this host."""
    done = Rig(tmp_path_factory.mktemp("install")).call("agents", "install", *AGENTS)
    if done.code:
        pytest.skip(f"agents cannot be fetched: {done.err.strip()}")


@pytest.fixture(scope="module")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The task's assets."""
    rig = Rig(tmp_path_factory.mktemp("digits"))
    done = rig.call("task", "prepare", TASK)
    assert done.code == 0, done.err
    return Path(rig.variables["ORCH_ASSETS"])


def steps() -> list[str | None]:
    """The research of the task's own script, told by a model; once it takes itself for done."""
    script = yaml.safe_load((bundled("tasks") / TASK / "demo.yaml").read_text())
    *work, submit = [step["run"] for step in script if "run" in step]
    return [NOSY, *work, FINISH, None, submit]


@contextmanager
def overheard(log: Path) -> Iterator[None]:
    """Log what every container that is started looks for beyond itself."""
    ears: list[subprocess.Popen[str]] = []
    start = DockerContainer.start

    def started(container: DockerContainer, sink: LogSink) -> None:
        start(container, sink)
        script = Path(__file__).with_name("eavesdrop.py")
        inside = ("nsenter", "--net", "--target", str(container.state().pid))
        argv = (*inside, sys.executable, str(script), str(log))
        ear = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        ears.append(ear)
        assert ear.stdout is not None
        assert ear.stdout.readline() == "ready\n"

    try:
        with patch.object(DockerContainer, "start", started):
            yield
    finally:
        for ear in ears:
            ear.kill()
            ear.communicate()


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("nsenter") or not shutil.which("ip"),
    reason="listening inside a container's network takes root, nsenter and ip",
)
@pytest.mark.parametrize("agent", AGENTS)
def test_a_real_agent_explores_to_its_submission_and_again_from_the_recording(
    rig: Rig, assets: Path, agent: str
) -> None:
    rig.variables |= {"ORCH_ASSETS": str(assets), "MOCK_KEY": KEY}
    log = rig.root / "looked-for"
    log.touch()
    with MockModels(Researcher(steps())) as models, overheard(log):
        provider(rig, models, AGENTS[agent])
        attempt = rig.explore(Path(TASK), "--agent", agent, "--model", "mock/mock-1")
    assert final(attempt) == "submitted"
    captured = last(attempt, "captured")
    assert captured["reason"] == "agent_explicit_submit"
    assert captured["model"]["answered_as"] == ["mock-1"]
    assert captured["model"]["input_tokens"] == 100 * captured["model"]["requests"]
    assert set(captured["records"]) == {"transcript.jsonl", "exchanges.jsonl", "agent-raw.log"}
    assert "agent_nudged" in [e["data"].get("audit") for e in events(attempt)]
    assert set(log.read_text().splitlines()) == LOOKED_FOR
    assert told(attempt) >= {"message", "call", "output", "tokens"}
    assert not [path for path in rig.runs.rglob("*") if holds(path, KEY)]
    assert not any(seen.headers.get("authorization") == "orch-has-the-key" for seen in models.seen)

    del rig.variables["MOCK_KEY"]
    recording = f"recorded/{attempt / 'exchanges.jsonl'}"
    again = rig.explore(Path(TASK), "--agent", agent, "--model", recording)
    assert last(again, "captured")["reason"] == "agent_explicit_submit"
    assert submitted(again) == submitted(attempt)
    rig.nothing_left()


def provider(rig: Rig, models: MockModels, dialect: str) -> None:
    """Write the mock into orch.toml."""
    home = Path(rig.variables["ORCH_HOME"])
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "orch.toml").write_text(
        f'[providers.mock]\nbase_url = "{models.base_url}"\n'
        f'dialects = ["{dialect}"]\nkey_variable = "MOCK_KEY"\n'
    )


def told(attempt: Path) -> set[str]:
    """Kinds of lines in a transcript."""
    lines = (attempt / "transcript.jsonl").read_text().splitlines()
    return {json.loads(line)["kind"] for line in lines}


def holds(path: Path, text: str) -> bool:
    return path.is_file() and text.encode() in path.read_bytes()


def submitted(attempt: Path) -> tuple[str, str]:
    captured = last(attempt, "captured")
    return captured["patch_sha256"], captured["manifest_digest"]
