"""How a container is asked for in each dialect."""

from typing import Any

import pytest

from orchestrator.adapters.docker_dialect import DOCKER, PODMAN, Dialect, dialect_of
from orchestrator.adapters.docker_spec import create_body
from orchestrator.domain.container import ContainerSpec, Limits, Tmpfs

SPEC = ContainerSpec(
    name="it",
    image="orch/debian:1",
    argv=("true",),
    user="10001:10001",
    workdir="/",
    mounts=(),
    tmpfs=(
        Tmpfs("/tmp", size=1 << 20, inodes=1000),
        Tmpfs("/home/agent", size=1 << 20, inodes=1000, mode=0o700, uid=10001, gid=10001),
    ),
    limits=Limits(cpus=1, memory=1 << 28, shm=1 << 20, pids=64),
    labels={},
)


def asked(dialect: Dialect) -> dict[str, Any]:
    host: dict[str, Any] = create_body(SPEC, dialect)["HostConfig"]
    return host


@pytest.mark.parametrize(
    ("components", "dialect"),
    [
        ([{"Name": "Engine"}, {"Name": "containerd"}, {"Name": "runc"}], DOCKER),
        ([{"Name": "Podman Engine"}, {"Name": "Conmon"}], PODMAN),
        (None, DOCKER),
    ],
)
def test_an_engine_is_known_by_its_components(
    components: list[dict[str, str]] | None, dialect: Dialect
) -> None:
    assert dialect_of({"Components": components}) is dialect


def test_podman_is_its_storage_because_its_id_changes_with_every_answer() -> None:
    info = {"ID": "random", "Name": "box", "DockerRootDir": "/var/lib/containers/storage"}
    assert PODMAN.engine_id(info) == "box:/var/lib/containers/storage"
    assert DOCKER.engine_id(info) == "random"


def test_docker_limits_files_and_gives_memory_file_systems_an_owner() -> None:
    assert asked(DOCKER)["Tmpfs"] == {
        "/tmp": "rw,nosuid,nodev,exec,size=1048576,nr_inodes=1000,mode=1777,uid=0,gid=0",
        "/home/agent": "rw,nosuid,nodev,exec,size=1048576,nr_inodes=1000,"
        "mode=700,uid=10001,gid=10001",
    }


def test_podman_gets_what_it_understands_and_no_room_that_nobody_asked_for() -> None:
    host = asked(PODMAN)
    assert host["Tmpfs"] == {
        "/run": "rw,nosuid,nodev,noexec,size=4096,mode=755",
        "/var/tmp": "rw,nosuid,nodev,noexec,size=4096,mode=755",
        "/tmp": "rw,nosuid,nodev,exec,size=1048576,notmpcopyup,mode=1777",
        "/home/agent": "rw,nosuid,nodev,exec,size=1048576,notmpcopyup,mode=1777",
    }
    limits = {limit["Name"]: limit["Hard"] for limit in host["Ulimits"]}
    assert limits["nproc"] == 32768
    assert "nproc" not in {limit["Name"] for limit in asked(DOCKER)["Ulimits"]}
