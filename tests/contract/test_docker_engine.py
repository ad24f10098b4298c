"""What only a real engine can show: limits, hardening, floods, broken connections."""

import gc
import json
import os
import select
import socket
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.adapters import docker_api
from orchestrator.adapters.docker_engine import DockerEngine
from orchestrator.adapters.engine_process import incarnation_of
from orchestrator.domain.container import ContainerEnd, Limits, Mount
from orchestrator.errors import ContainerLostError, EngineUnavailableError, InfrastructureError
from orchestrator.ports import Container
from tests.contract.breaking_proxy import BreakingProxy
from tests.contract.conftest import SETTINGS, docker_cli
from tests.contract.rig import KEEP_ALIVE, Recorder, Rig
from tests.e2e.rig import until

pytestmark = pytest.mark.docker

LONG = 120.0
NO_FILE_LIMIT = "engine cannot limit the files of a memory file system"
FLOOD = 30_000_000


def ended(container: Container) -> ContainerEnd:
    end = container.wait(LONG)
    assert end is not None
    return end


def bash(script: str) -> tuple[str, ...]:
    return ("bash", "-c", script)


def test_DK_03_fifty_quick_failures_are_fifty_failures(docker_rig: Rig) -> None:
    for _ in range(50):
        container, recorder = docker_rig.start("sh", "-c", "echo boom >&2; exit 1")
        assert ended(container).state.exit_code == 1
        assert recorder.kept["stderr"] == b"boom\n"
        container.remove()


def test_DK_03_the_engine_removes_nothing_by_itself(docker_rig: Rig) -> None:
    container, _ = docker_rig.start("true")
    ended(container)
    host = json.loads(docker_cli("inspect", container.id))[0]["HostConfig"]
    assert host["AutoRemove"] is False
    assert host["RestartPolicy"]["Name"] == "no"


def test_DK_01_silence_beyond_the_clients_timeout_is_no_failure(docker_rig: Rig) -> None:
    made, _ = docker_rig.start("sleep", "6")
    engine = DockerEngine(SETTINGS.engine_address, timeout=2)
    (container,) = engine.find(made.labels)
    container.adopt(Recorder())
    end = ended(container)
    assert end.state.exit_code == 0
    assert end.witnessed
    assert not end.engine_restarted
    engine.close()


def test_EX_02_out_of_memory_is_read_before_removal(real_rig: Rig) -> None:
    eat = "python3 -c 'x = []\nwhile True: x.append(bytearray(1 << 20))'; exit $?"
    limits = Limits(cpus=1, memory=64 << 20, shm=1 << 20, pids=64)
    container, _ = real_rig.start(*bash(eat), limits=limits)
    end = ended(container)
    assert end.state.exit_code == 137
    assert end.state.oom_killed
    assert end.signals == ()
    memory = container.memory()
    assert memory.limit_reached is None or memory.limit_reached > 0


def test_memory_is_read_from_the_containers_own_cgroup(real_rig: Rig) -> None:
    take = "import time; x = bytearray(40 << 20); print('taken', flush=True); time.sleep(600)"
    container, recorder = real_rig.start("python3", "-c", take)
    recorder.wait_for(b"taken")
    memory = container.memory()
    assert memory.peak is not None
    assert 40 << 20 < memory.peak < 256 << 20
    assert memory.limit_reached == 0
    container.kill()
    ended(container)
    # A zero read before the end proves nothing; the group goes a moment after its last process.
    until(lambda: container.memory().limit_reached is None)
    assert container.memory().peak == memory.peak


def test_EX_10_a_cut_off_command_lives_on_until_its_user_is_swept(real_rig: Rig) -> None:
    agent = {"user": "10002:10002", "env": {}, "workdir": "/tmp"}
    container, recorder = real_rig.start(*KEEP_ALIVE)
    recorder.wait_for(b"ready")

    def agents() -> list[str]:
        return [it.command for it in container.processes() if it.user == "10002"]

    result = container.execute(bash("setsid sleep 600 & sleep 600"), timeout=1.0, **agent)
    assert result.timed_out
    until(lambda: agents().count("sleep 600") == 2)
    container.execute(bash("kill -9 -1"), timeout=LONG, **agent)
    until(lambda: agents() == [])
    assert container.execute(bash("exit 0"), timeout=LONG, **agent).exit_code == 0
    assert not container.state().ended


def test_a_flood_reaches_the_sink_whole_and_nobody_has_to_keep_it(docker_rig: Rig) -> None:
    container = docker_rig.create(*bash(f"head -c {FLOOD} /dev/zero | tr '\\0' '\\377'"))
    recorder = Recorder(limit=1000)
    container.start(recorder)
    assert ended(container).state.exit_code == 0
    assert recorder.seen == FLOOD
    assert recorder.kept["stdout"] == b"\xff" * 1000


def test_a_flood_from_a_command_is_cut(docker_rig: Rig) -> None:
    container, _ = docker_rig.start(*KEEP_ALIVE)
    result = container.execute(
        bash("head -c 5000000 /dev/zero"),
        user="10001:10001",
        env={},
        workdir="/tmp",
        timeout=LONG,
        max_output=1000,
    )
    assert (result.exit_code, result.truncated, len(result.output)) == (0, True, 1000)


LOOK_AROUND = """
import json, os, resource, socket
from pathlib import Path
def refused(path):
    try: Path(path, "probe").write_text("x")
    except OSError as error: return error.strerror
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
print(json.dumps({
    "interfaces": [name for _, name in socket.if_nameindex()],
    "root": refused("/"), "etc": refused("/etc"), "tmp": refused("/tmp"),
    "capabilities": int(status["CapEff"], 16) | int(status["CapBnd"], 16),
    "no_new_privileges": status["NoNewPrivs"].strip(),
    "seccomp": status["Seccomp"].strip(),
    "ids": [os.getuid(), os.getgid()],
    "first": Path("/proc/1/comm").read_text().strip(),
    "core": resource.getrlimit(resource.RLIMIT_CORE),
    "file_size": resource.getrlimit(resource.RLIMIT_FSIZE),
    "tmp_inodes": os.statvfs("/tmp").f_files,
    "tmp_size": os.statvfs("/tmp").f_blocks * os.statvfs("/tmp").f_frsize,
    "shm_size": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize,
    "hostname": socket.gethostname(),
    "given": os.environ.get("GIVEN"),
    "stdin": os.read(0, 1).decode(),
}))
"""


def test_a_container_is_closed_in(real_rig: Rig) -> None:
    limits = Limits(cpus=1, memory=256 << 20, shm=1 << 20, pids=64, file_size=1 << 30)
    container, recorder = real_rig.start(
        "python3", "-c", LOOK_AROUND, limits=limits, env={"GIVEN": "a=b\nc"}
    )
    assert ended(container).state.exit_code == 0, recorder.kept
    seen = json.loads(recorder.kept["stdout"])
    assert seen.pop("first").endswith("-init")
    limited = NO_FILE_LIMIT not in real_rig.engine.abilities().lacks
    assert (seen.pop("tmp_inodes") == 1000) is limited
    assert seen == {
        "interfaces": ["lo"],
        "root": "Read-only file system",
        "etc": "Read-only file system",
        "tmp": None,
        "capabilities": 0,
        "no_new_privileges": "1",
        "seccomp": "2",
        "ids": [10001, 10001],
        "core": [0, 0],
        "file_size": [1 << 30, 1 << 30],
        "tmp_size": 1 << 20,
        "shm_size": 1 << 20,
        "hostname": "orch",
        "given": "a=b\nc",
        "stdin": "",
    }


def test_the_engine_holds_the_limits_and_takes_our_seccomp_profile(docker_rig: Rig) -> None:
    profile = {
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}],
    }
    limits = Limits(cpus=1.5, memory=128 << 20, shm=1 << 20, pids=33, cpuset="0")
    container, recorder = docker_rig.start(
        *bash("mkdir /tmp/x"), limits=limits, seccomp=json.dumps(profile)
    )
    assert ended(container).state.exit_code == 1
    assert b"Operation not permitted" in recorder.kept["stderr"]
    host = json.loads(docker_cli("inspect", container.id))[0]["HostConfig"]
    assert host["Memory"] == host["MemorySwap"] == 128 << 20
    assert host["NanoCpus"] == 1_500_000_000
    assert host["CpusetCpus"] == "0"
    assert host["PidsLimit"] == 33
    assert host["NetworkMode"] == "none"


def test_an_images_entrypoint_and_health_check_are_off(docker_rig: Rig) -> None:
    made = docker_cli("create", "--network", "none", docker_rig.image, "true")
    changes = ('ENTRYPOINT ["/bin/false"]', "HEALTHCHECK CMD true", "ENV A=1")
    flags = [word for change in changes for word in ("--change", change)]
    image = docker_cli("commit", *flags, made)
    try:
        assert (
            docker_rig.engine.image(image).digest
            != docker_rig.engine.image(docker_rig.image).digest
        )
        container, recorder = docker_rig.start("echo", "mine", image=image)
        assert ended(container).state.exit_code == 0
        assert recorder.kept["stdout"] == b"mine\n"
        config = json.loads(docker_cli("inspect", container.id))[0]["Config"]
        assert config["Healthcheck"]["Test"] == ["NONE"]
        container.remove()
    finally:
        docker_cli("rm", made)
        docker_cli("rmi", image)


def test_an_images_digest_is_the_same_under_another_name(docker_rig: Rig) -> None:
    docker_cli("tag", docker_rig.image, "orch/contract-tag:1")
    try:
        one = docker_rig.engine.image(docker_rig.image)
        two = docker_rig.engine.image("orch/contract-tag:1")
        assert one.digest == two.digest
    finally:
        docker_cli("rmi", "orch/contract-tag:1")


def test_a_walk_through_an_image_leaves_no_container(docker_rig: Rig) -> None:
    made = docker_cli("create", "--network", "none", docker_rig.image, "true")
    image = docker_cli("commit", made)
    walk = docker_rig.engine.image_files(image)
    try:
        path, content = next(walk)
        assert path.startswith("/")
        content.read()
        assert docker_cli("ps", "-aq", "--filter", f"ancestor={image}")
        walk.close()  # type: ignore[attr-defined]
        assert not docker_cli("ps", "-aq", "--filter", f"ancestor={image}")
    finally:
        docker_cli("rm", made)
        docker_cli("rmi", image)


def test_what_a_container_changed_in_its_own_layer_is_listed(docker_rig: Rig) -> None:
    container, _ = docker_rig.start(
        "sh", "-c", "echo x > /opt/left; echo y > /tmp/lost", user="0:0", read_only=False
    )
    ended(container)
    assert "/opt/left" in container.changes()
    assert "/tmp/lost" not in container.changes()


def test_a_command_that_cannot_start_says_so_by_its_exit_code(docker_rig: Rig) -> None:
    container, _ = docker_rig.start("/no/such/command")
    assert ended(container).state.exit_code == 127


def test_a_start_the_engine_refuses_is_the_machines_failure(docker_rig: Rig) -> None:
    container = docker_rig.create(
        "true", limits=Limits(1, 64 << 20, 1 << 20, 8, open_files=1 << 40)
    )
    with pytest.raises(InfrastructureError):
        container.start(Recorder())


def test_an_engine_that_is_not_there_is_named_with_a_remedy(tmp_path: Path) -> None:
    for address in (f"unix://{tmp_path}/none.sock", "tcp://127.0.0.1:1"):
        with pytest.raises(EngineUnavailableError) as caught:
            DockerEngine(address).identity()
        assert "dockerd" in caught.value.remedy
        assert address.partition("://")[2] in str(caught.value)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:99999", "http://[::1"])
def test_what_is_no_address_is_no_bug_of_ours(address: str) -> None:
    with pytest.raises(EngineUnavailableError, match="is no address of a container engine"):
        DockerEngine(address).abilities()


# -- broken connections, by a proxy between us and the engine

# The SDK leaves the socket of a broken connection to the garbage collector, which warns of it.
leaves_sockets = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[BreakingProxy]:
    address = (SETTINGS.engine_address or docker_api.DEFAULT_ADDRESS).removeprefix("unix://")
    with BreakingProxy(tmp_path / "proxy.sock", Path(address)) as proxy:
        yield proxy


@pytest.fixture
def proxied(proxy: BreakingProxy, image: str) -> Iterator[Rig]:
    engine = DockerEngine(f"unix://{proxy.path}")
    rig = Rig(engine, image, docker_cli, docker_cli)
    yield rig
    rig.clean()
    rig.settle()
    engine.close()
    gc.collect()


def start_one_that_waits(rig: Rig) -> Container:
    container, recorder = rig.start(
        "sh", "-c", "trap 'exit 7' USR1; echo ready; while :; do sleep 0.05; done"
    )
    recorder.wait_for(b"ready")
    return container


def end_it_behind_our_back(container: Container) -> None:
    docker_cli("kill", "--signal", "USR1", container.id)
    assert docker_cli("wait", container.id) == "7"


@leaves_sockets
def test_DK_05_an_end_behind_a_broken_connection_to_the_same_engine_counts(
    proxied: Rig, proxy: BreakingProxy
) -> None:
    container = start_one_that_waits(proxied)
    proxy.cut()
    end_it_behind_our_back(container)
    assert container.wait(0.3) is None
    proxy.mend()
    end = ended(container)
    assert end.state.exit_code == 7
    assert end.witnessed
    assert not end.engine_restarted


@leaves_sockets
@pytest.mark.parametrize("later", ["another process", ""])
def test_DK_05_an_end_behind_another_engine_process_proves_nothing(
    proxied: Rig,
    proxy: BreakingProxy,
    monkeypatch: pytest.MonkeyPatch,
    later: str,
) -> None:
    container = start_one_that_waits(proxied)
    proxy.cut()
    end_it_behind_our_back(container)
    monkeypatch.setattr(docker_api, "incarnation_of", lambda _: later)
    proxy.mend()
    end = ended(container)
    assert end.state.exit_code == 7
    assert not end.witnessed
    assert end.engine_restarted


@leaves_sockets
def test_a_container_that_outlived_the_connection_is_seen_and_heard_again(
    proxied: Rig, proxy: BreakingProxy
) -> None:
    container, recorder = proxied.start(
        "sh", "-c", "echo ready; trap 'echo heard; exit 5' TERM; while :; do sleep 0.1; done"
    )
    recorder.wait_for(b"ready")
    proxy.cut()
    assert container.wait(0.3) is None
    docker_cli("kill", "--signal", "WINCH", container.id)
    proxy.mend()
    assert container.wait(6.0) is None  # more than the longest pause between two tries
    container.kill("TERM")
    end = ended(container)
    assert end.state.exit_code == 5
    assert end.witnessed
    assert end.signals == ("WINCH", "TERM")
    assert recorder.kept["stdout"] == b"ready\nheard\n"


@leaves_sockets
def test_a_container_removed_behind_a_broken_connection_is_lost(
    proxied: Rig, proxy: BreakingProxy
) -> None:
    container, recorder = proxied.start(*KEEP_ALIVE)
    recorder.wait_for(b"ready")
    proxy.cut()
    docker_cli("rm", "-f", container.id)
    proxy.mend()
    with pytest.raises(ContainerLostError):
        container.wait(LONG)


def test_the_incarnation_names_the_process_that_listens(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        boot, pid, started = incarnation_of(f"unix://{tmp_path / 's'}").split(":")
    assert boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert int(pid) == os.getpid()
    assert int(started) > 0
    assert incarnation_of("tcp://127.0.0.1:2375") == ""


# -- a person's terminal

JOIN = """
import sys
from orchestrator.adapters.docker_engine import DockerEngine
address, label = sys.argv[1:]
(container,) = DockerEngine(address).find({"orch.test": label})
sys.exit(container.interact(("sh",), user="10001:10001", env={"PS1": "prompt> "}))
"""


LABEL = "orch.test"


def joining(rig: Rig, container: Container) -> list[str]:
    address = rig.engine.identity().address
    return [sys.executable, "-c", JOIN, address, container.labels["orch.test"]]


def test_a_pipe_is_passed_on_and_the_exit_code_comes_back(real_rig: Rig) -> None:
    container, _ = real_rig.start(*KEEP_ALIVE)
    told = subprocess.run(
        joining(real_rig, container),
        input=b"echo one; id -u\nexit 6\n",
        capture_output=True,
        check=False,
    )
    assert (told.returncode, told.stdout) == (6, b"one\n10001\n"), told.stderr


def test_a_terminal_is_joined_and_put_back(real_rig: Rig) -> None:
    container, _ = real_rig.start(*KEEP_ALIVE)
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (33, 99))
    before = termios.tcgetattr(theirs)
    with subprocess.Popen(joining(real_rig, container), stdin=theirs, stdout=theirs) as person:
        read_until(ours, b"prompt> ")
        assert termios.tcgetattr(theirs) != before, "not in raw mode"
        os.write(ours, b"stty size\r")
        read_until(ours, b"33 99\r\nprompt> ")
        os.write(ours, b"cat\rhere\r")
        read_until(ours, b"here\r\nhere\r\n")  # once from the terminal, once from a cat that runs
        os.write(ours, b"\x03")  # Ctrl-C reaches the command, not us
        read_until(ours, b"prompt> ")
        os.write(ours, b"exit 4\r")
        assert person.wait(LONG) == 4
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)


def test_a_terminal_is_put_back_when_the_container_goes(docker_rig: Rig) -> None:
    container, _ = docker_rig.start(*KEEP_ALIVE)
    ours, theirs = os.openpty()
    before = termios.tcgetattr(theirs)
    with subprocess.Popen(joining(docker_rig, container), stdin=theirs, stdout=theirs) as person:
        read_until(ours, b"prompt> ")
        container.kill()
        assert person.wait(LONG) == 137
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)


def read_until(descriptor: int, text: bytes) -> None:
    heard = b""
    while text not in heard:
        readable, _, _ = select.select([descriptor], [], [], LONG)
        assert readable, heard
        heard += os.read(descriptor, 4096)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("/usr/share", "has a folder at /usr/share, where orch needs a file"),
        ("/etc/debian_version/x", "has a file at /etc/debian_version, where orch needs a folder"),
    ],
)
def test_an_image_that_is_in_the_way_of_a_mount_is_said_plainly(
    real_rig: Rig, tmp_path: Path, target: str, said: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    fine = Mount(tmp_path / "folder", "/nowhere/before")
    container = real_rig.create("true", mounts=(fine, Mount(tmp_path / "file", target)))
    before = {it.id for it in real_rig.engine.find({})}
    with pytest.raises(InfrastructureError) as refused:
        container.start(Recorder())
    assert str(refused.value).endswith(f"{real_rig.image} {said}")
    assert "image" in refused.value.remedy
    assert {it.id for it in real_rig.engine.find({})} <= before
