"""What NVML says and does, by way of the stand-in library and the real pynvml."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.adapters.nvml import ACTIONS, NvmlProbe
from orchestrator.adapters.nvml_child import PROCESS_LISTS, READERS
from orchestrator.adapters.system_clock import SystemClock
from orchestrator.domain.device import MIG_QUERIES, QUERIES, Need, Query
from orchestrator.errors import DeviceLostError, DeviceUnreadableError
from tests.nvml.stand_in import DESKTOP, GIB, Code, Process, StandIn

UTILIZATION = "nvmlDeviceGetUtilizationRates"
PROGRAM = [sys.executable, "-m", "orchestrator.adapters.nvml_child"]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    made = StandIn(tmp_path)
    made.enter(monkeypatch)
    return made


@pytest.fixture
def probe(stand_in: StandIn) -> Iterator[NvmlProbe]:
    made = NvmlProbe(SystemClock())
    yield made
    made.close()


def child_of(probe: NvmlProbe) -> int:
    assert probe._child is not None
    return probe._child.pid


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_every_query_of_the_table_is_asked_and_no_other() -> None:
    asked = [name for name, _ in READERS] + [name for name, _, _ in PROCESS_LISTS]
    assert sorted([*asked, Query.XID]) == sorted(Query)


def test_nothing_is_started_or_imported_before_the_first_question(probe: NvmlProbe) -> None:
    assert probe._child is None
    used = "orchestrator.adapters.nvml, orchestrator.cli.run"
    code = f"import sys, {used}; print('pynvml' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_without_a_library_there_is_no_device_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    probe = NvmlProbe(SystemClock())
    if probe.library() is not None:
        pytest.skip("this host has an NVIDIA driver")
    assert probe.devices() == ()
    with pytest.raises(DeviceLostError, match="no NVIDIA driver"):
        probe.sample("GPU-a")
    assert probe._child is None


def test_the_library_is_the_file_that_was_loaded(stand_in: StandIn, probe: NvmlProbe) -> None:
    found = probe.library()
    assert found is not None
    assert Path(found.path) == stand_in.library
    digest = hashlib.sha256(stand_in.library.read_bytes()).hexdigest()
    assert found.digest == f"sha256:{digest}"
    assert (found.driver, found.official) == (stand_in.driver, False)


# What different cards tell


def test_a_data_centre_card_tells_everything(stand_in: StandIn, probe: NvmlProbe) -> None:
    stand_in.gpu("GPU-a")
    assert probe.sample("GPU-a").unsupported == frozenset()


def test_a_desktop_card_tells_what_is_required(stand_in: StandIn, probe: NvmlProbe) -> None:
    xorg = Process(1200, 300 << 20, "graphics")
    stand_in.gpu("GPU-a", **DESKTOP, used=300 << 20, processes=[xorg])
    seen = probe.sample("GPU-a")
    assert seen.unsupported == {
        Query.MPS,
        Query.MIG_MODE,
        Query.REMAP,
        Query.ECC,
        Query.XID,
        Query.PERSISTENCE,
        Query.POWER,
    }
    assert all(QUERIES[query] is Need.RECORDED for query in seen.unsupported)
    assert (seen.memory_used, seen.utilization) == (300 << 20, 0)
    assert [(p.pid, p.use.value) for p in seen.processes] == [(1200, "graphics")]
    told = (seen.mig, seen.pending_remap, seen.ecc_errors, seen.persistence, seen.power)
    assert told == (None,) * 5


def test_an_older_card_retires_pages_instead_of_remapping_rows(
    stand_in: StandIn, probe: NvmlProbe
) -> None:
    stand_in.gpu("GPU-a", remap_pending=None, remap_failed=None, retired_pending=True)
    seen = probe.sample("GPU-a")
    assert (seen.pending_remap, seen.failed_remap) == (True, None)
    assert Query.REMAP not in seen.unsupported


def test_a_remap_that_failed_is_told(stand_in: StandIn, probe: NvmlProbe) -> None:
    stand_in.gpu("GPU-a", remap_failed=True)
    seen = probe.sample("GPU-a")
    assert (seen.pending_remap, seen.failed_remap) == (False, True)


def test_a_card_without_persistence_keeps_its_state(stand_in: StandIn, probe: NvmlProbe) -> None:
    stand_in.gpu("GPU-a", persistence=False)
    seen = probe.sample("GPU-a")
    assert seen.persistence is False
    assert seen.unsupported == frozenset()


def test_a_gpu_in_mig_mode_that_is_not_cut_stands_for_itself(
    stand_in: StandIn, probe: NvmlProbe
) -> None:
    stand_in.gpu("GPU-a", mig=True, utilization=None)
    assert [(d.uuid, d.parent) for d in probe.devices()] == [("GPU-a", None)]
    assert probe.sample("GPU-a").mig


def test_instances_are_asked_each_for_its_own(stand_in: StandIn, probe: NvmlProbe) -> None:
    stand_in.gpu("GPU-a", mig=True, utilization=None, remap_pending=True, power=123_000)
    stand_in.instance("MIG-1", of="GPU-a", number=1, used=GIB, processes=[Process(77, GIB)])
    stand_in.instance("MIG-2", of="GPU-a", number=2)
    busy, idle = probe.sample("MIG-1"), probe.sample("MIG-2")
    assert (busy.memory_used, [p.pid for p in busy.processes]) == (GIB, [77])
    assert (idle.memory_used, idle.processes) == (0, ())
    for seen in (busy, idle):
        assert (seen.mig, seen.pending_remap, seen.power) == (True, True, 123.0)
        assert seen.unsupported == {Query.UTILIZATION}


# Errors that the driver reports


def test_an_error_of_one_instance_is_not_the_others(stand_in: StandIn, probe: NvmlProbe) -> None:
    stand_in.gpu("GPU-a", mig=True, utilization=None)
    stand_in.instance("MIG-1", of="GPU-a", number=1)
    stand_in.instance("MIG-2", of="GPU-a", number=2)
    probe.devices()
    stand_in.xid("GPU-a", 13, instance=1)
    stand_in.xid("GPU-a", 45)
    assert probe.sample("MIG-1").xids == (13, 45)
    assert probe.sample("MIG-2").xids == (45,)


def test_errors_before_the_first_question_are_not_ours(stand_in: StandIn, probe: NvmlProbe) -> None:
    stand_in.gpu("GPU-a")
    stand_in.xid("GPU-a", 13)
    assert probe.sample("GPU-a").xids == ()


def test_the_last_error_of_a_lost_device_is_told_and_the_others_are_still_heard(
    stand_in: StandIn, probe: NvmlProbe
) -> None:
    for uuid in ("GPU-a", "GPU-b"):
        stand_in.gpu(uuid)
        probe.sample(uuid)
    stand_in.xid("GPU-a", 79)
    stand_in.lose("GPU-a")
    with pytest.raises(DeviceLostError, match=r"lost GPU-a: .*GpuIsLost \(15.*Xid 79"):
        probe.sample("GPU-a")
    probe.sample("GPU-b")
    stand_in.xid("GPU-b", 48)
    seen = probe.sample("GPU-b")
    assert seen.xids == (48,)
    assert Query.XID not in seen.unsupported


@pytest.mark.parametrize(
    "function",
    ["nvmlEventSetCreate", "nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents"],
)
def test_who_may_not_hear_of_errors_cannot_tell(
    stand_in: StandIn, probe: NvmlProbe, function: str
) -> None:
    stand_in.gpu("GPU-a")
    stand_in.error(function, Code.NO_PERMISSION)
    assert probe.sample("GPU-a").unsupported == {Query.XID}


# Drivers that refuse, hang and die


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (Code.LIB_RM_VERSION_MISMATCH, "LibRmVersionMismatch"),
        (Code.DRIVER_NOT_LOADED, "DriverNotLoaded"),
        (Code.NO_PERMISSION, "NoPermission"),
        (Code.UNKNOWN, "Unknown"),
    ],
)
def test_GP_03_a_driver_that_cannot_be_opened_is_named_with_what_to_do(
    stand_in: StandIn, probe: NvmlProbe, code: Code, name: str
) -> None:
    stand_in.gpu("GPU-a")
    stand_in.error("nvmlInitWithFlags", code)
    for question in (probe.devices, probe.library, lambda: probe.sample("GPU-a")):
        with pytest.raises(DeviceUnreadableError) as refusal:
            question()
        assert f"NVML says {name} ({code:d}, nvmlInit)" in str(refusal.value)
        assert ACTIONS.get(name, "reboot") in str(refusal.value)
        assert "\n" not in str(refusal.value)
        assert probe._child is None  # it may hold what was loaded before a driver was mended
    stand_in.heal()
    assert [device.uuid for device in probe.devices()] == ["GPU-a"]


def test_a_query_that_is_refused_leaves_the_device_unreadable(
    stand_in: StandIn, probe: NvmlProbe
) -> None:
    stand_in.gpu("GPU-a")
    stand_in.gpu("GPU-b")
    function = "nvmlDeviceGetGraphicsRunningProcesses_v3"
    stand_in.error(function, Code.NO_PERMISSION, "GPU-a")
    with pytest.raises(DeviceUnreadableError, match=rf"NoPermission \(4, {function}\)"):
        probe.sample("GPU-a")
    assert probe.sample("GPU-b").processes == ()


@pytest.mark.parametrize(
    ("function", "code"),
    [
        ("nvmlDeviceGetHandleByIndex_v2", Code.NO_PERMISSION),  # another's, of a control group
        ("nvmlDeviceGetHandleByIndex_v2", Code.UNKNOWN),  # how many drivers say "lost"
        ("nvmlDeviceGetName", Code.GPU_IS_LOST),
    ],
)
def test_a_gpu_that_refuses_does_not_hide_the_others(
    stand_in: StandIn, probe: NvmlProbe, function: str, code: Code
) -> None:
    stand_in.gpu("GPU-a")
    stand_in.gpu("GPU-b")
    stand_in.error(function, code, "GPU-a")
    assert [device.uuid for device in probe.devices()] == ["GPU-b"]
    assert probe.sample("GPU-b").unsupported == frozenset()
    stand_in.error(function, code, "GPU-b")
    with pytest.raises(DeviceUnreadableError, match=rf"\({code:d}, nvmlDeviceGet"):
        probe.devices()


def test_a_list_that_never_fits_is_unreadable(stand_in: StandIn, probe: NvmlProbe) -> None:
    stand_in.gpu("GPU-a", processes=[Process(7)])
    stand_in.error("nvmlDeviceGetComputeRunningProcesses_v3", 7, "GPU-a")
    with pytest.raises(DeviceUnreadableError, match="InsufficientSize"):
        probe.sample("GPU-a")


def test_a_device_that_needs_a_reset_is_lost(stand_in: StandIn, probe: NvmlProbe) -> None:
    stand_in.gpu("GPU-a")
    stand_in.error("nvmlDeviceGetMemoryInfo_v2", Code.RESET_REQUIRED, "GPU-a")
    with pytest.raises(DeviceLostError, match=r"ResetRequired.*nvidia-smi --gpu-reset"):
        probe.sample("GPU-a")


def test_a_call_that_hangs_is_ended_and_the_next_question_is_answered(stand_in: StandIn) -> None:
    stand_in.gpu("GPU-a")
    probe = NvmlProbe(SystemClock(), patience=1.0)
    probe.library()
    hung = child_of(probe)
    stand_in.hang(UTILIZATION)
    with pytest.raises(DeviceUnreadableError, match="NVML hangs: no answer about GPU-a in 1 s"):
        probe.sample("GPU-a")
    assert not is_running(hung)
    stand_in.heal()
    assert probe.sample("GPU-a").utilization == 0
    assert child_of(probe) != hung
    probe.close()


def test_a_driver_that_hangs_when_opened_is_given_its_own_time(stand_in: StandIn) -> None:
    stand_in.hang("nvmlInitWithFlags")
    probe = NvmlProbe(SystemClock(), patience=60.0, patience_at_start=1.5)
    with pytest.raises(DeviceUnreadableError, match=r"no answer about the devices in 1\.5 s"):
        probe.devices()


def test_a_child_that_dies_within_a_call_is_replaced(stand_in: StandIn, probe: NvmlProbe) -> None:
    stand_in.gpu("GPU-a")
    stand_in.die(UTILIZATION)
    with pytest.raises(DeviceUnreadableError, match="about GPU-a ended with status 3"):
        probe.sample("GPU-a")
    stand_in.heal()
    assert probe.sample("GPU-a").utilization == 0


def test_the_last_words_of_a_child_that_broke_are_told(
    stand_in: StandIn, probe: NvmlProbe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pynvml.py").write_text("raise ImportError('half of it is missing')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(DeviceUnreadableError, match=r"status 1: ImportError: half of it is miss"):
        probe.devices()


def test_a_child_that_was_killed_between_questions_is_replaced_unseen(
    stand_in: StandIn, probe: NvmlProbe
) -> None:
    stand_in.gpu("GPU-a")
    probe.sample("GPU-a")
    os.kill(child_of(probe), signal.SIGKILL)
    os.waitid(os.P_PID, child_of(probe), os.WEXITED | os.WNOWAIT)
    assert probe.sample("GPU-a").utilization == 0


def test_a_child_ends_with_its_parent_even_within_a_call_that_hangs(stand_in: StandIn) -> None:
    stand_in.gpu("GPU-a")
    stand_in.hang(UTILIZATION)
    with subprocess.Popen(PROGRAM, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps({"ask": "devices"}).encode() + b"\n")
        child.stdin.flush()
        assert b"GPU-a" in child.stdout.readline()
        child.stdin.write(json.dumps({"ask": "sample", "uuid": "GPU-a"}).encode() + b"\n")
        child.stdin.close()
        try:
            assert child.wait(60) == 0
        finally:
            child.kill()


def test_the_child_hears_no_ctrl_c_and_holds_nothing_of_ours(
    stand_in: StandIn, probe: NvmlProbe, tmp_path: Path
) -> None:
    with (tmp_path / "lock").open("w") as lock:
        os.set_inheritable(lock.fileno(), True)
        probe.devices()
        child = child_of(probe)
        assert os.getsid(child) == child
        held = [fd.readlink() for fd in Path(f"/proc/{child}/fd").iterdir()]
        assert Path(lock.name) not in held


def test_nothing_is_imported_from_where_orch_was_called(
    stand_in: StandIn, probe: NvmlProbe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pynvml.py", "hashlib.py", "orchestrator.py"):
        (tmp_path / name).write_text("raise SystemExit(5)\n")
    monkeypatch.chdir(tmp_path)
    assert probe.devices() == ()


def test_threads_get_each_its_own_answer(stand_in: StandIn, probe: NvmlProbe) -> None:
    for number in range(4):
        stand_in.gpu(f"GPU-{number}", utilization=number)
    begin = threading.Barrier(4)

    def look(number: int) -> set[tuple[str, int | None]]:
        begin.wait()
        seen = [probe.sample(f"GPU-{number}") for _ in range(50)]
        return {(sample.uuid, sample.utilization) for sample in seen}

    with ThreadPoolExecutor(4) as pool:
        for number, found in enumerate(pool.map(look, range(4))):
            assert found == {(f"GPU-{number}", number)}


def test_what_the_library_prints_is_no_answer_and_fills_no_pipe(
    stand_in: StandIn, probe: NvmlProbe
) -> None:
    stand_in.gpu("GPU-a")
    stand_in.chatter(UTILIZATION)
    for _ in range(40):
        assert probe.sample("GPU-a").utilization == 0


def test_the_page_about_gpus_has_the_table_of_queries_and_every_action() -> None:
    page = Path(__file__).parents[2].joinpath("docs", "gpus.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (\w+) \| .+ \|$", page, re.MULTILINE)
    expected = [(query, QUERIES[query], MIG_QUERIES[query]) for query in Query]
    assert sorted(rows) == sorted(expected)
    assert all(
        f"`{name}`" in page for name in ACTIONS if name not in {"NotFound", "InvalidArgument"}
    )
