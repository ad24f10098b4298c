"""What every engine does, the real one and the one in memory."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from orchestrator.domain.container import ContainerStatus, ExecResult, Mount
from orchestrator.errors import (
    ContainerLostError,
    InfrastructureError,
    StorageFullError,
    UsageError,
)
from orchestrator.ports import Container, LogSink
from tests.contract.rig import (
    BOTH_STREAMS,
    KEEP_ALIVE,
    SLEEP_LONG,
    TRAP_TERM,
    WRITE_ASSET,
    WRITE_OUT,
    Recorder,
    Rig,
    exit_with,
)

LONG = 60.0


def execute(
    container: Container, argv: tuple[str, ...], timeout: float | None = LONG
) -> ExecResult:
    return container.execute(argv, user="10001:10001", env={}, workdir="/tmp", timeout=timeout)


@pytest.mark.parametrize("code", [0, 1, 75, 124, 137])
def test_exit_codes_are_kept(rig: Rig, code: int) -> None:
    container, _ = rig.start(*exit_with(code))
    end = container.wait(LONG)
    assert end is not None
    assert end.state.status is ContainerStatus.EXITED
    assert end.state.exit_code == code
    assert end.witnessed
    assert not end.engine_restarted
    assert not end.state.oom_killed
    assert end.signals == ()


def test_output_arrives_as_the_bytes_it_was(rig: Rig) -> None:
    container, recorder = rig.start(*BOTH_STREAMS)
    assert container.wait(LONG) is not None
    assert recorder.kept == {"stdout": b"out\xff\n", "stderr": b"err\x00\n"}


def test_a_sink_that_fails_is_heard_of(rig: Rig) -> None:
    class Full(LogSink):
        def write(self, stream: str, data: bytes) -> None:
            raise StorageFullError("full")

    container = rig.create(*KEEP_ALIVE)
    container.start(Full())
    with pytest.raises(StorageFullError):
        container.wait(LONG)


def test_a_running_container_has_no_end_and_no_exit_code(rig: Rig) -> None:
    container, recorder = rig.start(*KEEP_ALIVE)
    recorder.wait_for(b"ready")
    assert container.wait(0.01) is None
    state = container.state()
    assert state.status is ContainerStatus.RUNNING
    assert not state.ended
    assert state.exit_code is None
    assert container.processes()


def test_our_own_kill_is_among_the_signals(rig: Rig) -> None:
    container, _ = rig.start(*KEEP_ALIVE)
    container.kill()
    end = container.wait(LONG)
    assert end is not None
    assert end.state.exit_code == 137
    assert end.signals == ("KILL",)
    assert container.processes() == ()
    container.kill()
    assert container.wait(LONG) == end


def test_a_trapped_signal_is_recorded_and_does_not_end_it(rig: Rig) -> None:
    container, recorder = rig.start(*TRAP_TERM)
    recorder.wait_for(b"ready")
    container.kill("TERM")
    assert container.wait(0.05) is None
    container.kill()
    end = container.wait(LONG)
    assert end is not None
    assert end.signals == ("TERM", "KILL")
    assert end.state.exit_code == 137


def test_a_third_partys_kill_is_among_the_signals(rig: Rig) -> None:
    container, recorder = rig.start(*KEEP_ALIVE)
    recorder.wait_for(b"ready")
    rig.kill_by_third_party(container.name)
    end = container.wait(LONG)
    assert end is not None
    assert end.signals == (rig.others_kill,)
    assert end.witnessed


def test_a_lost_container_is_never_a_clean_exit(rig: Rig) -> None:
    container, recorder = rig.start(*KEEP_ALIVE)
    recorder.wait_for(b"ready")
    rig.remove_by_third_party(container.name)
    try:
        end = container.wait(LONG)
    except ContainerLostError:
        end = None
    assert end is None or (end.state.exit_code == 137 and end.signals == ("KILL",))
    with pytest.raises(ContainerLostError):
        container.state()
    container.kill()
    container.remove()


def test_a_paused_container_can_be_let_go_on(rig: Rig) -> None:
    container, _ = rig.start(*KEEP_ALIVE)
    container.pause()
    assert container.state().status is ContainerStatus.PAUSED
    assert execute(container, exit_with(0)).exit_code is None
    container.unpause()
    container.unpause()
    assert execute(container, exit_with(0)).exit_code == 0


def test_a_paused_container_can_be_killed(rig: Rig) -> None:
    container, _ = rig.start(*KEEP_ALIVE)
    container.pause()
    container.kill()
    end = container.wait(LONG)
    assert end is not None
    assert end.state.exit_code == 137


def test_an_ended_container_cannot_be_paused(rig: Rig) -> None:
    container, _ = rig.start(*exit_with(0))
    container.wait(LONG)
    with pytest.raises(InfrastructureError):
        container.pause()
    container.unpause()


def test_a_command_inside_has_its_own_exit_code_and_output(rig: Rig) -> None:
    container, _ = rig.start(*KEEP_ALIVE)
    assert execute(container, exit_with(3)).exit_code == 3
    heard: list[bytes] = []
    result = container.execute(
        BOTH_STREAMS,
        user="10001:10001",
        env={},
        workdir="/tmp",
        timeout=LONG,
        on_output=heard.append,
        max_output=6,
    )
    assert result.exit_code == 0
    assert result.truncated
    assert len(result.output) == 6
    assert sorted(b"".join(heard).splitlines()) == [b"err\x00", b"out\xff"]


def test_a_commands_time_limit_cuts_the_wait(rig: Rig) -> None:
    container, _ = rig.start(*KEEP_ALIVE)
    result = execute(container, SLEEP_LONG, timeout=0.5)
    assert result.timed_out
    assert result.exit_code is None
    assert not container.state().ended


def test_a_command_in_an_ended_container_is_cut_off(rig: Rig) -> None:
    container, _ = rig.start(*exit_with(0))
    container.wait(LONG)
    result = execute(container, exit_with(0))
    assert (result.exit_code, result.timed_out, result.output) == (None, False, b"")


def test_an_adopted_container_is_seen_to_its_end(rig: Rig) -> None:
    container, recorder = rig.start(*KEEP_ALIVE, labels={"orch.test": "ünï/β: 1=2"})
    recorder.wait_for(b"ready")
    (found,) = rig.engine.find({"orch.test": "ünï/β: 1=2"})
    assert (found.id, found.name) == (container.id, container.name)
    assert found.labels["orch.test"] == "ünï/β: 1=2"
    found.adopt(Recorder())
    assert found.wait(0.01) is None
    container.kill()
    end = found.wait(LONG)
    assert end is not None
    assert end.witnessed
    assert end.signals == (rig.others_kill,)


def test_an_end_before_the_adoption_is_proven_only_by_the_same_engine_process(rig: Rig) -> None:
    container, _ = rig.start(*exit_with(0))
    container.wait(LONG)
    here = rig.engine.identity().incarnation
    seen = []
    for incarnation in (here, "another", ""):
        (found,) = rig.engine.find(container.labels)
        found.adopt(Recorder(), incarnation)
        end = found.wait(LONG)
        assert end is not None
        assert end.state.exit_code == 0
        seen.append((end.witnessed, end.engine_restarted))
    assert seen == [(True, False), (False, True), (False, True)]


def test_find_wants_every_label(rig: Rig) -> None:
    container = rig.create(*exit_with(0), labels={"orch.test": "find", "orch.id": "1"})
    assert [it.id for it in rig.engine.find({"orch.test": "find", "orch.id": "1"})] == [
        container.id
    ]
    assert rig.engine.find({"orch.test": "find", "orch.id": "2"}) == ()


def test_a_name_is_given_once(rig: Rig) -> None:
    container = rig.create(*exit_with(0))
    with pytest.raises(InfrastructureError):
        rig.create(*exit_with(0), name=container.name)


def test_a_mount_must_exist(rig: Rig, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError):
        rig.create(*exit_with(0), mounts=(Mount(tmp_path / "absent", "/out"),))


def test_an_image_must_exist(rig: Rig) -> None:
    with pytest.raises(UsageError) as caught:
        rig.engine.image("orch/absent:1")
    assert "orch/absent:1" in caught.value.remedy
    with pytest.raises(InfrastructureError):
        rig.create(*exit_with(0), image="orch/absent:1")


def test_an_image_is_known_by_what_is_in_it(rig: Rig) -> None:
    image = rig.engine.image(rig.image)
    assert image.digest.startswith("image:v1:sha256:")
    assert rig.engine.image(rig.image) == image
    files = {path.removeprefix("/usr") for path, _ in rig.engine.image_files(rig.image)}
    assert "/bin/bash" in files


def test_a_folder_is_copied_out_of_an_image_with_its_name(rig: Rig, tmp_path: Path) -> None:
    rig.engine.copy_out(rig.image, "/etc/skel", tmp_path)
    assert (tmp_path / "skel" / ".profile").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["skel"]
    with pytest.raises(UsageError, match="has no /absent"):
        rig.engine.copy_out(rig.image, "/absent", tmp_path)
    with suppress(UsageError):  # a link: followed in the image, or refused; here it leads elsewhere
        rig.engine.copy_out(rig.image, "/bin", tmp_path)
        assert not (tmp_path / "bin").is_symlink()


def test_a_container_tells_whether_it_has_a_file_before_it_starts(rig: Rig) -> None:
    container = rig.create(*exit_with(0))
    assert container.has_file("/bin/bash")
    assert not container.has_file("/bin/absent")


def test_FS_03_a_mount_may_have_any_path(rig: Rig, tmp_path: Path) -> None:
    out = tmp_path / "my runs:v1" / "ünï"
    out.mkdir(parents=True)
    out.chmod(0o777)
    container, recorder = rig.start(*WRITE_OUT, mounts=(Mount(out, "/out", writable=True),))
    end = container.wait(LONG)
    assert end is not None
    assert end.state.exit_code == 0, recorder.kept
    assert (out / "file").read_bytes() == b"data\n"


def test_a_read_only_mount_stays_as_it_is(rig: Rig, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    container, _ = rig.start(*WRITE_ASSET, mounts=(Mount(tmp_path, "/assets"),))
    end = container.wait(LONG)
    assert end is not None
    assert end.state.exit_code == 5
    assert not list(tmp_path.iterdir())


def test_removal_may_be_asked_twice(rig: Rig) -> None:
    container, _ = rig.start(*KEEP_ALIVE)
    container.remove()
    container.remove()
    with pytest.raises(ContainerLostError):
        container.state()
    assert rig.engine.find(container.labels) == ()


def test_several_may_remove_the_same_container_at_once(rig: Rig) -> None:
    def remove_what_is_found() -> None:
        for found in rig.engine.find(container.labels):
            found.remove()
            with pytest.raises(ContainerLostError):
                found.state()

    container, _ = rig.start(*KEEP_ALIVE)
    with ThreadPoolExecutor(6) as hands:
        for removal in [hands.submit(remove_what_is_found) for _ in range(6)]:
            removal.result()
    assert rig.engine.find(container.labels) == ()


def test_the_engine_says_who_it_is(rig: Rig) -> None:
    identity = rig.engine.identity()
    assert identity == rig.engine.identity()
    assert identity.incarnation
    assert identity.official is (identity.kind != "in-memory")
    assert rig.engine.abilities().cpus > 0
