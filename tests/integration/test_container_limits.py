"""The limits of real containers against the declared ones, and what an image cannot bring along."""

import dataclasses
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from orchestrator.adapters.docker_container import DockerContainer
from orchestrator.adapters.loop_volumes import FolderVolumes, LoopVolumes
from orchestrator.config import Settings, bundled
from orchestrator.domain.container import HostAbilities
from orchestrator.domain.roles import Phase
from orchestrator.errors import InfrastructureError, TaskPackError, UsageError
from orchestrator.lifecycle.machine import State
from orchestrator.pipeline import jobs, on_host
from orchestrator.sandbox import Isolation
from orchestrator.wiring import isolation
from tests.e2e.rig import PUBLISH, THREE, Rig, last
from tests.integration.real_phases import LIMITS, Held, Run, run_held

pytestmark = pytest.mark.docker
MIB = 1024**2
CGROUP = "/sys/fs/cgroup"
ASK = f"""\
one() {{ for f in "$@"; do [ -r $f ] && cat $f && return; done; echo none; }}
echo pids $(one {CGROUP}/pids/pids.max {CGROUP}/pids.max)
echo memory $(one {CGROUP}/memory/memory.limit_in_bytes {CGROUP}/memory.max)
echo swap $(one {CGROUP}/memory/memory.memsw.limit_in_bytes {CGROUP}/memory.swap.max)
echo cpus $(one {CGROUP}/cpu/cpu.cfs_quota_us {CGROUP}/cpu.max)
for l in c f n; do echo limit-$l $(ulimit -H$l) $(ulimit -S$l); done
echo queue $(python3 -c 'import resource as r; print(*r.getrlimit(12))')
for m in /tmp /dev/shm $HOME /out /workspace; do
  echo "$m $(df -B1 --output=size,itotal $m 2> /dev/null | tail -1)"
done
"""


CALLS = (Path(__file__).parents[1] / "data" / "filtered_calls.py").read_text()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    rig = Rig(tmp_path_factory.mktemp("limits"))

    def look(held: Held) -> dict[str, Any]:
        client = docker.from_env()
        inspected = client.api.inspect_container(held.container.id)
        client.close()
        said = [line.split() for line in held.sh(ASK).splitlines()]
        answers = held.execute(("python3", "-c", CALLS)).output
        return {
            "said": {row[0]: row[1:] for row in said},
            "inspected": inspected,
            "calls": json.loads(answers),
        }

    return run_held(rig, look)


def said(run: Run, phase: Phase, name: str) -> list[str]:
    return list(run.found[phase]["said"][name])


@pytest.mark.parametrize("phase", Phase)
class TestDeclared:
    """One test for each limit of 'In the container'."""

    def test_pids(self, run: Run, phase: Phase) -> None:
        assert said(run, phase, "pids") == [str(LIMITS["pids"])]

    def test_memory_and_swap(self, run: Run, phase: Phase) -> None:
        assert said(run, phase, "memory") == [str(256 * MIB)]
        assert said(run, phase, "swap") in ([str(256 * MIB)], ["0"])

    def test_cpus(self, run: Run, phase: Phase) -> None:
        assert said(run, phase, "cpus")[0] == "100000"

    def test_file_size(self, run: Run, phase: Phase) -> None:
        assert said(run, phase, "limit-f") == [str(64 * MIB // 1024)] * 2  # ulimit counts KiB

    def test_core_and_open_files(self, run: Run, phase: Phase) -> None:
        assert said(run, phase, "limit-c") == ["0", "0"]
        assert said(run, phase, "limit-n") == ["16384", "16384"]

    def test_message_queue(self, run: Run, phase: Phase) -> None:
        assert said(run, phase, "queue") == ["819200", "819200"]

    @pytest.mark.parametrize(
        ("folder", "size"), [("/tmp", 32 * MIB), ("/dev/shm", 16 * MIB), ("/home/agent", 32 * MIB)]
    )
    def test_memory_file_systems(self, run: Run, phase: Phase, folder: str, size: int) -> None:
        assert said(run, phase, folder) == [str(size), str(max(1024, size // 4096))]

    def test_the_log_of_the_engine(self, run: Run, phase: Phase) -> None:
        log = run.found[phase]["inspected"]["HostConfig"]["LogConfig"]
        assert log == {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}}

    def test_the_filter_refuses_and_leaves_what_experiments_need(
        self, run: Run, phase: Phase
    ) -> None:
        answers = run.found[phase]["calls"]
        assert [name for name, was_open in answers.items() if was_open] == ["usable"]
        assert len(answers) == 26

    def test_the_filter_and_the_runtime(self, run: Run, phase: Phase) -> None:
        host = run.found[phase]["inspected"]["HostConfig"]
        nnp, filter_ = host["SecurityOpt"]
        assert nnp == "no-new-privileges:true"
        profile = json.loads((bundled("profiles") / "seccomp.json").read_text())
        assert json.loads(filter_.removeprefix("seccomp=")) == profile
        assert host["Runtime"] == "runc"


@pytest.mark.parametrize("phase", [Phase.EXPLORE, Phase.REPLAY])
@pytest.mark.parametrize("folder", ["/out", "/workspace"])
def test_size_and_files_of_a_volume(run: Run, phase: Phase, folder: str) -> None:
    size, files = map(int, said(run, phase, folder))
    assert 0.9 * 64 * MIB <= size <= 64 * MIB
    assert files == 64 * MIB // 8192


def test_plans_say_runtime_and_filter(run: Run) -> None:
    for folder in (run.attempt, run.replay, run.replay / "score-001"):
        plan = json.loads((folder / "plan.json").read_text())
        assert plan["runtime"] == "runc"
        assert plan["seccomp"].startswith("sha256:")


def write(count: int, mib: int) -> str:
    return f"for i in $(seq {count}); do head -c {mib}M /dev/zero > /out/f$i || exit 9; done\n"


@pytest.mark.parametrize("kernel", [True, False])
def test_a_full_folder_is_behaviour_and_the_receipt_says_how_it_was_held(
    tmp_path: Path, kernel: bool
) -> None:
    """A loop volume answers ENOSPC; a watched folder's container is ended soon after."""
    rig = Rig(tmp_path)
    attempt = rig.enter(rig.pack(PUBLISH + "publish 10 1\n" + write(20, 4) + "sleep 100\n"))
    with rig.context() as plain:
        ctx = dataclasses.replace(plain, volumes=LoopVolumes() if kernel else FolderVolumes())
        replay = rig.replay_in(ctx, attempt)
    facts = last(replay, "exited")["exit"]
    assert facts["stop_reason"] == ("exited" if kernel else "disk_limit")
    assert facts["exit_code"] == (9 if kernel else 137)
    how = "allocated_loop_ext4" if kernel else "watched_folder"
    assert last(replay, "run_started")["size_limits"] == {"/workspace": how, "/out": how}
    assert last(replay, "exited")["host_facts"] == []
    assert last(replay, "validated")["accepted"][0]["name"] == "checkpoint-10"
    if not kernel:
        assert facts["duration_s"] < 60


def test_a_watched_folder_is_outgrown_by_bytes_or_by_files(tmp_path: Path) -> None:
    volumes = FolderVolumes()
    by_bytes = volumes.create(tmp_path / "a", MIB, owner=(0, 0))
    (by_bytes.path / "file").write_bytes(bytes(MIB // 2))
    assert not by_bytes.outgrown()
    (by_bytes.path / "more").write_bytes(bytes(MIB))
    assert by_bytes.outgrown()
    by_files = volumes.create(tmp_path / "b", MIB, owner=(0, 0))
    for number in range(1024):
        (by_files.path / str(number)).touch()
    assert not by_files.outgrown()
    (by_files.path / "last").touch()
    assert by_files.outgrown()
    found = volumes.adopt(tmp_path / "b", MIB)
    assert found is not None
    assert found.outgrown()
    unwatched = volumes.adopt(tmp_path / "b")
    assert unwatched is not None
    assert not unwatched.outgrown()


FORKERS = "for i in $(seq 240); do nice -n 19 sh -c 'while :; do /bin/true; done' & done; "
"""They leave the submission its share of the CPU; the freezer has to catch them all the same."""
MANY = {"pids": 700, "memory": "1g"}
PATIENT = {"wall": "300s", "command_wall": "240s"}
SUBMIT = "echo '# changed' >> /workspace/run.sh; /opt/harness/submit.sh"


def test_forkers_do_not_keep_a_submission_from_being_taken(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    steps = ({"run": FORKERS + SUBMIT},)
    attempt = rig.explore(rig.pack(THREE, steps=steps, defaults=MANY, explore=PATIENT))
    taken = last(attempt, "captured")
    assert taken["reason"] == "agent_explicit_submit"
    assert set(taken["contested"]) <= {"captured_after_kill"}


def test_a_container_that_cannot_be_frozen_is_killed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: DockerContainer, timeout: float = 30.0) -> None:
        raise InfrastructureError("the freezer was outrun")

    monkeypatch.setattr(DockerContainer, "pause", refuse)
    rig = Rig(tmp_path)
    writer = "(while :; do date > /workspace/clock; done) & "
    pack = rig.pack(
        THREE, steps=({"run": writer + FORKERS + SUBMIT},), defaults=MANY, explore=PATIENT
    )
    with rig.context() as ctx:
        loaded, plan = jobs.plan_explore(
            ctx, pack, agent="scripted", model="none", effort="none", official=False
        )
        folder, state = jobs.explore(ctx, loaded, plan)
    assert state is State.SUBMITTED
    taken = last(folder.root, "captured")
    assert taken["contested"] == ["captured_after_kill"]
    assert taken["reason"] == "agent_explicit_submit"
    assert b"# changed" in folder.patch.read_bytes()


@pytest.fixture
def image() -> Iterator[Any]:
    """Build an image that brings instructions of its own."""
    client = docker.from_env()
    made: list[str] = []

    def build(*lines: str) -> str:
        text = "\n".join(["FROM orch/debian:1", *lines]).encode()
        found, _ = client.images.build(
            fileobj=io.BytesIO(text), tag="orch-test/brings:1", rm=True, forcerm=True
        )
        made.append(found.id)
        return "orch-test/brings:1"

    yield build
    for name in made:
        client.images.remove(name, force=True)
    client.close()


def test_an_image_with_a_volume_is_refused(image: Any, tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    pack = rig.pack(defaults={"image": image("VOLUME /data")})
    with rig.context() as ctx, pytest.raises(TaskPackError, match="declares volumes"):
        jobs.plan_explore(ctx, pack, agent="scripted", model="none", effort="none", official=False)


def test_entrypoint_healthcheck_user_and_folder_of_an_image_do_nothing(
    image: Any, tmp_path: Path
) -> None:
    name = image(
        'ENTRYPOINT ["/bin/false"]',
        "HEALTHCHECK --interval=1s CMD touch /tmp/healthy",
        "USER root",
        "WORKDIR /root",
        "STOPSIGNAL SIGUSR1",
        'CMD ["/bin/false"]',
    )
    rig = Rig(tmp_path)
    run = "sleep 2; ls /tmp; id -u; pwd\n" + THREE
    attempt = rig.enter(rig.pack(run, defaults={"image": name}))
    with rig.context() as ctx:
        replay = rig.replay_in(ctx, attempt)
    assert (replay / "logs/stdout.log").read_text() == "10001\n/workspace\n"


ABILITIES = HostAbilities(
    cpus=2,
    memory=1,
    runtimes=("runc", "runsc"),
    cgroup_version=2,
    cpuset=True,
    pids_limit=True,
    swap_limit=True,
    seccomp=True,
    rootless=False,
    storage_driver="overlay2",
)


def chosen(runtime: str, **changes: bool) -> Isolation:
    settings = Settings.from_environment({"ORCH_RUNTIME": runtime, "HOME": "/home/somebody"})
    return isolation(settings, dataclasses.replace(ABILITIES, **changes))


def test_the_runtime_is_the_hosts_choice() -> None:
    assert chosen("runsc").runtime == "runsc"
    assert chosen("").runtime == "runc"


def test_an_unknown_runtime_is_refused_with_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        chosen("kata-runtime")
    assert "runc, runsc" in str(refused.value.remedy)
    rig = Rig(tmp_path, {"ORCH_RUNTIME": "kata-runtime"})
    done = rig.orch("explore", rig.pack())
    assert done.code == 64
    assert "kata-runtime" in done.err


def test_the_filter_goes_by_content_or_by_name_and_is_named_by_its_digest() -> None:
    by_content, by_name = chosen("runc"), chosen("runc", filter_by_name=True)
    assert json.loads(by_content.seccomp or "")["defaultAction"] == "SCMP_ACT_ERRNO"
    assert Path(by_name.seccomp or "").is_file()
    assert by_content.digest == by_name.digest != ""
    assert chosen("runc", seccomp=False) == Isolation("runc")


def test_a_plan_made_under_another_filter_is_not_run(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    with rig.context() as ctx:
        _, plan = jobs.plan_explore(
            ctx, rig.pack(), agent="scripted", model="none", effort="none", official=False
        )
        assert ctx.isolation.of(plan) is ctx.isolation
        for other in ({"runtime": "runsc"}, {"seccomp": "sha256:0"}):
            with pytest.raises(InfrastructureError, match="the plan says"):
                ctx.isolation.of(plan.model_copy(update=other))


def test_a_host_without_a_filter_is_not_official(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    with rig.context() as plain:
        ctx = dataclasses.replace(plain, isolation=Isolation())
        found = on_host.relaxations(
            ctx, jobs.load_pack(rig.pack()).spec.defaults, None, official=False
        )
    assert "engine applies no system call filter" in found
