"""An ordinary user with access to the engine's socket: the whole pipeline, and what is missing."""

import json
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from orchestrator.adapters.docker_api import DEFAULT_ADDRESS
from orchestrator.adapters.loop_volumes import FolderVolumes
from orchestrator.adapters.overlay_views import PlainViews
from orchestrator.config import Settings
from tests.e2e.rig import PUBLISH, THREE, Done, Rig, final, last

pytestmark = pytest.mark.docker

USER = 12001
CHECKOUT = Path(__file__).parents[2]
PARTS = ("orchestrator", "receipts", "harness", "containers", "profiles", "tasks")
SITE = sysconfig.get_path("purelib")
IMPORT_ALL = "import docker, pydantic, typer, sys; print(sys.version_info[:2])"


@dataclass
class UserRig(Rig):
    """A bench that belongs to ``USER`` and in which ``orch`` runs as that user."""

    python: str = ""
    groups: tuple[int, ...] = ()

    @override
    def pack(self, *args: Any, **changes: Any) -> Path:
        place = super().pack(*args, **changes)
        for path in (self.root, *self.root.rglob("*")):
            os.chown(path, USER, USER, follow_symlinks=False)
        return place

    @override
    def call(self, *words: str | Path) -> Done:
        return self.as_user([self.python, "-m", "orchestrator", *words])

    def as_user(self, argv: Sequence[str | Path]) -> Done:
        done = subprocess.run(
            argv,
            user=USER,
            group=USER,
            extra_groups=self.groups,
            umask=0o077,
            cwd=self.root,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.root),
                "PYTHONPATH": f"{self.root / 'checkout'}:{SITE}",
                **self.variables,
            },
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=120,
        )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def _groups_for_the_socket() -> tuple[int, ...]:
    """Do what `usermod -aG docker` does, for one process."""
    address = Settings.from_environment().engine_address or DEFAULT_ADDRESS
    scheme, _, path = address.partition("://")
    if scheme != "unix":
        pytest.skip(f"{address} is not a local socket")
    status = Path(path).stat()
    if not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        pytest.skip(f"{path} is open to its owner alone")
    return (status.st_gid,)


@pytest.fixture
def rig() -> Iterator[UserRig]:
    if os.geteuid() != 0:
        pytest.skip("becoming another user takes root")
    groups = _groups_for_the_socket()
    with tempfile.TemporaryDirectory(prefix="orch-user-") as name:
        bench = UserRig(Path(name), groups=groups)
        for part in PARTS:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(CHECKOUT / part, bench.root / "checkout" / part, ignore=ignored)
        Path(name).chmod(0o755)
        os.chown(name, USER, USER)
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        for python in (sys.executable, f"/usr/bin/python{version}"):
            bench.python = python
            if shutil.which(python) and _works(bench):
                break
        else:
            pytest.skip(f"no Python {version} with our packages that another user may run")
        yield bench


def _works(bench: UserRig) -> bool:
    try:
        return bench.as_user([bench.python, "-c", IMPORT_ALL]).code == 0
    except PermissionError:
        return False


def test_explore_replay_score_and_verify(rig: UserRig) -> None:
    attempt = rig.explore(rig.pack(THREE + "id -u; umask\n"))
    assert final(attempt) == "submitted"
    assert last(attempt, "captured")["host_facts"] == []
    assert last(attempt, "explore_started")["size_limits"] == {
        "/workspace": "watched_folder",
        "/out": "watched_folder",
        "/run/orch": "watched_folder",
    }
    replay = rig.replay(attempt)
    assert final(replay) == "validated"
    assert (replay / "logs/stdout.log").read_text() == f"{USER}\n0022\n"
    aggregate = json.loads((replay / "score-001/summary.json").read_text())
    assert aggregate["best"]["value"] == 0.3
    for plan in (attempt, replay, replay / "score-001"):
        relaxations = json.loads((plan / "plan.json").read_text())["relaxations"]
        assert {*FolderVolumes().relaxations(), *PlainViews().relaxations()} <= set(relaxations)
    verified = rig.call("verify", attempt)
    assert verified.code == 3, verified.err
    assert {path.stat().st_uid for path in rig.runs.rglob("*")} == {USER}


def test_official_is_refused_with_the_reasons(rig: UserRig) -> None:
    done = rig.call("explore", rig.pack(), "--official")
    assert done.code == 64
    for reason in (*FolderVolumes().relaxations(), *PlainViews().relaxations()):
        assert reason in done.err


def test_a_run_that_outgrows_its_disk_is_ended(rig: UserRig) -> None:
    fill = "for i in 1 2 3 4 5 6; do head -c 8m /dev/zero > /out/$i; done; sleep 60\n"
    attempt = rig.explore(rig.pack(PUBLISH + "publish 10 0.5\n" + fill))
    replay = rig.replay(attempt)
    assert final(replay) == "validated"
    ended = last(replay, "exited")
    assert ended["exit"]["stop_reason"] == "disk_limit"
    assert ended["exit"]["duration_s"] < 30
    assert ended["host_facts"] == []


def test_doctor_says_what_the_user_goes_without(rig: UserRig) -> None:
    found = {check["name"]: check for check in rig.call("doctor", "--json").json()}
    assert found["engine"]["level"] == "ok"
    assert found["size-limited volumes"]["level"] == "limited"
    assert "the right to mount" in found["size-limited volumes"]["fact"]
    assert "root" in found["size-limited volumes"]["remedy"]


def test_a_user_without_access_to_the_socket_is_told_how_to_get_it(rig: UserRig) -> None:
    rig.groups = ()
    done = rig.call("explore", rig.pack())
    assert done.code == 69
    assert "Permission denied" in done.err
    assert "group" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("private", ["checkout/harness/submit.sh", "pack/validator"])
def test_what_the_containers_user_cannot_read_is_named_before_anything_starts(
    rig: UserRig, private: str
) -> None:
    pack = rig.pack()
    (rig.root / private).chmod(0o700)
    os.chown(rig.root / private, 0, 0)
    as_root = subprocess.run(
        [rig.python, "-m", "orchestrator", "explore", pack],
        cwd=rig.root,
        env={**os.environ, "PYTHONPATH": f"{rig.root / 'checkout'}:{SITE}", **rig.variables},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )
    assert as_root.returncode == 64
    said, remedy = as_root.stderr.splitlines()
    assert (
        said == f"orch: {rig.root / private} cannot be read by user 10001, as whom containers run"
    )
    assert remedy.startswith("orch: chmod -R go+rX ")
    assert not list(rig.runs.glob("*/attempt-*"))


SHUT_IN_REPLAY = (
    "chmod 000 /out",
    "chmod 000 /out; sleep 2",
    "mkdir -p /out/checkpoints/checkpoint-5; chmod 000 /out/checkpoints",
    PUBLISH + "publish 5 0.1; chmod 000 /out/checkpoints/checkpoint-5",
)
SHUT_IN_EXPLORATION = (
    "chmod 000 /workspace",
    "chmod 000 /workspace; sleep 2",
    "chmod 000 /out; sleep 2",
    "chmod 000 /run/orch /logs/agent",
)


@pytest.mark.parametrize("shut", SHUT_IN_REPLAY)
def test_folders_that_a_candidate_shuts_are_its_own_doing(rig: UserRig, shut: str) -> None:
    replay = rig.replay(rig.explore(rig.pack(shut + "\n")), "--through", "validate")
    assert final(replay) == ("none_valid" if "publish" in shut else "no_checkpoint")


@pytest.mark.parametrize("shut", SHUT_IN_EXPLORATION)
def test_folders_that_an_agent_shuts_are_its_own_doing(rig: UserRig, shut: str) -> None:
    attempt = rig.explore(rig.pack(steps=({"run": "echo more >> run.sh; " + shut},)))
    assert last(attempt, "captured")["reason"] == "agent_early_exit"
