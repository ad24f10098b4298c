"""The set-up scripts: what they pass on, and what they say where they cannot go on."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"

pytestmark = pytest.mark.skipif(
    not (SCRIPTS.parent / ".venv/bin/python").exists(), reason="there is no .venv: make setup"
)


def run(script: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPTS / script, *arguments],
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_an_engine_named_by_docker_host_is_never_replaced(tmp_path: Path) -> None:
    address = f"unix://{tmp_path}/none.sock"
    done = run("with_engine.sh", "echo", "ran", DOCKER_HOST=address)
    assert done.returncode == 69
    assert address in done.stderr
    assert "ran" not in done.stdout


@pytest.mark.docker
def test_a_running_engine_is_used_and_the_commands_status_passed_on() -> None:
    done = run("with_engine.sh", "sh", "-c", "echo ran; exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, "ran\n", "")


def test_a_package_that_is_there_needs_nothing() -> None:
    done = run("debian_packages.sh", "bash")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_missing_package_without_apt_is_named_with_the_command(tmp_path: Path) -> None:
    for tool in ("bash", "env", "grep", "id"):
        (tmp_path / tool).symlink_to(f"/usr/bin/{tool}")
    done = run("debian_packages.sh", "no-such-package", PATH=str(tmp_path))
    assert done.returncode == 69
    assert done.stderr.endswith("sudo apt-get install no-such-package\n")
