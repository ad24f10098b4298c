"""The images as built, and the builder against the engine."""

import hashlib
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from orchestrator.adapters.docker_engine import DockerEngine
from orchestrator.adapters.image_builder import ImageBuilder, ImageState, read_recipes
from orchestrator.config import Settings, bundled
from orchestrator.domain.image import image_reference
from orchestrator.errors import (
    EngineUnavailableError,
    InfrastructureError,
    TaskPackError,
    UsageError,
)
from tests.large_images import require_image

pytestmark = pytest.mark.docker

SETTINGS = Settings.from_environment()
CANDIDATE = image_reference("cpu-numpy")
PREPARER = image_reference("prepare-sklearn")
LARGE = "hf-cpu"


@pytest.fixture(scope="module")
def client() -> Iterator[docker.DockerClient]:
    client = docker.DockerClient(base_url=SETTINGS.engine_address)
    yield client
    client.close()


@pytest.fixture(scope="module", autouse=True)
def builder() -> Iterator[ImageBuilder]:
    """Make the images once, if they are not there."""
    builder = ImageBuilder(SETTINGS.engine_address, bundled("containers"), SETTINGS.wheels)
    builder.build((), lambda _: None)
    yield builder
    builder.close()


def output(client: docker.DockerClient, image: str, script: str) -> str:
    answer = client.containers.run(
        image, ["bash", "-c", script], network_mode="none", remove=True, user="10001:10001"
    )
    return answer.decode().strip()


def paths(image: str) -> list[str]:
    engine = DockerEngine(SETTINGS.engine_address)
    try:
        return [path for path, _ in engine.image_files(image)]
    finally:
        engine.close()


def test_a_candidates_image_holds_no_data_set() -> None:
    held = paths(CANDIDATE)
    assert any(path.endswith("numpy/__init__.py") for path in held)
    assert not [path for path in held if "sklearn" in path or "digits" in path.lower()]
    assert any("digits.csv" in path for path in paths(PREPARER)), "the search finds nothing at all"


@pytest.fixture(params=[CANDIDATE, PREPARER, LARGE])
def image(request: pytest.FixtureRequest) -> str:
    """Each image in turn; the large one where it was built."""
    name: str = request.param
    return require_image(name) if name == LARGE else name


def test_an_image_starts_nothing_of_its_own(client: docker.DockerClient, image: str) -> None:
    config = client.images.get(image).attrs["Config"]
    assert not config.get("Entrypoint")
    assert not config.get("Volumes")
    assert not config.get("Healthcheck")


def test_no_program_of_an_image_raises_rights(client: docker.DockerClient, image: str) -> None:
    assert output(client, image, "find / -xdev -type f -perm /6000 2>/dev/null || true") == ""


def test_the_agents_user_has_a_name_a_home_and_a_keeper_beside_it(
    client: docker.DockerClient,
) -> None:
    script = "id -un; getent passwd 10001 10000 | cut -d: -f1,3,6; touch ~/x && echo writable"
    assert output(client, CANDIDATE, script).split() == [
        "agent",
        "agent:10001:/home/agent",
        "keeper:10000:/nonexistent",
        "writable",
    ]


def test_python3_finds_numpy_with_its_bytecode_even_in_a_login_shell(
    client: docker.DockerClient,
) -> None:
    script = 'bash -lc "python3 -v -c \'import numpy\'" 2>&1 | grep "code object from.*numpy"'
    loaded = output(client, CANDIDATE, script).splitlines()
    assert loaded
    assert not [line for line in loaded if ".pyc" not in line]


def test_a_current_image_is_not_built_again(
    builder: ImageBuilder, client: docker.DockerClient
) -> None:
    before = client.images.get(CANDIDATE).id
    said: list[str] = []
    built = builder.build(["cpu-numpy"], said.append)
    assert said == ["orch/debian:1 is current", "orch/cpu-numpy:1 is current"]
    assert [image.state for image in built] == [ImageState.CURRENT] * 2
    assert client.images.get(CANDIDATE).id == before


def test_without_a_name_what_is_built_by_name_is_left_alone(builder: ImageBuilder) -> None:
    built = builder.build((), lambda _: None)
    assert [image.name for image in built] == ["debian", "cpu-numpy", "prepare-sklearn"]


def test_a_changed_recipe_makes_its_image_stale_and_what_is_missing_absent(tmp_path: Path) -> None:
    recipes = tmp_path / "containers"
    shutil.copytree(bundled("containers"), recipes)
    with (recipes / "cpu-numpy" / "Dockerfile").open("a") as dockerfile:
        dockerfile.write("LABEL changed=yes\n")
    (recipes / "nowhere").mkdir()
    (recipes / "nowhere" / "Dockerfile").write_text("FROM orch/cpu-numpy:1\n")
    changed = ImageBuilder(SETTINGS.engine_address, recipes, tmp_path)
    found = {image.name: image.state for image in changed.status()}
    assert found.keys() == {"nowhere", *read_recipes(bundled("containers"))}
    assert found["debian"] is found["prepare-sklearn"] is ImageState.CURRENT
    assert found["cpu-numpy"] is ImageState.STALE
    assert found["nowhere"] is ImageState.ABSENT
    changed.close()


@pytest.fixture
def scratch_builder(
    tmp_path: Path, client: docker.DockerClient
) -> Iterator[tuple[ImageBuilder, str, Path]]:
    """A builder of one recipe of a new name on the shipped base; its images go afterwards."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    shutil.copytree(bundled("containers") / "debian", tmp_path / "recipes" / "debian")
    folder = tmp_path / "recipes" / name
    folder.mkdir()
    (folder / "Dockerfile").write_text(f"FROM orch/debian:1\nLABEL orch.test={name}\n")
    builder = ImageBuilder(SETTINGS.engine_address, tmp_path / "recipes", tmp_path / "wheels")
    yield builder, name, folder
    builder.close()
    for image in client.images.list(filters={"label": f"orch.test={name}"}):
        client.images.remove(image.id, force=True)


def test_a_recipe_is_built_once_and_again_when_it_changes(
    scratch_builder: tuple[ImageBuilder, str, Path],
) -> None:
    builder, name, folder = scratch_builder
    said: list[str] = []
    builder.build([image_reference(name)], said.append)
    assert f"orch/{name}:1: done" in said
    builder.build([name], said.append)
    assert said[-1] == f"orch/{name}:1 is current"
    with (folder / "Dockerfile").open("a") as dockerfile:
        dockerfile.write("ENV changed=yes\n")
    builder.build([name], said.append)
    assert said[-1] == f"orch/{name}:1: done"


def test_a_build_has_no_network_and_a_failure_shows_its_last_lines(
    scratch_builder: tuple[ImageBuilder, str, Path],
) -> None:
    builder, name, folder = scratch_builder
    (folder / "Dockerfile").write_text(
        "FROM orch/debian:1\nRUN ls /sys/class/net; echo last words; false\n"
    )
    with pytest.raises(TaskPackError, match=r"\nlo\nlast words") as raised:
        builder.build([name], lambda _: None)
    assert name in raised.value.remedy


def test_a_wheel_that_is_not_the_locked_one_is_refused(
    scratch_builder: tuple[ImageBuilder, str, Path], tmp_path: Path
) -> None:
    builder, name, folder = scratch_builder
    shutil.copy(bundled("containers") / "cpu-numpy" / "Dockerfile", folder)
    lock = f"example==1.0 --hash=sha256:{'0' * 64}\n"
    (folder / "requirements.lock").write_text(lock)
    house = tmp_path / "wheels" / hashlib.sha256(lock.encode()).hexdigest()[:16]
    house.mkdir(parents=True)
    (house / "example-1.0-py3-none-any.whl").write_bytes(b"something else")
    with pytest.raises(TaskPackError, match="DO NOT MATCH THE HASHES"):
        builder.build([name], lambda _: None)


def test_a_recipe_that_cannot_be_read_is_at_fault_and_wheels_that_cannot_be_had_are_not(
    scratch_builder: tuple[ImageBuilder, str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    builder, name, folder = scratch_builder
    (folder / "Dockerfile").write_text("FROM orch/debian:1\nWALK 1\n")
    with pytest.raises(TaskPackError, match=f"orch/{name}:1 did not build.*WALK"):
        builder.build([name], lambda _: None)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (folder / "requirements.lock").write_text(f"example==1.0 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(InfrastructureError, match="No matching distribution") as raised:
        builder.build([name], lambda _: None)
    assert "pip must find them" in raised.value.remedy


def test_an_unknown_recipe_and_an_absent_tool_say_what_to_do(
    scratch_builder: tuple[ImageBuilder, str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    builder, _, folder = scratch_builder
    with pytest.raises(UsageError, match="no recipe is named 'other'"):
        builder.build(["other"], lambda _: None)
    (folder.parent / "debian" / "packages").write_text("bash\n")
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UsageError, match="mmdebstrap") as raised:
        builder.build(["debian"], lambda _: None)
    assert "apt-get install mmdebstrap" in raised.value.remedy
    assert "--base" in raised.value.remedy


def test_a_base_that_cannot_be_pulled_is_an_error_that_names_it(
    scratch_builder: tuple[ImageBuilder, str, Path],
) -> None:
    builder, _, _ = scratch_builder
    with pytest.raises(InfrastructureError, match=r"cannot pull localhost:1/none"):
        builder.build(["debian"], lambda _: None, base="localhost:1/none:1")


def test_no_engine_is_an_error_that_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailableError) as raised:
        ImageBuilder(f"unix://{tmp_path}/none.sock", bundled("containers"), tmp_path)
    assert "DOCKER_HOST" in raised.value.remedy
