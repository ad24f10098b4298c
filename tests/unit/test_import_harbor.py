"""Harbor tasks as packs: one step, a prebuilt image, a verifier of its own; else refused."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator.domain.roles import Phase
from orchestrator.domain.task import TaskSpec
from orchestrator.errors import TaskPackError
from orchestrator.importing.reading import read_task
from orchestrator.importing.writing import write
from orchestrator.storage.pack import load_pack

TASK = """\
schema_version = "1.3"
artifacts = ["/workspace/answer.txt", {source = "/workspace/notes/log.md"}]

[task]
name = "example/write-an-answer"
description = "Write an answer"
keywords = ["small"]

[metadata]
difficulty = "easy"

[agent]
timeout_sec = 600.0

[verifier]
timeout_sec = 90.0
environment_mode = "separate"
env = { STRICT = "1" }

[verifier.environment]
docker_image = "example/verifier@sha256:1"
cpus = 1
memory_mb = 512
storage_mb = 64
network_mode = "no-network"

[environment]
docker_image = "example/work:1"
cpus = 2
memory_mb = 1024
storage_mb = 2048
network_mode = "no-network"
env = { MODE = "small" }
"""


class Shelf:
    """A task, which a test spoils before it is imported."""

    def __init__(self, folder: Path) -> None:
        self.source, self.to = folder / "task", folder / "pack"
        for name, text in {
            "task.toml": TASK,
            "instruction.md": "Write {% it %}.\n",
            "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
            "solution/solve.sh": "true\n",
        }.items():
            (self.source / name).parent.mkdir(parents=True, exist_ok=True)
            (self.source / name).write_text(text)

    def change(self, changes: Mapping[str, str]) -> None:
        file = self.source / "task.toml"
        text = file.read_text()
        for before, after in changes.items():
            assert before in text, before
            text = text.replace(before, after)
        file.write_text(text)

    def pack(self, score_image: str | None = None) -> TaskSpec:
        write(read_task(self.source, score_image=score_image), self.to)
        return load_pack(self.to).spec

    def refusals(self) -> list[str]:
        with pytest.raises(TaskPackError) as refused:
            read_task(self.source)
        return str(refused.value).splitlines()


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def test_limits_images_and_variables_are_the_sources(shelf: Shelf) -> None:
    task = shelf.pack()
    assert task.name == "write-an-answer"
    assert (task.explore.wall, task.replay.wall, task.score.wall) == (600, 600, 90)
    work, score = task.resources(Phase.EXPLORE), task.resources(Phase.SCORE)
    assert (work.image, work.cpus, work.memory) == ("example/work:1", 2, 1024**3)
    assert (work.disk, work.env) == (2 * 1024**3, {"MODE": "small"})
    assert (score.image, score.cpus) == ("example/verifier@sha256:1", 1)
    assert (score.memory, score.disk) == (512 * 1024**2, 64 * 1024**2)
    assert score.env["STRICT"] == "1"
    assert (task.score.metric, task.score.direction) == ("reward", "max")
    assert task.score.scratch == ("/logs/verifier", "/tests", "/workspace")


def test_a_task_without_a_description_has_its_name_for_a_title(shelf: Shelf) -> None:
    start, end = TASK.index("[task]"), TASK.index("[metadata]")
    shelf.change({TASK[start:end]: ""})
    assert (shelf.pack().name, load_pack(shelf.to).spec.title) == ("task", "task")


def test_its_tests_are_data_of_the_final_role(shelf: Shelf) -> None:
    task = shelf.pack()
    assert {name: asset.role.value for name, asset in task.assets.items()} == {
        "data/tests": "final"
    }
    shown = (shelf.to / "IMPORTED.md").read_text()
    assert f"`tests`: of the task itself, so DIR is {shelf.source}" in shown
    assert not (shelf.to / "tests").exists()
    assert not (shelf.to / "solution").exists()


def test_the_run_script_publishes_the_artifacts_and_nothing_else(
    shelf: Shelf, tmp_path: Path
) -> None:
    task = shelf.pack()
    assert (task.workspace.in_image, task.workspace.add) == (True, "workspace")
    script = (shelf.to / "workspace/run.sh").read_text()
    assert (shelf.to / "workspace/run.sh").stat().st_mode & 0o100
    work, out = tmp_path / "work", tmp_path / "out"
    (work / "notes").mkdir(parents=True)
    for name in ("answer.txt", "notes/log.md", "notes/other", "secret"):
        (work / name).write_text(name)
    here = script.replace("/workspace", str(work)).replace("/out", str(out))
    subprocess.run(["bash", "-c", here], check=True)
    published = out / "checkpoints/checkpoint-1"
    assert sorted(str(p.relative_to(published)) for p in published.rglob("*")) == [
        "answer.txt",
        "notes",
        "notes/log.md",
    ]


def test_names_of_artifacts_are_names_and_nothing_else(shelf: Shelf, tmp_path: Path) -> None:
    names = ["ARTIFACTS", "touch ran", "$(touch ran)", "-n/it's", "two", "two/b", "two"]
    told = ", ".join(json.dumps(f"/workspace/{name}") for name in names)
    shelf.change({'["/workspace/answer.txt", {source = "/workspace/notes/log.md"}]': f"[{told}]"})
    shelf.pack()
    script = (shelf.to / "workspace/run.sh").read_text()
    work, out = tmp_path / "work", tmp_path / "out"
    for name in {*names, "two/b"} - {"two"}:
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(name)
    here = script.replace("/workspace", str(work)).replace("/out", str(out))
    subprocess.run(["bash", "-c", here], check=True)
    published = out / "checkpoints/checkpoint-1"
    found = {str(p.relative_to(published)) for p in published.rglob("*") if p.is_file()}
    assert found == set(names) - {"two"}
    assert not (work / "ran").exists()


def test_a_verifier_without_an_image_of_its_own_has_the_tasks(shelf: Shelf) -> None:
    shelf.change({'docker_image = "example/verifier@sha256:1"\n': ""})
    task = shelf.pack()
    assert task.resources(Phase.SCORE).image == "example/work:1"


def test_a_verifier_that_would_be_built_needs_an_image(shelf: Shelf) -> None:
    shelf.change({'docker_image = "example/verifier@sha256:1"\n': ""})
    (shelf.source / "tests/Dockerfile").write_text("FROM x\n")
    assert "--score-image IMAGE" in shelf.refusals()[0]
    assert shelf.pack("built:1").resources(Phase.SCORE).image == "built:1"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("[environment]", '[[steps]]\nname = "a"\n\n[environment]', "steps"),
        (
            "[environment]",
            '[[environment.mcp_servers]]\nname = "x"\nurl = "y"\n\n[environment]',
            "environment.mcp_servers",
        ),
        ('"separate"', '"shared"', "verifier.environment_mode = 'shared'"),
        ('docker_image = "example/work:1"\n', "", "environment.docker_image: orch builds no"),
        ('network_mode = "no-network"\nenv', "env", "environment.network_mode: is 'public'"),
        (
            '64\nnetwork_mode = "no-network"',
            "64",
            "verifier.environment.network_mode: is 'public'",
        ),
        ('network_mode = "no-network"\nenv', 'network_mode = "public"\nenv', "= 'public'"),
        (
            'network_mode = "no-network"\nenv',
            'network_mode = "allowlist"\nallowed_hosts = ["packages.example"]\nenv',
            "environment.allowed_hosts = ['packages.example']: containers of orch have no network",
        ),
        ("timeout_sec = 600.0\n", "", "agent.timeout_sec: is missing, and orch gives no container"),
        ("timeout_sec = 600.0", 'timeout_sec = 600.0\nuser = "root"', "agent.user = 'root'"),
        ("memory_mb = 1024\n", "", "environment.memory_mb: is missing"),
        ('"small" }', '"${SECRET}" }', "environment.env.MODE: variables of the host"),
        ('"1" }', '"${KEY:-}" }', "verifier.env.STRICT: variables of the host"),
        ('["/workspace/answer.txt", ', '["/root/answer.txt", ', "'/root/answer.txt': only what"),
        ('["/workspace/answer.txt", ', '["/workspace/../x", ', "only what lies below /workspace"),
        (
            'artifacts = ["/workspace/answer.txt", {source = "/workspace/notes/log.md"}]\n',
            "",
            "artifacts: are missing",
        ),
        ('log.md"}', 'log.md", exclude = ["x"]}', "artifacts.1.exclude = ['x']: not a key that"),
        ('"example/work:1"', '"example/work:1"\nworkdir = "/app"', "workdir = '/app': only"),
        ('"example/work:1"', '"example/work:1"\nskills_dir = "/s"', "environment.skills_dir"),
        ('"example/work:1"', '"example/work:1"\nos = "windows"', "environment.os = 'windows'"),
        (
            '"example/work:1"',
            '"example/work:1"\nhealthcheck = { command = "true" }',
            "environment.healthcheck",
        ),
        ('"1.3"', '"2.0"', "schema_version = '2.0'"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_its_name(
    shelf: Shelf, before: str, after: str, said: str
) -> None:
    shelf.change({before: after})
    assert any(said in line for line in shelf.refusals()), shelf.refusals()


@pytest.mark.parametrize(
    "name",
    [
        "environment/docker-compose.yaml",
        "tests/docker-compose.yaml",
        "steps/a/x",
        "trajectory.json",
    ],
)
def test_files_of_more_than_one_container_or_step_are_refused(shelf: Shelf, name: str) -> None:
    (shelf.source / name).parent.mkdir(parents=True, exist_ok=True)
    (shelf.source / name).write_text("x\n")
    (line,) = shelf.refusals()
    assert line.startswith(name.partition("/a")[0])


def test_everything_that_is_refused_is_told_at_once(shelf: Shelf) -> None:
    shelf.change(
        {
            "cpus = 2": "tpus = 2",
            '"/workspace/answer.txt"': '"/etc/x"',
            'docker_image = "example/work:1"\n': "",
        }
    )
    (shelf.source / "tests/test.sh").unlink()
    (shelf.source / "instruction.md").unlink()
    told = "\n".join(shelf.refusals())
    image = "environment.docker_image: "
    for said in ("environment.tpus = 2", image, "tests/test.sh", "instruction.md"):
        assert said in told


def test_no_image_of_the_verifier_hides_another_refusal(shelf: Shelf) -> None:
    shelf.change(
        {
            'docker_image = "example/verifier@sha256:1"\n': "",
            '"example/work:1"': '"example/work:1"\nworkdir = "/app"',
        }
    )
    (shelf.source / "tests/Dockerfile").write_text("FROM x\n")
    told = "\n".join(shelf.refusals())
    assert "--score-image IMAGE" in told
    assert "workdir = '/app'" in told


def test_a_destination_that_is_not_kept_is_printed(shelf: Shelf) -> None:
    assert not [told for told in read_task(shelf.source).differences if "destination" in told]
    shelf.change({'log.md"}': 'log.md", destination = "kept/log.md"}'})
    (told,) = [one for one in read_task(shelf.source).differences if "destination" in one]
    assert "'/workspace/notes/log.md'" in told
    assert "'kept/log.md'" in told


def test_an_older_task_file_and_its_way_to_say_no_network_are_read(shelf: Shelf) -> None:
    shelf.change(
        {
            'schema_version = "1.3"': 'version = "1.0"',
            'network_mode = "no-network"': "allow_internet = false",
        }
    )
    assert shelf.pack().name == "write-an-answer"
