"""The gateway as an agent meets it: in a container without a network, through relay and socket."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.config import bundled
from tests.contract.conftest import image as image_fixture
from tests.mock_models.server import MockModels
from tests.mock_models.turns import Turn
from tests.unit.gateway_cases import CHAT_CASE
from tests.unit.gateway_help import KEY, OWNER, line

pytestmark = pytest.mark.docker
image = image_fixture
SOCKET = "/run/orch/model.sock"
RELAY = "/opt/harness/relay.py"

ASK = """
import json, os, sys, urllib.error, urllib.request
def ask(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request("http://127.0.0.1:8399" + path, data=data)
    request.add_header("content-type", "application/json")
    request.add_header("authorization", "Bearer dummy")
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
body = json.loads(sys.argv[1])
print(json.dumps([ask("/v1/chat/completions", body), ask("/v1/models"), ask("/v1/files", {})]))
"""

SEARCH = """
for f in /proc/[0-9]*/environ /proc/[0-9]*/cmdline /run/orch/* /opt/harness/*; do
    tr '\\0' '\\n' < "$f" 2>/dev/null
done
env
ls -la /run/orch
(exec 3<>/dev/tcp/1.1.1.1/53) 2>/dev/null && echo REACHED$((6 * 7))
exit 0
"""


def in_container(
    image: str, socket: Path, *command: str, user: str = f"{OWNER[0]}:{OWNER[1]}"
) -> subprocess.CompletedProcess[str]:
    docker = shutil.which("docker")
    assert docker is not None
    return subprocess.run(
        [
            docker,
            "run",
            "--rm",
            "--network=none",
            "--read-only",
            "--cap-drop=ALL",
            "--security-opt=no-new-privileges",
            f"--user={user}",
            f"--volume={socket}:{SOCKET}",
            f"--volume={bundled('harness') / 'relay.py'}:{RELAY}:ro",
            image,
            *command,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_an_agent_reaches_its_model_and_nothing_else(image: str, tmp_path: Path) -> None:
    turn = Turn(text="hello from far away")
    body = json.dumps(CHAT_CASE.streamed())
    relay = ("python3", RELAY, "8399", SOCKET)
    with MockModels([turn]) as models, line(models, tmp_path) as agent:
        done = in_container(image, agent.gateway.socket, *relay, "python3", "-c", ASK, body)
        found = in_container(image, agent.gateway.socket, *relay, "bash", "-c", SEARCH)
    assert (done.returncode, done.stderr) == (0, "")
    (completion, models_listed, files) = json.loads(done.stdout)
    assert completion == [200, b"".join(CHAT_CASE.events(turn)).decode()]
    assert models_listed[0] == 200
    assert files[0] == 404
    assert "model.sock" in found.stdout
    assert KEY not in found.stdout + found.stderr
    assert "REACHED42" not in found.stdout
    assert len(models.asked) == 1


def test_another_user_of_the_container_cannot_connect(image: str, tmp_path: Path) -> None:
    with MockModels() as models, line(models, tmp_path) as agent:
        look = f"import socket; socket.socket(socket.AF_UNIX).connect({SOCKET!r})"
        command = ("python3", "-c", look)
        denied = in_container(image, agent.gateway.socket, *command, user="4321:4321")
    assert "PermissionError" in denied.stderr
    assert not models.seen
