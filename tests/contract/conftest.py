"""The engines that the contract is run against."""

import shutil
import subprocess
from collections.abc import Iterator

import pytest

from orchestrator.adapters.docker_engine import DockerEngine
from orchestrator.adapters.docker_watch import UNNAMED_SIGNAL
from orchestrator.adapters.image_builder import ImageBuilder
from orchestrator.adapters.in_memory import FakeClock, InMemoryEngine
from orchestrator.config import Settings, bundled
from orchestrator.domain.image import image_reference
from tests.contract.rig import Rig, run_command, run_program
from tests.podman import PODMAN_IMAGE

SETTINGS = Settings.from_environment()


def docker_cli(*arguments: str) -> str:
    """Be somebody else at the engine."""
    docker = shutil.which("docker")
    assert docker is not None
    answer = subprocess.run([docker, *arguments], check=True, capture_output=True, text=True)
    return answer.stdout.strip()


@pytest.fixture(scope="session")
def image() -> str:
    """An image with sh, bash and python3; made if it is not there."""
    builder = ImageBuilder(SETTINGS.engine_address, bundled("containers"), SETTINGS.wheels)
    try:
        builder.build(("debian",), lambda _: None)
    finally:
        builder.close()
    return image_reference("debian")


@pytest.fixture
def docker_rig(image: str) -> Iterator[Rig]:
    engine = DockerEngine(SETTINGS.engine_address)
    rig = Rig(
        engine,
        image,
        kill_by_third_party=lambda name: docker_cli("kill", name),
        remove_by_third_party=lambda name: docker_cli("rm", "-f", name),
    )
    yield rig
    rig.clean()
    engine.close()


@pytest.fixture
def podman_rig(podman: str) -> Iterator[Rig]:
    def somebody_else(*arguments: str) -> None:
        docker_cli("--host", podman, *arguments)

    engine = DockerEngine(podman)
    rig = Rig(
        engine,
        PODMAN_IMAGE,
        kill_by_third_party=lambda name: somebody_else("kill", name),
        remove_by_third_party=lambda name: somebody_else("rm", "-f", name),
        others_kill=UNNAMED_SIGNAL,
    )
    yield rig
    rig.clean()
    engine.close()


@pytest.fixture(params=["docker", "podman"])
def real_rig(request: pytest.FixtureRequest) -> Rig:
    """Where kinds of engines differ, or could."""
    chosen: Rig = request.getfixturevalue(f"{request.param}_rig")
    return chosen


@pytest.fixture
def memory_rig() -> Iterator[Rig]:
    engine = InMemoryEngine(
        run_program,
        command=run_command,
        images={"in-memory": {"/bin/bash": b"#!", "/etc/skel/.profile": b""}},
        clock=FakeClock(),
    )
    rig = Rig(engine, "in-memory", engine.kill_by_third_party, engine.lose)
    yield rig
    rig.clean()


@pytest.fixture(
    params=[
        "memory",
        pytest.param("docker", marks=pytest.mark.docker),
        pytest.param("podman", marks=pytest.mark.docker),
    ]
)
def rig(request: pytest.FixtureRequest) -> Rig:
    chosen: Rig = request.getfixturevalue(f"{request.param}_rig")
    return chosen
